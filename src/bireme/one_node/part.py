"""One node's part of a job, the same here and in an agent: its processes, pipes and log files.

It starts the ranks through a guardian, signals them, and stops them by the stop ladder. The part is *gone* when no
process of it is left, and *over* when all its pipes have ended too.
"""

from __future__ import annotations

import os
import sys

from bireme import signal_numbers as signal
from bireme.job import ANSWERS
from bireme.logs.rankfiles import RankFiles
from bireme.one_node import error_folder
from bireme.one_node.pipes import ERR, OUT, InputPipes, Pipes, open_terminal, resize_terminal
from bireme.planning.environment import JOB_NAME, MARK, RECORDED, STEPS, TEMPLATES, recording_environment
from bireme.process import kernel
from bireme.process.stop_ladder import KILL_WAIT, Ladder
from bireme.process.worker import WorkerStart
from bireme.regular_file import open_regular
from bireme.resources import extension_locks  # not after the fork: memory would be shared no more
from bireme.result.outcome import RankEnd, exit_code, signal_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Protocol

    from bireme.logs.output import JobOutput
    from bireme.loop import Loop, Timer
    from bireme.one_node.process_tree import ProcessTree
    from bireme.one_node.stack_taker import StackTaker
    from bireme.one_node.use_meter import UseMeter
    from bireme.planning.start import NodePlan
    from bireme.process.guardian import Handle
    from bireme.process.stop_ladder import Event
    from bireme.result.rank_use import RankUses
    from bireme.result.stacks import RankStack

    class Observer(Protocol):
        """Is told what happens to a node's part. Times are monotonic seconds; streams as in `bireme.one_node.pipes`."""

        def up(self, rank: int, pid: int, when: float) -> None:
            """A rank was started."""

        def down(self, end: RankEnd, when: float) -> None:
            """A rank has ended."""

        def chunk(self, rank: int, number: int, data: bytes) -> None:
            """A rank has written this to a stream."""

        def rested(self, rank: int, number: int) -> None:
            """A rank has paused in an unfinished line."""

        def eof(self, rank: int, number: int) -> None:
            """A rank's stream has ended."""

        def stacks(self, found: tuple[RankStack, ...]) -> None:
            """What the ranks were doing."""

        def measured(self, uses: RankUses) -> None:
            """What the ranks use."""

        def guardian_lost(self, pid: int) -> None:
            """The guardian or the watcher was killed."""

        def unfit(self, reason: str) -> None:
            """A rank could not be started."""

        def say(self, level: str, text: str) -> None:
            """The user is to know, such as that a log cannot be written."""

        def gone(self) -> None:
            """No process is left."""

        def over(self) -> None:
            """No process is left, and all pipes have ended."""


_LATE = 0.8
"""The part of the grace time after which the stacks of ranks are taken that are about to be killed."""


