"""A clock of silence: for how long the peer has sent nothing, not counting time for which this process was away. Pure.

Both sides check at intervals, several times within the limit. A check that is late tells for how long this process was
away, and that time does not count: when a machine stands still (a virtual one, or one that swaps), both sides stop, and
the one that wakes first must not give up the other.
"""

from __future__ import annotations

BEATS = 4
"""How often the runner pings and checks within the limit."""
LOOKS = 16
"""How often an agent checks within the limit. When the machine stops between two checks, only the time after the second
one is forgiven; for an agent that adds to the time since the last ping, so it checks more often than the runner."""


class Silence:
    """Measures how long the peer has been silent. All times are seconds of one clock.

    Attributes:
        since: when the peer was heard last.
    """

    def __init__(self, now: float) -> None:
        self.since = now
        self._away = 0.0

    def broken(self, now: float) -> None:
        """Note that the peer was heard."""
        self.since, self._away = now, 0.0

    def look(self, due: float, now: float) -> float:
        """Check at an interval; return the length of the silence without the time for which we were away.

        Args:
            due: when this check was due.
            now: the time.
        """
        self._away += max(0.0, now - max(due, self.since))
        return self.lasted(now)

    def lasted(self, now: float) -> float:
        """The length of the silence, without the time for which we were away; for use between two checks."""
        return now - self.since - self._away
