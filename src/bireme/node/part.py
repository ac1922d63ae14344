"""One node's part of a job, the same here and in an agent: its processes, pipes and log files.

The part is *gone* when no process of it is left, and *over* when all its pipes have ended too.
"""

from __future__ import annotations

import os

from bireme import signal_numbers as signal
from bireme.logs.rankfiles import RankFiles
from bireme.node.pipes import ERR, OUT, Pipes
from bireme.node.processes import NodeProcesses, remove_flat_directory
from bireme.planning.environment import JOB_NAME

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bireme.logs.output import JobOutput
    from bireme.loop import Loop
    from bireme.node.pipes import InputPipes
    from bireme.node.processes import Observer, ProcessTree
    from bireme.planning.start import NodePlan


class NodePart:
    """The ranks of one node, from their start until nothing is left of them.

    Args:
        accelerator: the kind of device that the plan's slots are.
        rest: seconds after which an unfinished line counts as resting.
        log_dir: the directory for the ranks' log files; ``None``: none are written.
        at_loss: called in guardian or watcher if this process is lost, and here at the end.
        farewell: seconds between SIGTERM and SIGKILL if this process is lost.

    Attributes:
        gone: whether no process is left.
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
        at_loss: Callable[[], object] = lambda: None,
        farewell: float = 0.0,
    ) -> None:
        self._loop, self._plan, self._observer = loop, plan, observer
        self.gone = False
        self._files: RankFiles | None = None
        if log_dir is not None:
            ranks = [worker.rank for worker in plan.workers]
            self._files = RankFiles(log_dir, ranks, observer.complain, plan.env.get(JOB_NAME, ""))
        self._input: InputPipes | None = None
        self._output: JobOutput | None = None
        self._terminals: dict[tuple[int, int], int] = {}  # (rank, stream): the descriptor that we read from
        self._pipes = Pipes(loop, self._chunk, observer.rested, self._eof, self._maybe_over, rest=rest)
        self._processes = NodeProcesses(
            loop,
            plan,
            accelerator=accelerator,
            grace=grace,
            observer=observer,
            on_gone=self._gone,
            tree=tree,
            at_loss=at_loss,
            farewell=farewell,
        )
        processes = self._processes
        self.stop, self.kill_now, self.signal_ranks = processes.stop, processes.kill_now, processes.signal_ranks
        self.suspend, self.resume = processes.suspend, processes.resume
        self.hold_output, self.release_output = self._pipes.pause, self._pipes.resume

    @property
    def killed(self) -> int:
        """How many ranks had to be killed."""
        return self._processes.killed

    @property
    def stuck(self) -> tuple[str, ...]:
        """Processes that even SIGKILL did not end."""
        return self._processes.stuck

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
        streams, screens = [], {}
        columns = output.columns_beside_labels() if output is not None else 0
        for worker in self._plan.workers:
            rank = worker.rank
            reads, stderr = stdin(rank, null), self._stream(rank, ERR)
            stdout = stderr if output is not None and output.shows_as_one(rank) else self._stream(rank, OUT)
            streams.append((reads, stdout, stderr))
            # Not where a terminal of its own tells a rank its width, also when it changes. Some ask stdin first.
            if columns and (reads != null or {(rank, OUT), (rank, ERR)} - self._terminals.keys()):
                screens[rank] = {"COLUMNS": str(columns)}
        self._processes.start(environ, streams, screens=screens, keep=keep, at_start=at_start)
        os.close(null)
        self._pipes.begin()
        if self._input is not None:
            self._input.begin()

    @property
    def has_input(self) -> bool:
        """Whether a rank reads from a pipe of ours."""
        return self._input is not None

    def add_input(self, on_taken: Callable[[], None]) -> int:
        """Make the pipe for a rank's stdin, into which `write_input` writes; return what the rank reads from."""
        if self._input is None:
            from bireme.node.pipes import InputPipes

            self._input = InputPipes(self._loop, on_taken)
        return self._input.add()

    def write_input(self, data: bytes) -> None:
        """Write to all ranks that read our stdin; b"" closes it."""
        if self._input is not None:  # else the ranks could not be started
            self._input.write(data)

    def _stream(self, rank: int, number: int) -> int:
        """Make what a rank writes to: a pseudo-terminal if its stream is shown on a terminal, otherwise a pipe."""
        window = self._output.window(rank, number) if self._output is not None else None
        if window is not None:
            from bireme.node.pipes import open_terminal

            try:
                pair = open_terminal(window)
            except OSError:  # there are no more of them
                return self._pipes.add(rank, number)
            self._terminals[rank, number] = pair[0]
            return self._pipes.add(rank, number, pair)
        return self._pipes.add(rank, number)

    def resize(self) -> None:
        """Pass a new size of our terminal on."""
        from bireme.node.pipes import resize_terminal

        for (rank, number), fd in self._terminals.items():
            window = self._output and self._output.window(rank, number)
            if window:
                resize_terminal(fd, window)
        if self._terminals:
            self._processes.signal_ranks(signal.SIGWINCH)

    def close(self) -> None:
        """Close everything, and remove the directory for error files."""
        self._processes.close()
        if self._input is not None:
            self._input.close()
        if self._files is not None:
            self._files.close()
        remove_flat_directory(self._plan.error_dir)

    # -- events ----------------------------------------------------------------------------------

    def _chunk(self, rank: int, number: int, chunk: bytes) -> None:
        if self._files is not None:
            self._files.write(rank, chunk)
        self._observer.chunk(rank, number, chunk)

    def _eof(self, rank: int, number: int) -> None:
        self._terminals.pop((rank, number), None)
        self._observer.eof(rank, number)

    def _gone(self) -> None:
        self.gone = True
        self._observer.gone()
        if self.stuck:
            self._pipes.abandon()
        self._maybe_over()

    def _maybe_over(self) -> None:
        if self.gone and self._pipes.ended:
            self._observer.over()
