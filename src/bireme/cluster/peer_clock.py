"""The offset between a node's monotonic clock and ours, measured by round trips as in NTP."""

from __future__ import annotations

_DOUBT = 0.001
"""Seconds by which two measurements may contradict each other: the drift of some minutes."""


class PeerClock:
    """The clock of another machine. All times are seconds.

    Attributes:
        offset: its clock minus ours; 0.0 until something was measured.
    """

    def __init__(self) -> None:
        self.offset = 0.0
        self._trip = float("inf")

    def measure(self, asked: float, theirs: float, answered: float) -> None:
        """Take one round trip into account: the shortest one measures best.

        The error of a measurement is at most half the round trip. Two measurements that contradict each other by more
        mean that a clock has stepped (a virtual machine was moved or resumed) or that the clocks have drifted apart
        over days. Then the earlier measurement is discarded.

        Args:
            asked: when the question was sent, on our clock.
            theirs: what the other clock showed.
            answered: when the answer arrived, on our clock.
        """
        trip, offset = answered - asked, theirs - (asked + answered) / 2
        if trip < self._trip or abs(offset - self.offset) > (trip + self._trip) / 2 + _DOUBT:
            self._trip, self.offset = trip, offset

    def to_ours(self, theirs: float, now: float) -> float:
        """Convert a time on the other clock to ours; never later than ``now``, even if the offset is unknown."""
        return min(theirs - self.offset, now)
