"""Decides when a silent channel means that the peer is gone, and not that this process was suspended or busy.

Both sides look in beats, several within the time after which the other is missed. A beat that is late tells how long
we were away, and that much is forgiven: a machine that stands still for a while (a virtual one, or one that swaps)
halts both sides, and whichever wakes first must not give up the other.
"""

from __future__ import annotations

BEATS = 4
"""How often the runner asks, and looks, within the time after which the other side is missed."""
LOOKS = 16
"""How often an agent looks. A halt that begins between two looks is forgiven only from the second one on, and with the
agent that comes on top of the time since the runner has asked last; with the runner it is the same time."""


class Liveness:
    """How long the other side has not been heard. All times are seconds of one clock.

    Attributes:
        since: when it was heard last.
    """

    def __init__(self, now: float) -> None:
        self.since = now
        self._away = 0.0

    def broken(self, now: float) -> None:
        """It was heard."""
        self.since, self._away = now, 0.0

    def look(self, due: float, now: float) -> float:
        """How long it has lasted, less the time in which we were away.

        Args:
            due: when this look was to be.
            now: when it is.
        """
        self._away += max(0.0, now - max(due, self.since))
        return self.lasted(now)

    def lasted(self, now: float) -> float:
        """The same, but between two looks."""
        return now - self.since - self._away
