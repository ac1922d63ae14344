"""The session of a job, from its start to its outcome: reacts to signals, ends of ranks and their output.

The ranks are run by a *crew*: that of this machine (:mod:`bireme.agent.crew`), or the agents of many nodes
(:mod:`bireme.cluster.cluster_crew`). Decides what a second Ctrl+C does.
"""

from __future__ import annotations

import signal

from bireme.agent.terminal import Terminal
from bireme.errors import OK, BadInputError
from bireme.job import DEFAULT_GRACE
from bireme.logs.console import ERR, OUT, Console
from bireme.logs.output import JobOutput, Style
from bireme.loop import RELAYED_SIGNALS, STOP_SIGNALS, Loop
from bireme.result.outcome import WORDS_OF
from bireme.result.report import last_lines, last_traceback
from bireme.result.verdict import Verdict
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Protocol

    from bireme.job import JobSpec, OutputMode
    from bireme.loop import Timer
    from bireme.planning.start import StartPlan
    from bireme.result.outcome import Cause, Outcome, RankEnd

    class Crew(Protocol):
        """Runs the ranks. It calls the session's methods as things happen, ``gone()`` and ``over()`` last."""

        @property
        def killed(self) -> int:
            """How many ranks had to be killed."""

        @property
        def stuck(self) -> tuple[str, ...]:
            """Processes that even SIGKILL did not end."""

        @property
        def logs(self) -> tuple[str, ...]:
            """The ranks' log files."""

        def start(self) -> None:
            """Begin to start the ranks; return at once."""

        def stop(self, signum: int) -> None:
            """End all ranks by the stop ladder, beginning with this signal."""

        def urge(self) -> None:
            """Kill what is left now, without waiting for the grace time."""

        def signal_ranks(self, signum: int) -> None:
            """Send a signal to every rank."""

        def suspend(self) -> None:
            """Suspend every process of the job."""

        def resume(self) -> None:
            """Resume them."""

        def hold_output(self) -> None:
            """Deliver no more output until :meth:`release_output`."""

        def release_output(self) -> None:
            """Deliver output again."""

        def close(self) -> None:
            """Clean up, at whatever point the session has ended."""


_KEYS = (signal.SIGINT, signal.SIGQUIT)
"""Signals that a person sends by a key, and sees the answer to."""

_REST_ON_TERMINAL = 0.1
_REST_ELSEWHERE = 0.5
_LAST_DRAIN = 2.0
"""Seconds that a stopped job waits for a reader that does not read (a terminal after Ctrl+S)."""

_LAST_ONES = 60.0
"""Seconds after the first rank's success within which the others are expected to end."""


class SessionOptions(Value):
    """How a session shows its job, and its time limit.

    Attributes:
        output: which ranks' lines are shown, and whether they are labelled.
        timestamps: whether labels have the time.
        fold: whether equal lines of several ranks are shown once.
        log_level: the least level of our own messages.
        grace: seconds between the stop signal and SIGKILL.
        time_limit: seconds until the job is stopped; None: never.
        notes: (level, text) of messages to show first.
    """

    output: OutputMode = "auto"
    timestamps: bool = False
    fold: bool = False
    log_level: str = "info"
    grace: float = DEFAULT_GRACE
    time_limit: float | None = None
    notes: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, spec: JobSpec, notes: Iterable[tuple[str, str]] = ()) -> SessionOptions:
        """The options of a job, with notes."""
        return cls(
            output=spec.output,
            timestamps=spec.timestamps,
            fold=spec.fold,
            log_level=spec.log_level,
            grace=spec.grace,
            time_limit=spec.time_limit,
            notes=tuple(notes),
        )


def run(options: SessionOptions, make_crew: Callable[[Session], Crew], make_loop: Callable[[], Loop] = Loop) -> Outcome:
    """Start the crew that ``make_crew`` returns, and return the outcome when nothing is left of it.

    Installs signal handlers, and restores the previous ones at the end.

    Args:
        options: how the job is shown, and its time limit.
        make_crew: makes the crew of a session.
        make_loop: makes the event loop.

    Raises:
        BadInputError: this is not the main thread, in which signals are handled.
    """
    if not _in_main_thread():
        raise BadInputError("a job can run only in the main thread: it handles the signals of the process")
    session = Session(options, make_loop())
    try:
        session.crew = make_crew(session)
        outcome = session.run()
    finally:
        session.close()
    return outcome.replace(interrupted=outcome.interrupted or session.loop.late)


