"""Decides what signals do to a running job: the first Ctrl+C stops it, a second one kills it, Ctrl+Z suspends it."""

from __future__ import annotations

import os

from bireme import signal_numbers as signal
from bireme.errors import counted
from bireme.loop import RELAYED_SIGNALS, STOP_SIGNALS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from bireme.logs.console import Console
    from bireme.loop import Loop, Timer
    from bireme.result.verdict import Verdict
    from bireme.runner.crew import Crew

_KEYS = (signal.SIGINT, signal.SIGQUIT)
"""What Ctrl+C and Ctrl+\\ send."""
_LAST_DRAIN = 2.0
"""Seconds that a stopped job waits for a reader that does not read (a terminal after Ctrl+S)."""


class JobSignals:
    """Reacts to the signals that this process gets while a job runs.

    Args:
        leave_terminal: called before this process is suspended.
        preempted: carries out a preemption, if this signal announces one.

    Attributes:
        unread: whether output was left unwritten because nobody read it.
    """

    def __init__(
        self,
        loop: Loop,
        console: Console,
        verdict: Verdict,
        leave_terminal: Callable[[], None],
        *,
        grace: float,
        preempted: Callable[[int], bool],
    ) -> None:
        self._loop, self._console, self._verdict, self._leave_terminal = loop, console, verdict, leave_terminal
        self._grace, self._preempted = grace, preempted
        self._gone = self._settled = False
        self._last_drain: Timer | None = None
        self.received = 0
        self.unread = False

    def watch(self, crew: Crew) -> None:
        """Pass what a signal asks for to this crew from now on."""
        self._crew = crew
        kept = _kept_before()
        heard = (*STOP_SIGNALS, *RELAYED_SIGNALS, signal.SIGTSTP, signal.SIGCONT)
        on_terminal = self._console.on_terminal
        self._loop.on_signals((*heard, signal.SIGWINCH) if on_terminal else heard, self.hear)
        if kept:
            os.kill(os.getpid(), kept)

    def settled(self) -> None:
        """Note that the ranks have ended, and the crew only brings files home: any stop signal ends that."""
        self._settled = True

    def gone(self) -> None:
        """Note that no process of the job is left: a stop signal now only ends the wait for a reader."""
        self._gone = True
        if self.received:
            self._wait_no_longer()

    def hear(self, signum: int) -> None:
        """Do what a signal asks for, of one that has arrived or that stands for a request."""
        if self._preempted(signum):
            return
        if signum in RELAYED_SIGNALS:
            self._crew.signal_ranks(signum)
        elif signum == signal.SIGWINCH:
            self._crew.resize()
            self._console.resized()
        elif signum == signal.SIGTSTP:
            self._crew.suspend()
            self._console.leave_rows()
            self._leave_terminal()
            self._loop.halt()
            self._crew.resume()  # at once: before a timer finds that nothing was heard for so long
        elif signum == signal.SIGCONT:
            self._crew.resume()
        else:
            self._on_stop_signal(signum)

    def kill(self) -> None:
        """Kill the job, as two Ctrl+C do, but no rank hears of the first."""
        if not self._verdict.stopping:
            self._on_stop_signal(signal.SIGINT, sent=signal.SIGKILL)
        self._on_stop_signal(signal.SIGINT)

    def _on_stop_signal(self, signum: int, *, sent: int = 0) -> None:
        """Stop the job; at a second Ctrl+C, kill it. It may be ending for another cause already.

        Args:
            sent: the signal with which the ranks are stopped, if it is another.
        """
        self.received = self.received or signum
        if self._gone:
            self._verdict.blame("signal", self._loop.now(), signum=signum)
            self._wait_no_longer()
        elif self._settled:
            self._verdict.blame("signal", self._loop.now(), signum=signum)
            self._crew.kill_now()
        elif self._verdict.blame("signal", self._loop.now(), signum=signum):
            self._crew.stop(sent or signum)
            if signum in _KEYS and not sent:
                self._announce(f"stopping{self._ranks_left()}; up to {self._grace:g} s; Ctrl+C again kills")
        elif signum in _KEYS:
            self._crew.kill_now()
            self._announce(f"killing{self._ranks_left()}")

    def _announce(self, text: str) -> None:
        """Acknowledge a key, on a line of its own."""
        self._console.say("info", text, over_echo=True)

    def _ranks_left(self) -> str:
        count = self._verdict.unended
        return f" {counted(count, 'rank')}" if count else ""

    def _wait_no_longer(self) -> None:
        """Wait only a short time for a stalled reader after a stop signal, and no longer after a second one."""
        if self._last_drain is not None:
            self._leave_unread()
        else:
            self._last_drain = self._loop.after(_LAST_DRAIN, self._leave_unread)

    def _leave_unread(self) -> None:
        self.unread = True
        self._loop.stop()


class DeferredSignals:
    """A context manager that keeps the first stop signal for the next session instead of letting it end the process.

    A session installs its own handlers and restores these at its end. Outside the main thread this does nothing.
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

    def take(self) -> int:
        """The kept signal, which is kept no longer; 0: none has come."""
        signum, self.signum = self.signum, 0
        return signum


def _kept_before() -> int:
    """The signal that came between two sessions, if somebody keeps it for the next one."""
    for signum in STOP_SIGNALS:
        keeper = getattr(signal.getsignal(signum), "__self__", None)
        if isinstance(keeper, DeferredSignals):
            return keeper.take()
    return 0