class NodePart:
    """The ranks of one node, from their start until nothing is left of them.

    Args:
        rest: seconds after which an unfinished line counts as resting.
        bring_tool: called where there is no py-spy; calls back with the path of one, "": there is none.
        takes_stacks: whether to take the stacks of ranks that are about to be killed.
        at_loss: called in guardian or watcher if this process is lost, and here at the end.
        farewell: seconds between SIGTERM and SIGKILL if this process is lost.

    Attributes:
        gone: whether no process is left.
        stuck: processes that even SIGKILL did not end.
    """

    def __init__(
        self,
        loop: Loop,
        plan: NodePlan,
        observer: Observer,
        tree: ProcessTree,
        *,
        accelerator: str,
        grace: float,
        rest: float,
        log_dir: str | None = None,
        takes_stacks: bool = False,
        bring_tool: Callable[[Callable[[str], object]], object] = lambda then: then(""),
        at_loss: Callable[[], object] = lambda: None,
        farewell: float = 0.0,
    ) -> None:
        self._loop, self._plan, self._observer, self._tree = loop, plan, observer, tree
        self._accelerator, self._at_loss, self._farewell = accelerator, at_loss, farewell
        self._takes_stacks, self._bring_tool = takes_stacks, bring_tool
        self._files_limit = kernel.allow_files(4 * len(plan.workers))  # first: pipes need them
        self._ladder = Ladder(grace)
        self._timer: Timer | None = None
        self._guardian: Handle | None = None
        self._patience: Timer | None = None  # with a guardian that is to end by itself
        self._lost = False
        self._taker: StackTaker | None = None
        self._meter: UseMeter | None = None
        self._late: Timer | None = None  # when the stacks of ranks are taken that do not end
        self._rank_environ: dict[str, str] = {}  # what the ranks have been given
        self._error_folder = -1  # the descriptor that holds its lock
        self._up: dict[int, tuple[int, float]] = {}  # index of a live worker → (pid, start time)
        self._stopped_at: float | None = None
        self.killed = 0
        self.stuck: tuple[str, ...] = ()
        self.gone = False
        self._files: RankFiles | None = None
        if log_dir is not None:
            ranks = [worker.rank for worker in plan.workers]
            self._files = RankFiles(
                log_dir, ranks, lambda text: observer.say("error", text), plan.env.get(JOB_NAME, "")
            )
        self._input: InputPipes | None = None
        self._output: JobOutput | None = None
        self._terminals: dict[tuple[int, int], int] = {}  # (rank, stream): the descriptor that we read from
        self._pipes = Pipes(loop, self._chunk, observer.rested, self._eof, self._maybe_over, rest=rest)
        self.hold_output, self.release_output = self._pipes.pause, self._pipes.resume

    @property
    def logs(self) -> tuple[str, ...]:
        """The ranks' log files."""
        return tuple(self._files.paths.values()) if self._files is not None else ()

    def fork(
        self,
        environ: Mapping[str, str],
        stdin: Callable[[int, int], int],
        output: JobOutput | None = None,
        *,
        keep: Sequence[int] = (),
        at_start: Callable[[], object] = lambda: None,
    ) -> None:
        """Fork the ranks.

        Args:
            stdin: returns what a rank reads from; called with the rank and the null device.
            output: what shows their streams, where that is done here.
        """
        self._output = output
        null = os.open(os.devnull, os.O_RDWR)
        workers = []
        self._error_folder = error_folder.make(self._plan.error_dir)
        self._rank_environ = base = {**self._recording(), **environ, **self._plan.env}
        if self._error_folder >= 0:
            base[STEPS] = os.path.join(self._plan.error_dir, "step")
        inherited = {name: value for name, value in base.items() if name != TEMPLATES}
        columns = output.columns_beside_labels() if output is not None else 0
        preload = self._plan.preload
        if preload and not hasattr(os, "memfd_create"):
            preload = ()
            self._cold("only Linux has them")
        for worker in self._plan.workers:
            rank = worker.rank
            reads, stderr = stdin(rank, null), self._stream(rank, ERR)
            stdout = stderr if output is not None and output.shows_as_one(rank) else self._stream(rank, OUT)
            # Not where a terminal of its own tells a rank its width, also when it changes. Some ask stdin first.
            told = columns and (reads != null or {(rank, OUT), (rank, ERR)} - self._terminals.keys())
            workers.append(
                WorkerStart(
                    argv=worker.argv,
                    env={**inherited, **({"COLUMNS": str(columns)} if told else {}), **worker.env},
                    cwd=self._plan.cwd,
                    stdin=reads,
                    stdout=stdout,
                    stderr=stderr,
                    cores=worker.cores,
                    preload=preload if worker.argv[0] == self._plan.interpreter else (),
                    tracer=os.getpid(),
                )
            )

        self._guardian = self._tree.start(
            workers,
            keeper=base.get(TEMPLATES, ""),
            keep=keep,
            at_start=at_start,
            at_loss=self._clean_up,
            files_limit=self._files_limit,
            farewell=self._farewell,
        )
        self._loop.watch(self._guardian.events, self._hear)
        os.close(null)
        self._pipes.begin()
        if self._input is not None:
            self._input.begin()
        for text in extension_locks.warnings(environ):  # only now: the ranks have not waited for it
            self._observer.say("warning", text)

    def _recording(self) -> dict[str, str]:
        """The variables by which ranks with NCCL say in which collectives they wait.

        Not for programs that may have other files, as a script in the place of Python may enter a container: PyTorch
        ends a rank where it cannot make its pipe.
        """
        plain = all(worker.argv[0] == self._plan.interpreter for worker in self._plan.workers)
        if self._accelerator not in ("cuda", "rocm") or self._error_folder < 0 or not plain:
            return {}
        try:
            with open(self._plan.interpreter, "rb") as file:
                is_program = file.read(4) == b"\x7fELF"
        except OSError:
            return {}
        return recording_environment(self._plan.error_dir) if is_program else {}

    def _clean_up(self) -> None:
        """Remove the job's files; run by whichever of agent, watcher and guardian is left."""
        self._at_loss()
        error_folder.remove(self._plan.error_dir)

    # -- streams ---------------------------------------------------------------------------------

    @property
    def has_input(self) -> bool:
        """Whether a rank reads from a pipe of ours."""
        return self._input is not None

    def add_input(self, on_taken: Callable[[], None], *, answers_of: int | None = None) -> int:
        """Make the pipe for a rank's stdin, into which `write_input` writes; return what the rank reads from.

        Args:
            answers_of: the rank, if it also writes there (`bireme.calls`).
        """
        if self._input is None:
            self._input = InputPipes(self._loop, on_taken)
        if answers_of is None:
            return self._input.add()
        import _socket

        ours, theirs = (end.detach() for end in _socket.socketpair())
        self._input.adopt(os.dup(ours))
        return self._pipes.add(answers_of, ANSWERS, (ours, theirs))

    def write_input(self, data: bytes) -> None:
        """Write to all ranks that read our stdin; b"" closes it."""
        if self._input is not None:  # else the ranks could not be started
            self._input.write(data)

    def _stream(self, rank: int, number: int) -> int:
        """Make what a rank writes to: a pseudo-terminal if its stream is shown on a terminal, otherwise a pipe."""
        window = self._output.window(rank, number) if self._output is not None else None
        if window is not None:
            try:
                pair = open_terminal(window)
            except OSError:  # there are no more of them
                return self._pipes.add(rank, number)
            self._terminals[rank, number] = pair[0]
            return self._pipes.add(rank, number, pair)
        return self._pipes.add(rank, number)

    def resize(self) -> None:
        """Pass a new size of our terminal on."""
        for (rank, number), fd in self._terminals.items():
            window = self._output and self._output.window(rank, number)
            if window:
                resize_terminal(fd, window)
        if self._terminals:
            self.signal_ranks(signal.SIGWINCH)

    def _chunk(self, rank: int, number: int, chunk: bytes) -> None:
        if self._files is not None and number != ANSWERS:
            self._files.write(rank, chunk)
        self._observer.chunk(rank, number, chunk)

    def _eof(self, rank: int, number: int) -> None:
        self._terminals.pop((rank, number), None)
        self._observer.eof(rank, number)

    def _gone(self) -> None:
        self.gone = True
        if self._taker is not None:
            self._taker.close()
        else:
            self._tell_recorded()
        self._observer.gone()
        if self.stuck:
            self._pipes.abandon()
        self._maybe_over()

    def _tell_recorded(self) -> None:
        """Tell what PyTorch has written by itself, which it does where a collective of NCCL takes too long."""
        prefix, ranks = self._rank_environ.get(RECORDED, ""), [worker.rank for worker in self._plan.workers]
        ours = prefix.startswith(self._plan.error_dir + os.sep)
        if ours and any(os.path.exists(f"{prefix}{rank}") for rank in ranks):
            from bireme.one_node import flight_recorder

            self._observer.stacks(flight_recorder.recorded(prefix, ranks))

    def _maybe_over(self) -> None:
        if self.gone and self._pipes.ended:
            self._observer.over()

    # -- commands --------------------------------------------------------------------------------

    def stop(self, signum: int = signal.SIGTERM) -> None:
        """End the ranks by the stop ladder."""
        self._on("stop", signum)

    def kill_now(self) -> None:
        """Kill what is left now, without waiting for the grace time."""
        self._on("kill now")

    def signal_ranks(self, signum: int, *, later: bool = False) -> None:
        """Send a signal to every rank's own process, not to its children, which may not handle it.

        Args:
            later: a rank that does not expect it yet gets it as soon as it does.
        """
        self._tell(*(("await", int(signum)) if later else ("rank", int(signum), "*")))

    def take_stacks(self) -> int:
        """Take the stacks of the ranks that are alive, and tell the observer, once; see `Crew.take_stacks`."""
        path = self._rank_environ.get("PATH", os.defpath)
        tool = self._tree.find_stack_tool(path, sys.executable, self._plan.interpreter)
        if tool:
            self._take_stacks(tool)
        else:
            self._bring_tool(self._take_stacks)
        return 1

    def _take_stacks(self, tool: str) -> None:
        if self._taker is not None:
            self._taker.close()
        self._taker = self._tree.take_stacks(self._loop, tool, self._alive, self._rank_environ, self._observer.stacks)

    @property
    def _alive(self) -> dict[int, int]:
        """The pid of each rank that is alive."""
        return {self._plan.workers[index].rank: pid for index, (pid, _) in sorted(self._up.items())}

    def measure(self) -> int:
        """Tell the observer what the ranks use; see `Crew.measure`."""
        if self._meter is None:
            gpus = {worker.rank: worker.slot for worker in self._plan.workers if self._accelerator == "cuda"}
            self._meter = self._tree.use_meter(self._rank_environ, gpus)
        self._observer.measured(self._meter.measure(self._alive))
        return 1

    def suspend(self) -> None:
        """Suspend everything below. By SIGSTOP, since SIGTSTP does not stop an orphaned process group."""
        self._tell("all", int(signal.SIGSTOP))

    def resume(self) -> None:
        """Resume what :meth:`suspend` stopped."""
        self._tell("all", int(signal.SIGCONT))

    # -- what the guardian reports ---------------------------------------------------------------

    def _hear(self) -> None:
        assert self._guardian is not None
        events = self._guardian.read()
        if events is None:
            self._guardian_gone()
            return
        for word, *args in events:
            if word == "up":
                index, pid, when = int(args[0]), int(args[1]), float(args[2])
                self._up[index] = pid, when
                self._observer.up(self._plan.workers[index].rank, pid, when)
            elif word == "down":
                self._worker_ended(int(args[0]), int(args[1]), float(args[2]), int(args[3]))
            elif word == "unborn":
                rank = self._plan.workers[int(args[0])].rank
                reason = f"cannot start rank {rank} on {self._plan.host}: {os.strerror(int(args[1]))}"
                self._observer.unfit(f"{reason} (check ulimit -u, and pids.max of the control group)")
            elif word in ("deaf", "later"):
                ranks = [self._plan.workers[int(index)].rank for index in args[1:]]
                self._deaf(int(args[0]), ranks, later=word == "later")
            elif word == "cold":
                self._cold(" ".join(args))
            elif word == "unguarded":
                reason = f"cannot start any process on {self._plan.host}: {os.strerror(int(args[0]))}"
                self._observer.unfit(f"{reason} (check ulimit -u, and pids.max of the control group)")
                self._end()
            elif word == "lost":
                self._lost = True
                self._observer.guardian_lost(int(args[0]))
            elif word == "swept":
                self.stuck = self._tree.describe([int(pid) for pid in args])
                self._end()
            elif word == "alone":
                # Without the watcher it is of no more use. It ends everything by itself: if we killed it, and were
                # killed in the middle of that, nobody would be left to go on.
                self._guardian.leave()
                self._patience = self._loop.after(KILL_WAIT, self._guardian_gone)
            elif word == "deserted":
                self._on("deserted")
            elif word == "empty":
                self._on("empty")

    def _deaf(self, signum: int, ranks: list[int], *, later: bool) -> None:
        from bireme.resources.pool import ranges

        name, many = signal_name(signum), len(ranks) > 1
        text = f"{'ranks' if many else 'rank'} {ranges(ranks)} on {self._plan.host} {'do' if many else 'does'} not get"
        until = " before they handle it" if later and many else " before it handles it" if later else ""
        self._observer.say(
            "warning", f"{text} {name}{until}: without a handler {name} would kill {'them' if many else 'it'}"
        )

    def _cold(self, reason: str) -> None:
        text = f"--preload: ranks on {self._plan.host} start without a template: {reason}"
        self._observer.say("warning", text)

    def _worker_ended(self, index: int, status: int, when: float, peak_memory: int) -> None:
        worker = self._plan.workers[index]
        pid, since = self._up.pop(index)
        code, by_signal = exit_code(status), os.WIFSIGNALED(status)
        killed = by_signal and os.WTERMSIG(status) == signal.SIGKILL
        if killed and self._ladder.state == "killing":
            self.killed += 1
        stopped = self._stopped_at is not None and when >= self._stopped_at
        memory_limit = self._tree.ran_out_of_memory(pid) if killed and not stopped else None
        end = RankEnd(
            rank=worker.rank,
            host=self._plan.host,
            device=f"{self._accelerator}:{worker.slot}" if self._accelerator != "cpu" else "cpu",
            pid=pid,
            code=code,
            by_signal=by_signal,
            seconds=when - since,
            peak_memory=peak_memory,
            stopped=stopped,
            out_of_memory=memory_limit is not None,
            memory_limit=memory_limit or "",
            recorded=_read_text(worker.env["TORCHELASTIC_ERROR_FILE"]) if code and not stopped else "",
        )
        self._observer.down(end, when)

    def _guardian_gone(self) -> None:
        """End of file from the guardian: expected after ``empty``; otherwise end its processes ourselves."""
        assert self._guardian is not None
        self._be_patient_no_more()
        self._loop.unwatch(self._guardian.events)
        if self._ladder.state == "done":
            return
        gone, self._guardian = self._guardian, None
        self.stuck = self._tree.sweep(gone, [pid for pid, _ in self._up.values()])
        if not self._lost:
            self._observer.guardian_lost(gone.pid)
        self._end()

    def _be_patient_no_more(self) -> None:
        if self._patience is not None:
            self._patience.cancel()

    def _end(self) -> None:
        """Go to the end of the ladder: no process is left."""
        self._on("kill now")
        self._on("empty")

    # -- the ladder ------------------------------------------------------------------------------

    def _on(self, event: Event, signum: int = signal.SIGTERM) -> None:
        steps, deadline = self._ladder.on(event, signum)
        if deadline != "keep":
            if self._timer is not None:
                self._timer.cancel()
            seconds = None if deadline == "cancel" else deadline
            self._timer = None if seconds is None else self._loop.after(seconds, lambda: self._on("deadline"))
        for step in steps:
            getattr(self, "_do_" + step.replace(" ", "_"))()

    def _do_signal(self) -> None:
        self._stopped_at = self._loop.now()
        self._tell("rank", int(self._ladder.signum), "*")
        self._tell("all", int(signal.SIGCONT))  # a suspended rank could not handle the signal
        self._do_sweep()
        if self._takes_stacks:
            self._late = self._loop.after(_LATE * self._ladder.grace, self._take_late)

    def _take_late(self) -> None:
        """Shortly before they are killed, find out what the ranks do that do not end."""
        if self._up and self._ladder.state == "stopping":
            self.take_stacks()

    def _do_sweep(self) -> None:
        self._tell("stray", int(signal.SIGTERM))

    def _do_kill(self) -> None:
        self._stopped_at = self._stopped_at or self._loop.now()
        self._tell("kill")

    def _do_give_up(self) -> None:
        """The guardian did not finish in time: kill it, and kill what is left ourselves."""
        assert self._guardian is not None
        gone, self._guardian = self._guardian, None
        self._be_patient_no_more()
        self._loop.unwatch(gone.events)
        self.stuck = self._tree.give_up(gone)

    def _do_finish(self) -> None:
        if self._stopped_at is not None:
            # Nothing is left below us. A process that carries the job's mark has escaped from the process tree.
            self._tree.kill_escaped(MARK, self._plan.env[MARK])
        self._gone()

    def _tell(self, *words: object) -> None:
        if self._guardian is not None:
            self._guardian.tell(*words)

    def close(self) -> None:
        """Restore the state of this process; close everything, even the pipes of a guardian that has not finished."""
        self._be_patient_no_more()
        if self._late is not None:
            self._late.cancel()
        if self._taker is not None:
            self._taker.close()
        if self._guardian is not None:
            self._loop.unwatch(self._guardian.events)
            done = self._ladder.state == "done"
            if done:
                self._clean_up()  # while the watcher would still do it if we were killed
            self._guardian.close(cleaned=done)
            if done:
                self._guardian.wait()
        self._tree.close()
        if self._meter is not None:
            self._meter.close()
        if self._input is not None:
            self._input.close()
        if self._files is not None:
            self._files.close()
        error_folder.remove(self._plan.error_dir)
        error_folder.remove_left_behind(self._plan.error_dir)
        if self._error_folder >= 0:
            os.close(self._error_folder)


def _read_text(path: str) -> str:
    """The content of a file that a rank wrote, at most 1 MiB; "" if it is not a regular file: a pipe might hang."""
    try:
        with open(open_regular(path, os.O_NOFOLLOW), errors="replace") as file:
            return file.read(1 << 20)
    except OSError:
        return ""
