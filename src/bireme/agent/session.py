"""One node's job from start to outcome: signals, ends and output, turned into decisions.

Runs in the command's own process on a single node, and in ``python -m bireme.agent`` by hand.
"""

from __future__ import annotations

import os
import signal
import stat
import time

from bireme.agent.node import Listener, Node, remove_flat_directory
from bireme.agent.pipes import Pipes
from bireme.logs.console import ERR, OUT, Console
from bireme.logs.output import Output, Style
from bireme.logs.rankfiles import RankFiles
from bireme.loop import Loop
from bireme.supervise.report import last_words
from bireme.supervise.verdict import Verdict
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from bireme.job import OutputMode
    from bireme.plan.start import NodePlan, StartPlan, WorkerPlan
    from bireme.supervise.outcome import Outcome, RankEnd

_LAST_DRAIN = 2.0
"""Seconds that a stopped job waits for a reader that does not read (a terminal under Ctrl+S)."""

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_RELAYED = (signal.SIGUSR1, signal.SIGUSR2)


class Options(Value):
    """How a session shows and stops its job.

    ``grace`` in seconds. ``log_dir``: the directory of the ranks' log files. ``pid_file``: removed by
    the guardian should this process be lost.
    ``keep``: descriptors that stay open while anything of the job lives (the port's lock). ``notes``:
    (level, text) to say at the start.
    """

    grace: float
    output: OutputMode = "auto"
    timestamps: bool = False
    log_level: str = "info"
    log_dir: str | None = None
    pid_file: str | None = None
    keep: tuple[int, ...] = ()
    notes: tuple[tuple[str, str], ...] = ()


def run(plan: StartPlan, node: NodePlan, options: Options, environ: Mapping[str, str]) -> Outcome:
    """Start the ranks of ``node`` and return when nothing is left of them.

    Must be called in the main thread (signals arrive there); handlers are given back at the end.
    """
    session = Session(plan, node, options, environ)
    try:
        return session.run()
    finally:
        session.close()


