"""The local crew: runs the ranks of this machine directly, without an agent."""

from __future__ import annotations

import os

from bireme import signal_numbers as signal
from bireme.agent.node import NodeEvents, NodeProcesses, remove_flat_directory
from bireme.agent.pipes import Pipes
from bireme.logs.console import ERR, OUT
from bireme.logs.rankfiles import RankFiles
from bireme.planning.environment import JOB_NAME
from bireme.process.process_tree import ProcessTree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bireme.agent.rank_input import RankPipes
    from bireme.agent.session import Session
    from bireme.logs.output import JobOutput
    from bireme.planning.start import NodePlan, StartPlan


class LocalCrew:
    """A crew of one node: implements :class:`bireme.agent.crew_interface.Crew`.

    Args:
        plan: the job; ``node`` is the part of it that runs here.
        environ: what the ranks inherit, before the plan's own variables.
        grace: seconds between the stop signal and SIGKILL.
        log_dir: the directory for the ranks' log files; ``None``: none are written.
        keep: descriptors to hold as long as any process lives (the port's lock).
        at_start: called in the guardian, before the ranks are forked.
        at_loss: called in guardian or watcher if this process is lost, and here at the end.
        farewell: seconds between SIGTERM and SIGKILL if this process is lost.
    """

    DEFAULT_STDIN: str = "0"

    def __init__(
        self,
        session: Session,
        plan: StartPlan,
        node: NodePlan,
        environ: Mapping[str, str],
        *,
        grace: float,
        log_dir: str | None = None,
        keep: Sequence[int] = (),
        at_start: Callable[[], object] = lambda: None,
        at_loss: Callable[[], object] = lambda: None,
        farewell: float = 0.0,
    ) -> None:
        self._at_start = at_start
        self._session, self._plan, self._node_plan = session, plan, node
        self._environ, self._keep = environ, keep
        self._over = False
        self._input: RankPipes | None = None
        self._output: JobOutput | None = None
        self._terminals: dict[tuple[int, int], int] = {}  # (rank, stream): the descriptor that we read from
        self._files = self._rank_files(log_dir) if log_dir is not None else None
        self._pipes = Pipes(session.loop, self._chunk, session.rested, self._eof, self._maybe_over, rest=session.rest)
        listener = NodeEvents(
            up=self._up, down=session.down, guardian_lost=self._guardian_lost, unfit=self._unfit, over=self._node_over
        )
        self._node = NodeProcesses(
            session.loop,
            node,
            accelerator=plan.accelerator,
            grace=grace,
            listener=listener,
            tree=ProcessTree(),
            at_loss=at_loss,
            farewell=farewell,
        )
        self.stop, self.urge, self.signal_ranks = self._node.stop, self._node.urge, self._node.signal_ranks
        self.suspend, self.resume = self._node.suspend, self._node.resume
        self.hold_output, self.release_output = self._pipes.pause, self._pipes.resume

    @property
    def killed(self) -> int:
        """How many ranks had to be killed."""
        return self._node.killed

    @property
    def stuck(self) -> tuple[str, ...]:
        """Processes that even SIGKILL did not end."""
        return self._node.stuck

    @property
    def logs(self) -> tuple[str, ...]:
        """The ranks' log files."""
        return tuple(self._files.paths.values()) if self._files is not None else ()

    def start(self) -> None:
        """Fork the ranks."""
        output = self._output = self._session.planned(self._plan)
        null = os.open(os.devnull, os.O_RDWR)
        pipes = []
        for worker in self._node_plan.workers:
            stdin = self._stdin(null) if self._session.gets_stdin(worker.rank) else null
            stderr = self._stream(worker.rank, ERR)
            as_one = output.shows_as_one(worker.rank)
            pipes.append((stdin, stderr if as_one else self._stream(worker.rank, OUT), stderr))
        columns = output.columns_beside_labels()
        # Not where a terminal of its own tells a rank its width, also when it changes. Some programs ask stdin first.
        screens = {
            worker.rank: {"COLUMNS": str(columns)}
            for worker, (stdin, *_) in zip(self._node_plan.workers, pipes, strict=True)
            if columns and (stdin != null or {(worker.rank, OUT), (worker.rank, ERR)} - self._terminals.keys())
        }
        self._node.start(
            self._environ,
            pipes,
            screens=screens,
            keep=self._keep,
            at_start=self._at_start,
        )
        os.close(null)
        self._pipes.begin()
        if self._input is not None:
            self._input.begin()

    def _stdin(self, null: int) -> int:
        """What a rank reads from: our stdin itself, or a pipe with a copy of it if all ranks read it."""
        ours = self._session.terminal.stdin_for_ranks(null)
        if ours == null or self._session.spec.stdin != "all":
            return ours
        if self._input is None:
            from bireme.agent.rank_input import RankPipes, StdinReader

            reader = StdinReader(self._session.loop, self._session.terminal, lambda data: pipes.write(data))
            pipes = self._input = RankPipes(self._session.loop, reader.read_on)
            reader.read_on()
        return self._input.add()

    def _stream(self, rank: int, number: int) -> int:
        """Make what a rank writes to: a pseudo-terminal if we show its stream on a terminal, otherwise a pipe."""
        assert self._output is not None
        window = self._output.window(rank, number)
        if window is not None:
            from bireme.agent import pseudo_terminal

            try:
                pair = pseudo_terminal.open_pair(window)
            except OSError:  # there are no more of them
                return self._pipes.add(rank, number)
            self._terminals[rank, number] = pair[0]
            return self._pipes.add(rank, number, pair)
        return self._pipes.add(rank, number)

    def resize(self) -> None:
        """Pass a new size of our terminal on."""
        from bireme.agent import pseudo_terminal

        for (rank, number), fd in self._terminals.items():
            window = self._output and self._output.window(rank, number)
            if window:
                pseudo_terminal.resize(fd, window)
        if self._terminals:
            self._node.signal_ranks(signal.SIGWINCH)

    def close(self) -> None:
        """Close everything and remove the directory for error files."""
        self._node.close()
        if self._input is not None:
            self._input.close()
        if self._files is not None:
            self._files.close()
        remove_flat_directory(self._node_plan.error_dir)

    # -- events ----------------------------------------------------------------------------------

    def _rank_files(self, directory: str) -> RankFiles:
        ranks = [worker.rank for worker in self._node_plan.workers]
        name = self._node_plan.env.get(JOB_NAME, "")
        return RankFiles(directory, ranks, lambda text: self._session.console.say("error", text), name)

    def _chunk(self, rank: int, number: int, chunk: bytes) -> None:
        if self._files is not None:
            self._files.write(rank, chunk)
        self._session.chunk(rank, number, chunk)

    def _eof(self, rank: int, number: int) -> None:
        self._terminals.pop((rank, number), None)
        self._session.eof(rank, number)

    def _up(self, rank: int, pid: int, _when: float) -> None:
        self._session.up(rank, pid)

    def _guardian_lost(self, pid: int) -> None:
        note = f"the guardian of {self._node_plan.host} (pid {pid}) was killed"
        self._session.trouble("agent lost", note, self._session.loop.now())

    def _unfit(self, reason: str) -> None:
        self._session.trouble("unfit", reason, self._session.loop.now())

    def _node_over(self) -> None:
        self._over = True
        self._session.gone()
        if self._node.stuck:
            self._pipes.abandon()
        self._maybe_over()

    def _maybe_over(self) -> None:
        """Finish once all processes are gone and all pipes are closed."""
        if self._over and self._pipes.ended:
            self._session.over()
