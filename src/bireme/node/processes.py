"""The processes of one node: starts, signals and stops the ranks; at the end, hunts those that escaped the tree."""

from __future__ import annotations

import os

from bireme import signal_numbers as signal
from bireme.planning.environment import MARK
from bireme.process import cgroup, guardian, kernel
from bireme.process.oom import OomWatch
from bireme.process.stop_ladder import KILL_WAIT, Ladder
from bireme.process.worker import WorkerStart
from bireme.regular_file import open_regular
from bireme.result.outcome import RankEnd, exit_code

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any, Protocol

    from bireme.loop import Loop, Timer
    from bireme.planning.start import NodePlan
    from bireme.process.guardian import Handle
    from bireme.process.stop_ladder import Event

    class Observer(Protocol):
        """Is told what happens to a node's part. Times are monotonic seconds; stream 1 is stdout, 2 is stderr."""

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

        def guardian_lost(self, pid: int) -> None:
            """The guardian or the watcher was killed."""

        def unfit(self, reason: str) -> None:
            """A rank could not be started."""

        def complain(self, text: str) -> None:
            """Something is wrong with a file, such as a log that cannot be written."""

        def gone(self) -> None:
            """No process is left."""

        def over(self) -> None:
            """No process is left, and all pipes have ended."""


class ProcessTree:
    """Makes this process a subreaper for as long as the job runs, so that orphans become its children."""

    def __init__(self) -> None:
        self._oom = OomWatch()
        self._spare: frozenset[int] = frozenset()
        self._was_subreaper = kernel.is_subreaper()

    def start(self, workers: Sequence[WorkerStart], **options: Any) -> Handle:
        """Fork the guardian and, through it, the workers. The arguments are those of `guardian.start`."""
        self._spare = frozenset(kernel.children())  # children of the program that embeds us
        self._was_subreaper = kernel.is_subreaper()
        kernel.become_subreaper()
        return guardian.start(workers, **options)

    def sweep(self, gone: Handle, workers: Iterable[int]) -> tuple[str, ...]:
        """Kill what guardian and watcher left; the workers died with them, and what these left is our child now."""
        gone.close()
        gone.wait()
        group = cgroup.named_by(gone.pid)
        cgroup.kill(group)
        if not kernel.LINUX:  # no parent-death signal: each worker leads a process group
            for pid in workers:
                kernel.send(-pid, signal.SIGKILL)
        stuck = self.describe(kernel.kill_below(self._spare, KILL_WAIT))
        cgroup.remove(group)
        return stuck

    def give_up(self, guardian_: Handle) -> tuple[str, ...]:
        """The guardian did not finish in time: kill it and what is left, and return what did not die."""
        guardian_.close()
        kernel.send(guardian_.pid, signal.SIGKILL)
        return self.describe(kernel.kill_below(self._spare, 1.0))

    def kill_escaped(self, name: str, value: str) -> None:
        """Kill every process with ``name=value`` in its environment, wherever it is: it has escaped from the tree."""
        for pid in kernel.marked(name, value):
            kernel.send(pid, signal.SIGKILL)

    def ran_out_of_memory(self, pid: int) -> str | None:
        """Which limit the kernel's out-of-memory killer enforced when it ended this process; see `OomWatch.struck`."""
        return self._oom.struck(pid)

    def describe(self, pids: Sequence[int]) -> tuple[str, ...]:
        """``pid (name, state)`` of each process that still exists."""
        stats = ((pid, kernel.stat_of(pid)) for pid in pids)
        return tuple(f"{pid} ({stat[0]}, state {stat[1]})" for pid, stat in stats if stat is not None)

    def close(self) -> None:
        """Restore the state of this process."""
        kernel.become_subreaper(self._was_subreaper)
        self._oom.close()


