"""The processes below this one that belong to one job: kills what a guardian leaves, and what escaped from it."""

from __future__ import annotations

from bireme import signal_numbers as signal
from bireme.process import cgroup, guardian, kernel
from bireme.process.oom import OomWatch
from bireme.process.stop_ladder import KILL_WAIT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    from bireme.loop import Loop
    from bireme.one_node.stack_taker import StackTaker
    from bireme.one_node.use_meter import UseMeter
    from bireme.process.guardian import Handle
    from bireme.process.worker import WorkerStart
    from bireme.result.stacks import RankStack


class ProcessTree:
    """Makes this process a subreaper for as long as the job runs, so that orphans become its children."""

    def __init__(self) -> None:
        self._oom = OomWatch()
        self._spare: frozenset[int] = frozenset()
        self._was_subreaper = kernel.is_subreaper()

    def start(self, workers: Sequence[WorkerStart], *, keeper: str = "", **options: Any) -> Handle:
        """Fork the guardian and, through it, the workers. For the other arguments see `guardian.start`.

        Args:
            keeper: the name of a keeper of templates that is to be the guardian, if it can; "": there is none.
        """
        self._spare = frozenset(kernel.children())  # children of the program that embeds us
        self._was_subreaper = kernel.is_subreaper()
        kernel.become_subreaper()
        if keeper and all(worker.preload for worker in workers):
            from bireme.process.keeper import borrow

            if borrowed := borrow(keeper, workers, keep=options["keep"]):
                # If it is lost with its watcher, which is our child, what is below comes to us, sooner or later.
                self._spare -= {pid for pid in self._spare if borrowed.pid in kernel.descendants([pid])}
                return borrowed
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

    def find_stack_tool(self, path: str, *beside: str) -> str:
        """The path of py-spy on this machine; see `stack_taker.find_tool`."""
        from bireme.one_node import stack_taker

        return stack_taker.find_tool(path, *beside)

    def take_stacks(
        self,
        loop: Loop,
        tool: str,
        ranks: Mapping[int, int],
        environ: Mapping[str, str],
        on_end: Callable[[tuple[RankStack, ...]], object],
    ) -> StackTaker:
        """Take the stacks of ranks that have this environment; ``tool``: the path of py-spy, "": there is none."""
        from bireme.one_node import stack_taker

        return stack_taker.StackTaker(loop, tool, ranks, environ, on_end)

    def use_meter(self, environ: Mapping[str, str], gpus: Mapping[int, str]) -> UseMeter:
        """What measures what ranks use; for the arguments see there."""
        from bireme.one_node import use_meter

        return use_meter.UseMeter(environ, gpus)

    def describe(self, pids: Sequence[int]) -> tuple[str, ...]:
        """``pid (name, state)`` of each process that still exists."""
        stats = ((pid, kernel.stat_of(pid)) for pid in pids)
        return tuple(f"{pid} ({stat[0]}, state {stat[1]})" for pid, stat in stats if stat is not None)

    def close(self) -> None:
        """Restore the state of this process."""
        kernel.become_subreaper(self._was_subreaper)
        self._oom.close()
