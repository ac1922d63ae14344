"""Decides for how long a peer has been silent: time during which this process was not running does not count. Pure.

Both sides check several times within the limit. A late check shows for how long this process was not running, and that
time does not count against the peer. When a machine is halted (a virtual one, or one that swaps), both sides may stop,
and the one that resumes first must not give up the other.
"""

from __future__ import annotations

BEATS = 4
"""How often the runner pings and checks within the limit."""
LOOKS = 16
"""How often an agent checks within the limit. When the machine stops between two checks, only the time after the second
one is forgiven; for an agent that adds to the time since the last ping, so it checks more often than the runner."""


class Silence:
    """Measures how long the peer has been silent. All times are seconds of one clock."""

    def __init__(self, now: float) -> None:
        self.since = now
        self._away = 0.0

    def broken(self, now: float) -> None:
        """Note that the peer was heard."""
        self.since, self._away = now, 0.0

    def look(self, due: float, now: float) -> float:
        """Make a regular check; return the length of the silence, without the time during which we were not running.

        Args:
            due: when this check was due.
        """
        self._away += max(0.0, now - max(due, self.since))
        return self.lasted(now)

    def lasted(self, now: float) -> float:
        """The length of the silence, without the time during which we were not running; for use between two checks."""
        return now - self.since - self._away