def limit_note(seconds: float) -> str:
    """The note of a job that exceeded its time limit."""
    return f"stopped after the time limit of {seconds:g} s"


def _in_main_thread() -> bool:
    try:
        signal.signal(signal.SIGCHLD, signal.getsignal(signal.SIGCHLD) or signal.SIG_DFL)
    except ValueError:  # only the main thread may
        return False
    return True


class Session:
    """The parts of a job that are the same wherever its ranks run."""

    crew: Crew

    def __init__(self, options: SessionOptions, loop: Loop) -> None:
        self._options = options
        self._gone = False
        self._mask: set[int | signal.Signals] | None = None
        # Some daemons ignore SIGCHLD. Then the kernel reaps our children before we learn how they ended.
        self._ignored_children = signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
        if self._ignored_children:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._last_drain: Timer | None = None
        self._unread = False
        self._interrupted = 0
        self._first_done: float | None = None
        self.terminal = Terminal()
        self.loop = loop
        self._begin = loop.now()
        self.verdict = Verdict()
        self.console = Console(
            self.loop, options.log_level, on_gone=self._reader_gone, on_room=lambda: self.crew.release_output()
        )
        self._output: JobOutput | None = None

    def run(self) -> Outcome:
        """Run the crew to its end; return the outcome."""
        for level, text in self._options.notes:
            self.console.say(level, text)
        self.loop.on_signals((*STOP_SIGNALS, *RELAYED_SIGNALS, signal.SIGTSTP, signal.SIGCONT), self._on_signal)
        limit = self._options.time_limit
        if limit is not None:
            note = limit_note(limit)
            self.loop.after(limit, lambda: self.trouble("time limit", note, self.loop.now()))
        self.crew.start()
        # Our parent may have blocked them. The ranks are forked by now and keep the mask as we found it.
        self._mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, (*STOP_SIGNALS, *RELAYED_SIGNALS, signal.SIGCHLD))
        self.loop.run()
        self.console.finish_line(report_follows=self.verdict.stopping)
        return self._outcome()

    # -- events of the crew ---------------------------------------------------------------------

    def planned(self, plan: StartPlan) -> None:
        """Note which ranks will run, and prepare for their output."""
        style = Style(self._options.output, self._options.timestamps, plan.world_size, self._options.fold)
        self._output = JobOutput(self.loop, self.console, style)
        self.verdict.planned(worker.rank for node in plan.nodes for worker in node.workers)
        for node in plan.nodes:
            for worker in node.workers:
                self._output.add(worker.rank, node.host, OUT)
                self._output.add(worker.rank, node.host, ERR)

    def up(self, rank: int, pid: int) -> None:
        """Note that a rank was started."""
        self.console.say("debug", f"rank {rank} is pid {pid}")

    def down(self, end: RankEnd, when: float) -> None:
        """Note that a rank has ended, at ``when`` on our clock; stop the job if it failed."""
        self.console.say("debug", f"rank {end.rank} ended with exit code {end.code}")
        if end.code == OK and self._first_done is None:
            self._first_done = self.loop.now()
        if self.verdict.end(end, when):
            self.crew.stop(signal.SIGTERM)

    def trouble(self, cause: Cause, note: str, when: float, hosts: tuple[str, ...] = ()) -> None:
        """Stop the job for a cause other than a rank's failure.

        Args:
            cause: the cause.
            note: a message about it.
            when: its time on our clock (monotonic seconds).
            hosts: the nodes at fault.
        """
        if self.verdict.blame(cause, when, note=note, hosts=hosts):
            self.crew.stop(signal.SIGTERM)

    @property
    def ending(self) -> bool:
        """Whether the job is over, or about to be, since a rank has just succeeded."""
        done = self._first_done is not None and self.loop.now() - self._first_done < _LAST_ONES
        return self._gone or done or self.verdict.stopping

    def chunk(self, rank: int, number: int, data: bytes) -> None:
        """Take a chunk of a rank's output."""
        assert self._output is not None
        self._output.feed(rank, number, data)
        if self.console.full:
            self.crew.hold_output()

    @property
    def rest(self) -> float:
        """Seconds after which an unfinished line is shown; fewer on a terminal, where a person waits."""
        return _REST_ON_TERMINAL if self.console.is_terminal(OUT) else _REST_ELSEWHERE

    def rested(self, rank: int, number: int) -> None:
        """Show the unfinished line of a rank that has paused in it."""
        assert self._output is not None
        self._output.rested(rank, number)

    def eof(self, rank: int, number: int) -> None:
        """Note the end of a rank's stream."""
        assert self._output is not None
        self._output.eof(rank, number)

    def gone(self) -> None:
        """Note that no process of the job is left; some of its output may still be in the pipes."""
        self._gone = True
        if self._interrupted:
            self._wait_no_longer()

    def over(self) -> None:
        """Note that all output has been received; end the session once it is written."""
        if self._output is not None:
            self._output.flush()
        self.console.when_drained(self.loop.stop)

    def _wait_no_longer(self) -> None:
        """Give a reader that does not read a short time after a stop signal, and none after a second one."""
        if self._last_drain is not None:
            self._leave_unread()
        else:
            self._last_drain = self.loop.after(_LAST_DRAIN, self._leave_unread)

    def _leave_unread(self) -> None:
        self._unread = True
        self.loop.stop()

    # -- events from outside --------------------------------------------------------------------

    def _reader_gone(self) -> None:
        self.trouble("reader gone", "", self.loop.now())

    def _on_signal(self, signum: int) -> None:
        if signum in RELAYED_SIGNALS:
            self.crew.signal_ranks(signum)
        elif signum == signal.SIGTSTP:
            self.crew.suspend()
            self.terminal.leave()
            self.loop.halt()
            self.crew.resume()  # at once: before a timer finds that nothing was heard for so long
        elif signum == signal.SIGCONT:
            self.crew.resume()
        else:
            self._on_stop_signal(signum)

    def _on_stop_signal(self, signum: int) -> None:
        """Stop the job; at a second Ctrl+C, kill it. It may be ending for another cause already."""
        self._interrupted = self._interrupted or signum
        if self._gone:
            self.verdict.blame("signal", self.loop.now(), signum=signum)
            self._wait_no_longer()
        elif self.verdict.blame("signal", self.loop.now(), signum=signum):
            self.crew.stop(signum)
            if signum in _KEYS:
                self._announce(f"stopping{self._ranks_left()}; up to {self._options.grace:g} s; Ctrl+C again kills")
        elif signum in _KEYS:
            self.crew.urge()
            self._announce(f"killing{self._ranks_left()}")

    def _announce(self, text: str) -> None:
        """Answer a key, on a line of its own."""
        self.console.say("info", text, over_echo=True)

    def _ranks_left(self) -> str:
        count = self.verdict.unended
        return f" {count} rank{'' if count == 1 else 's'}" if count else ""

    # -- the end ---------------------------------------------------------------------------------

    def _outcome(self) -> Outcome:
        if self._output is not None:
            self._quote(self._output)
        seconds = self.loop.now() - self._begin
        crew = self.crew
        outcome = self.verdict.outcome(seconds=seconds, killed=crew.killed, stuck=crew.stuck, logs=crew.logs)
        return outcome.replace(unread=self._unread, interrupted=self._interrupted)

    def _quote(self, output: JobOutput) -> None:
        """Keep the tracebacks or last lines of the ranks that failed, and tracebacks of those that were stopped."""
        for end in self.verdict.failed[:WORDS_OF]:
            words = last_lines(output.tail(end.rank), end.recorded, by_signal=end.by_signal)
            self.verdict.detail(end.rank, words)
        quoted = 0
        for end in self.verdict.swept_along:
            words = last_traceback(output.tail(end.rank)) if quoted < WORDS_OF else ""
            if words:
                self.verdict.detail(end.rank, words)
                quoted += 1

    def close(self) -> None:
        """Clean up, at whatever point the session has ended."""
        if hasattr(self, "crew"):
            self.crew.close()
        self.console.close()
        self.loop.close()
        self.terminal.leave()
        if self._mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        if self._ignored_children:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
