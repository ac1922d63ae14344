"""How a node's monotonic clock stands to ours, measured by round trips, as NTP does it."""

from __future__ import annotations

_DOUBT = 0.001
"""Seconds that two trips may contradict each other by, which are the drift of some minutes."""


class PeerClock:
    """The other machine's clock; all times are seconds.

    Attributes:
        offset: its clock minus ours; 0.0 as long as nothing was measured.
    """

    def __init__(self) -> None:
        self.offset = 0.0
        self._trip = float("inf")

    def measure(self, asked: float, theirs: float, answered: float) -> None:
        """Take in one round trip: the shortest measures best.

        Whatever the trip, the offset is half of it away at most. So two trips that cannot both be right tell that a
        clock has stepped in between (a virtual machine that was moved, or resumed), or that the two have drifted apart
        in the course of days: then what was measured before is worth nothing.

        Args:
            asked: when the question was sent, by our clock.
            theirs: what their clock showed.
            answered: when the answer was there, by ours.
        """
        trip, offset = answered - asked, theirs - (asked + answered) / 2
        if trip < self._trip or abs(offset - self.offset) > (trip + self._trip) / 2 + _DOUBT:
            self._trip, self.offset = trip, offset

    def to_ours(self, theirs: float, now: float) -> float:
        """A second of its clock on ours; it is no later than now, also while the offset is not known."""
        return min(theirs - self.offset, now)