class NodeProcesses:
    """The processes of one node's part of a job, from their start until none is left."""

    def __init__(
        self,
        loop: Loop,
        plan: NodePlan,
        *,
        accelerator: str,
        grace: float,
        observer: Observer,
        on_gone: Callable[[], None],
        tree: ProcessTree,
        at_loss: Callable[[], object] = lambda: None,
        farewell: float = 0.0,
    ) -> None:
        self._loop, self._plan, self._observer, self._on_gone = loop, plan, observer, on_gone
        self._accelerator = accelerator
        self._tree = tree
        self._at_loss, self._farewell = at_loss, farewell
        self._ladder = Ladder(grace)
        self._timer: Timer | None = None
        self._guardian: Handle | None = None
        self._patience: Timer | None = None  # with a guardian that is to end by itself
        self._lost = False
        self._up: dict[int, tuple[int, float]] = {}  # index of a live worker → (pid, start time)
        self._stopped_at: float | None = None
        self._files_limit = kernel.allow_files(4 * len(plan.workers))  # first: the caller opens their pipes
        self.killed = 0
        self.stuck: tuple[str, ...] = ()

    # -- start -----------------------------------------------------------------------------------

    def start(
        self,
        environ: Mapping[str, str],
        pipes: Sequence[tuple[int, int, int]],
        *,
        screens: Mapping[int, Mapping[str, str]] = {},
        keep: Sequence[int] = (),
        at_start: Callable[[], object] = lambda: None,
    ) -> None:
        """Fork the guardian and, through it, the workers.

        Args:
            pipes: (stdin, stdout, stderr) of each worker, in the plan's order.
        """

        def prepare() -> None:
            os.mkdir(self._plan.error_dir, 0o700)
            at_start()

        base = {**environ, **self._plan.env}
        starts = [
            WorkerStart(
                argv=worker.argv,
                env={**base, **screens.get(worker.rank, {}), **worker.env},
                cwd=self._plan.cwd,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                cores=worker.cores,
            )
            for worker, (stdin, stdout, stderr) in zip(self._plan.workers, pipes, strict=True)
        ]
        self._guardian = self._tree.start(
            starts,
            keep=keep,
            at_start=prepare,
            at_loss=self._clean_up,
            files_limit=self._files_limit,
            farewell=self._farewell,
        )
        self._loop.watch(self._guardian.events, self._hear)

    def _clean_up(self) -> None:
        """Remove the job's files; run by whichever of agent, watcher and guardian is left."""
        self._at_loss()
        remove_flat_directory(self._plan.error_dir)

    # -- commands ---------------------------------------------------------------------

    def stop(self, signum: int = signal.SIGTERM) -> None:
        """End the ranks by the stop ladder."""
        self._on("stop", signum)

    def kill_now(self) -> None:
        """Kill what is left now, without waiting for the grace time."""
        self._on("kill now")

    def signal_ranks(self, signum: int) -> None:
        """Send a signal to every rank's own process, not to its children, which may not handle it."""
        self._tell("rank", int(signum), "*")

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
        self._on_gone()

    def _tell(self, *words: object) -> None:
        if self._guardian is not None:
            self._guardian.tell(*words)

    def close(self) -> None:
        """Restore the state of this process, and close the guardian's pipes even if it has not finished."""
        self._be_patient_no_more()
        if self._guardian is not None:
            self._loop.unwatch(self._guardian.events)
            done = self._ladder.state == "done"
            if done:
                self._clean_up()  # while the watcher would still do it if we were killed
            self._guardian.close(cleaned=done)
            if done:
                self._guardian.wait()
        self._tree.close()


def _read_text(path: str) -> str:
    """The content of a file that a rank wrote, at most 1 MiB; "" if it is not a regular file: a pipe might hang."""
    try:
        with open(open_regular(path, os.O_NOFOLLOW), errors="replace") as file:
            return file.read(1 << 20)
    except OSError:
        return ""


def remove_flat_directory(path: str) -> None:
    """Remove a directory that holds only files; symbolic links are not followed (``shutil`` is slow to import)."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        for name in os.listdir(fd):
            os.unlink(name, dir_fd=fd)
        os.rmdir(path)
    except OSError:
        pass
    finally:
        os.close(fd)
