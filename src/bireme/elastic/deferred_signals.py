"""Deferred signals: keeps signals that arrive between two sessions of a job, and delivers them to the next one."""

from __future__ import annotations

import os

from bireme import signal_numbers as signal
from bireme.loop import RELAYED_SIGNALS, STOP_SIGNALS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class DeferredSignals:
    """A context manager that keeps the first stop signal instead of letting it end the process.

    A session installs its own handlers and restores these at its end. Outside the main thread this does nothing.

    Attributes:
        signum: the signal that was kept; 0: none.
    """

    def __init__(self) -> None:
        self.signum = 0
        self._old: dict[int, Any] = {}

    def __enter__(self) -> DeferredSignals:
        for signum in (*STOP_SIGNALS, *RELAYED_SIGNALS):
            old = signal.getsignal(signum)
            if old is signal.SIG_IGN:
                continue
            try:
                signal.signal(signum, self._keep)
            except ValueError:
                return self
            self._old[signum] = signal.SIG_DFL if old is None else old
        return self

    def __exit__(self, *_: object) -> None:
        for signum, old in self._old.items():
            signal.signal(signum, old)

    def _keep(self, signum: int, _: object) -> None:
        if signum in STOP_SIGNALS:
            self.signum = self.signum or signum

    def deliver(self) -> None:
        """Send the kept signal to this process again, now that a session handles it."""
        if self.signum:
            signum, self.signum = self.signum, 0
            os.kill(os.getpid(), signum)
