"""The specification of a job on many nodes, as one value: nodes, launcher commands, exported variables, options."""

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
    """A job on many nodes.

    Attributes:
        spec: the job as the user described it.
        hosts: how each node is reached.
        slots: the slots that the pool declares for each node; ``None``: the node is asked.
        resolve: computes the active resources once the slots of all nodes are known.
        exports: the environment variables that are sent to other nodes.
        environ: the environment of the launcher processes.
        commands: the command line of each launcher process.
        backend: the launcher.
        heartbeat: seconds without a sign of life after which a node is lost.
        log_dir: where the ranks' log files are written; None: nowhere.
        checked: called with the agents when all are fit; the job then ends with the returned text on stdout.
            None: the ranks are started.
        epoch: of an elastic job; None: the job is not elastic.
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
        """Whether each node has a launcher process of its own."""
        return self.backend.CHANNEL == "stdio" or self.epoch is not None
