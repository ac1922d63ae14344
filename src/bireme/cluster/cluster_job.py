"""What the crew of many nodes is to do, as one value."""

from __future__ import annotations

from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bireme.backends.base import Backend, HostLaunch
    from bireme.cluster.agent_handle import AgentHandle
    from bireme.cluster.epoch import Epoch
    from bireme.job import JobSpec
    from bireme.resources.pool import Pool


class ClusterJob(Value):
    """What the crew of many nodes is to do.

    ``hosts`` and ``slots``: the nodes, with the slots that the pool gives them, ``None`` where the node is asked.
    ``resolve``: the active resources, once the slots of all nodes are known. ``exports``: the variables that
    travel. ``heartbeat`` in seconds. ``checked``: called with the members when all are fit, to end after the preflight
    with what it says on stdout; None: the job is run. ``epoch``: of an elastic job.
    """

    spec: JobSpec
    hosts: tuple[HostLaunch, ...]
    slots: tuple[tuple[str, ...] | None, ...]
    resolve: Callable[[Pool], Pool]
    exports: Mapping[str, str]
    environ: Mapping[str, str]
    commands: tuple[tuple[str, ...], ...]
    backend: Backend
    heartbeat: float
    log_dir: str | None = None
    checked: Callable[[Sequence[AgentHandle]], str] | None = None
    epoch: Epoch | None = None

    @property
    def one_by_one(self) -> bool:
        """Whether each node has an engine process of its own."""
        return self.backend.CHANNEL == "stdio" or self.epoch is not None