class Session:
    """The parts of one node's job, wired together."""

    def __init__(self, plan: StartPlan, node: NodePlan, options: Options, environ: Mapping[str, str]) -> None:
        self._plan, self._node_plan, self._options, self._environ = plan, node, options, environ
        self._begin = time.monotonic()
        self._terminal = _Terminal()
        self._loop = Loop()
        self._console = Console(
            self._loop, options.log_level, on_gone=self._reader_gone, on_room=lambda: self._pipes.resume()
        )
        self._verdict = Verdict()
        self._over = False
        self._files = self._rank_files()
        style = Style(options.output, options.timestamps, plan.world_size)
        self._output = Output(self._loop, self._console, style)
        self._pipes = Pipes(self._loop, self._chunk, self._output.eof, self._maybe_done)
        listener = Listener(self._up, self._down, self._guardian_lost, self._node_over)
        at_loss = [options.pid_file] if options.pid_file else []
        self._node = Node(
            self._loop,
            node,
            accelerator=plan.accelerator,
            grace=options.grace,
            listener=listener,
            remove_at_loss=at_loss,
        )

    def run(self) -> Outcome:
        """From the first fork to the outcome."""
        for level, text in self._options.notes:
            self._console.say(level, text)
        os.mkdir(self._node_plan.error_dir, 0o700)
        self._loop.on_signals((*_STOP_SIGNALS, *_RELAYED, signal.SIGTSTP, signal.SIGCONT), self._on_signal)
        self._start()
        self._loop.run()
        self._console.finish_line()
        return self._outcome()

    def _start(self) -> None:
        null = os.open(os.devnull, os.O_RDWR)
        pipes = []
        for worker in self._node_plan.workers:
            stdin = self._terminal.stdin_for_ranks(null) if worker.rank == 0 else null
            pipes.append((stdin, self._pipe(worker, OUT), self._pipe(worker, ERR)))
        self._node.start(self._environ, pipes, keep=self._options.keep)
        os.close(null)
        self._pipes.begin()

    def _pipe(self, worker: WorkerPlan, number: int) -> int:
        self._output.add(worker.rank, self._node_plan.host, number)
        return self._pipes.add(worker.rank, number)

    def _chunk(self, rank: int, number: int, chunk: bytes) -> None:
        if self._files is not None:
            self._files.write(rank, chunk)
        self._output.feed(rank, number, chunk)
        if self._console.full:
            self._pipes.pause()

    def _rank_files(self) -> RankFiles | None:
        if self._options.log_dir is None:
            return None
        ranks = [worker.rank for worker in self._node_plan.workers]
        return RankFiles(self._options.log_dir, ranks, lambda text: self._console.say("error", text))

    # -- events ----------------------------------------------------------------------------------

    def _up(self, rank: int, pid: int, when: float) -> None:
        self._console.say("debug", f"rank {rank} is pid {pid}")

    def _down(self, end: RankEnd, when: float) -> None:
        self._console.say("debug", f"rank {end.rank} has ended with exit code {end.code}")
        if self._verdict.end(end, when):
            self._node.stop()

    def _guardian_lost(self, pid: int) -> None:
        note = f"the guardian of {self._node_plan.host} (pid {pid}) was killed"
        self._verdict.blame("agent lost", time.monotonic(), note=note)

    def _reader_gone(self) -> None:
        if self._verdict.blame("reader gone", time.monotonic()):
            self._node.stop()

    def _on_signal(self, signum: int) -> None:
        if signum in _RELAYED:
            self._node.signal_ranks(signum)
        elif signum == signal.SIGTSTP:
            self._node.suspend()
            self._terminal.leave()
            os.kill(os.getpid(), signal.SIGSTOP)
        elif signum == signal.SIGCONT:
            self._node.resume()
        elif self._verdict.blame("signal", time.monotonic(), signum=signum):
            self._node.stop(signum)
        elif signum in (signal.SIGINT, signal.SIGQUIT):
            self._node.urge()

    def _node_over(self) -> None:
        self._over = True
        if self._node.stuck:
            self._pipes.abandon()
        self._maybe_done()

    def _maybe_done(self) -> None:
        """All processes gone and all pipes at their end: what is left is to write what they said."""
        if not (self._over and self._pipes.ended):
            return
        if self._verdict.cause == "signal":
            self._loop.after(_LAST_DRAIN, self._loop.stop)
        self._console.when_drained(self._loop.stop)

    # -- the end ---------------------------------------------------------------------------------

    def _outcome(self) -> Outcome:
        first = self._verdict.first
        if first is not None:
            tail = self._output.tail(first.rank)
            self._verdict.detail(first.rank, last_words(tail, first.recorded, by_signal=first.by_signal))
        logs = tuple(self._files.paths.values()) if self._files is not None else ()
        seconds = time.monotonic() - self._begin
        return self._verdict.outcome(seconds=seconds, killed=self._node.killed, stuck=self._node.stuck, logs=logs)

    def close(self) -> None:
        """Leave nothing behind, at whatever point the session has ended."""
        self._node.close()
        if self._files is not None:
            self._files.close()
        self._console.close()
        self._loop.close()
        self._terminal.leave()
        remove_flat_directory(self._node_plan.error_dir)


class _Terminal:
    """Our stdin: who may read it, and in which mode a terminal was found."""

    def __init__(self) -> None:
        self._modes: list[Any] | None = None
        try:
            self._is_terminal = stat.S_ISCHR(os.fstat(0).st_mode) and os.isatty(0)
        except OSError:  # closed
            self._is_terminal = False
        if self._is_terminal and self._in_foreground():
            import termios

            self._modes = termios.tcgetattr(0)

    def _in_foreground(self) -> bool:
        try:
            return os.tcgetpgrp(0) == os.getpgrp()
        except OSError:
            return False

    def stdin_for_ranks(self, null: int) -> int:
        """Rank 0's stdin: ours, so that a debugger works.

        Not a terminal that we do not have at the moment (``&``): a rank is in a session of its own,
        so that job control would not hold it, and it would take the shell's input away.
        """
        if self._is_terminal and self._modes is None:
            return null
        try:
            os.fstat(0)
        except OSError:
            return null
        return 0

    def leave(self) -> None:
        """Undo what a killed debugger did to the terminal (no echo, raw mode)."""
        if self._modes is not None and self._in_foreground():
            import termios

            if termios.tcgetattr(0) != self._modes:
                termios.tcsetattr(0, termios.TCSADRAIN, self._modes)
