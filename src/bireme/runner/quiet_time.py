"""Measures for how long a job has written nothing, and whether that is too long. All that each job holds for this."""

from __future__ import annotations

TICK = 1.0
"""Seconds between two calls of `QuietTime.tick`."""

_CADENCE = 5
"""``auto``: in so many checks something was written: the job has a cadence."""
_LEAST, _TIMES = 30.0, 5.0
"""``auto``: seconds of silence that are suspicious at the earliest, and how many of the longest pauses so far."""


class QuietTime:
    """Counts the seconds of silence, from `TICK` to `TICK`. A time in which the job is suspended does not count.

    Args:
        given: seconds of silence that are suspicious; None: found out.

    Attributes:
        seconds: how long nothing was written.
        last: how long the silence was that has just ended; 0: none has.
    """

    def __init__(self, given: float | None) -> None:
        self.given = given
        self.seconds = self.last = 0.0
        self._longest, self._talks = 0.0, 0

    def tick(self, *, talked: bool) -> None:
        """Note whether anything was written since the last call."""
        self.last = self.seconds if talked else 0.0
        if talked:
            if self._talks:
                self._longest = max(self._longest, self.seconds)
            self._talks += 1
        self.seconds = 0.0 if talked else self.seconds + TICK

    @property
    def limit(self) -> float | None:
        """Seconds of silence that are suspicious; None: none are, as the job has no cadence."""
        if self.given is not None:
            return self.given
        return max(_LEAST, _TIMES * self._longest) if self._talks >= _CADENCE else None

    @property
    def is_suspicious(self) -> bool:
        """Whether the ranks are to be looked at."""
        limit = self.limit
        return limit is not None and self.seconds >= limit
