"""Decides how often a failed job may be restarted. Pure: seconds in, a decision out."""

from __future__ import annotations


class RestartBudget:
    """Counts restarts; after a time without a failure, all of them are available again.

    Args:
        window: seconds without a failure after which those used so far are forgiven.
    """

    def __init__(self, most: int, window: float) -> None:
        self.most, self._window = most, window
        self.used = 0
        self._healthy_since: float | None = None

    def begin(self, now: float) -> None:
        """Note that the job runs from now on; does nothing if it has run since its last failure."""
        if self._healthy_since is None:
            self._healthy_since = now

    def is_left(self, now: float) -> bool:
        """Whether `spend` would find one."""
        return self.most > (0 if self._is_forgiven(now) else self.used)

    def spend(self, now: float) -> bool:
        """Use up a restart after a failure; return whether one was left."""
        left = self.is_left(now)
        if self._is_forgiven(now):
            self.used = 0
        self._healthy_since = None
        self.used += left
        return left

    def _is_forgiven(self, now: float) -> bool:
        return self._healthy_since is not None and now - self._healthy_since >= self._window
