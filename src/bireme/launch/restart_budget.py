"""How often a job may be started again. Pure: seconds in, a decision out."""

from __future__ import annotations


class RestartBudget:
    """So many restarts, all of them forgiven after a healthy time.

    Args:
        most: restarts that may be used up.
        window: seconds without a failure after which those used up so far are forgiven.
    """

    def __init__(self, most: int, window: float) -> None:
        self.most, self._window = most, window
        self.used = 0
        self._healthy_since: float | None = None

    def begin(self, now: float) -> None:
        """The job runs, from this second on, unless it has run since its last failure."""
        if self._healthy_since is None:
            self._healthy_since = now

    def spend(self, now: float) -> bool:
        """The job has failed; return whether it may be started again."""
        if self._healthy_since is not None and now - self._healthy_since >= self._window:
            self.used = 0
        self._healthy_since = None
        if self.used >= self.most:
            return False
        self.used += 1
        return True
