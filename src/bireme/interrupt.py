"""Ctrl+C before a job's own handlers are there."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # not ``signal``: the 4 ms of its enumerations would be the very window that is to be closed
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def exit_quietly_on_interrupt() -> None:
    """Let Ctrl+C end this process at once, with 130 and no traceback.

    A command calls it before it imports anything else, which takes most of the time until it has handlers of its own.
    """
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, lambda *_: os._exit(128 + _signal.SIGINT))


class Remembered:
    """Between two sessions of one job: signals end nothing, and the first that asks for the end is kept.

    A session has handlers of its own, and gives these back at its end. Outside the main thread it does nothing.
    """

    _STOP = (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP, _signal.SIGQUIT)

    def __init__(self) -> None:
        self.signum = 0
        self._old: dict[int, Any] = {}

    def __enter__(self) -> Remembered:
        for signum in (*self._STOP, _signal.SIGUSR1, _signal.SIGUSR2):
            old = _signal.getsignal(signum)
            if old is _signal.SIG_IGN:
                continue
            try:
                _signal.signal(signum, self._keep)
            except ValueError:
                return self
            self._old[signum] = _signal.SIG_DFL if old is None else old
        return self

    def __exit__(self, *_: object) -> None:
        for signum, old in self._old.items():
            _signal.signal(signum, old)

    def _keep(self, signum: int, _: object) -> None:
        if signum in self._STOP:
            self.signum = self.signum or signum

    def deliver(self) -> None:
        """Send it to this process again: there is somebody now to take it."""
        if self.signum:
            signum, self.signum = self.signum, 0
            os.kill(os.getpid(), signum)
