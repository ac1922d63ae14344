"""What runs on many nodes, as one value: the job, its nodes, how their agents are started, and what is sent to them."""

from __future__ import annotations

from bireme.errors import counted
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from bireme.cluster.agent_launch import AgentLaunch
    from bireme.cluster.node_selection import Nodes
    from bireme.job import JobSpec
    from bireme.planning.exports import Exports
    from bireme.resources.pool import Pool
    from bireme.ship.source import SourceTree


class ClusterJob(Value):
    """A job on many nodes, or what nodes are asked by a preflight.

    Attributes:
        exports: the environment variables that are sent to other nodes.
        accelerator: the kind of device that every node must have; "": any.
        log_dir: where the ranks' log files are written; None: nowhere.
        tree: the files that are sent to the nodes (``--ship``); None: they have them.
    """

    spec: JobSpec
    nodes: Nodes
    launch: AgentLaunch
    exports: Mapping[str, str]
    accelerator: str = ""
    log_dir: str | None = None
    tree: SourceTree | None = None

    @property
    def one_by_one(self) -> bool:
        """Whether each node has a launcher process of its own."""
        return self.launch.one_by_one

    def notes(self, exported: Exports) -> Iterator[tuple[str, str]]:
        """The messages to show before anything starts, each with its level."""
        spec, pool, number = self.spec, self.nodes.pool, len(self.nodes.entries)
        names = ", ".join(sorted(exported.variables)) or "none"
        yield "debug", f"{number} nodes of {pool.source}, by {self.launch.backend.NAME}; exported variables: {names}"
        if spec.attempt:
            return  # the first attempt has said it
        if not spec.hosts and spec.hostfile is None and not spec.elastic:
            yield "info", f"{counted(number, 'node')}, from {pool.source}{pool.by_tasks()}"
        yield from exported.notes()
        if self.tree is not None:
            yield from (("warning", note) for note in self.tree.notes)

    @staticmethod
    def find_tree(spec: JobSpec, environ: Mapping[str, str]) -> SourceTree | None:
        """The files to send to the nodes; ``None``: the nodes have them.

        Raises:
            BadInputError: there is no such tree, or it is too large.
        """
        if spec.ship is None:
            return None
        from bireme.ship import source

        return source.find(spec, environ)

    def active(self, known: Pool) -> Pool:
        """The active resources, once the slots of the nodes are known.

        Raises:
            BadInputError: a filter names an unknown node or slot, or leaves nothing.
        """
        return self.nodes.active(self.spec, known)
