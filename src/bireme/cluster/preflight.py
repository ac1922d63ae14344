"""The preflight: asks nodes, through their agents, whether they are fit for a job; returns facts or problems for each.

``bireme check``, the tuner and the probe of returning nodes call it. A job asks its nodes in the same way: its crew
starts the ranks after the answers.
"""

from __future__ import annotations

from bireme.backends.base import CONNECT_TIMEOUT
from bireme.cluster import cluster_job
from bireme.cluster.cluster_crew import ClusterCrew, WholeJob
from bireme.one_node.machine import MACHINE
from bireme.process.pid_file import PidFile
from bireme.runner import session
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from bireme.cluster.agent_handle import AgentHandle
    from bireme.cluster.connections import NodeConnections
    from bireme.cluster.node_selection import Nodes
    from bireme.control.messages import Hello
    from bireme.job import JobSpec
    from bireme.planning.exports import Exports
    from bireme.result.outcome import Outcome
    from bireme.runner.session import Session


class NodeAnswer(Value):
    """What a preflight has found out about one node.

    Attributes:
        declared: the slots that the pool declares; ``None``: the node was asked for them.
        facts: about a node that is fit; ``None``: it is not.
    """

    name: str
    declared: tuple[str, ...] | None
    facts: Hello | None
    problems: tuple[str, ...] = ()


class Preflight(Value):
    """The result of a preflight: an answer for each node, and how its session ended (a signal may have stopped it)."""

    answers: tuple[NodeAnswer, ...]
    outcome: Outcome


def preflight(
    spec: JobSpec,
    environ: Mapping[str, str],
    nodes: Nodes,
    launcher: str,
    *,
    accelerator: str = "",
    exported: Exports | None = None,
    connect_timeout: int = CONNECT_TIMEOUT,
) -> Preflight:
    """Ask nodes whether they are fit for a job. Starts an agent on each, and returns when all have ended.

    Args:
        exported: the exported variables; ``None``: as they are now.
    """
    exported = cluster_job.what_travels(spec, environ) if exported is None else exported
    job = cluster_job.prepare(
        spec, environ, nodes, launcher, exported, accelerator=accelerator, connect_timeout=connect_timeout
    )
    crews: list[ClusterCrew] = []

    def crew(of_session: Session) -> ClusterCrew:
        crews.append(ClusterCrew(of_session, job, PidFile(None), MACHINE, _Question(spec, lambda _: True)))
        return crews[0]

    outcome = session.run(spec, job.notes(exported), crew)
    return Preflight(tuple(map(_answer, crews[0].nodes.agents)), outcome)


class _Question(WholeJob):
    """Starts nothing: which nodes are fit, the answers tell."""

    starts = False

    def unfit(self, nodes: NodeConnections) -> list[AgentHandle]:
        """The unfit nodes; of an elastic job also those on which the filters leave no slots."""
        if self._spec.elastic:
            nodes.answers.judge_by_filters()
        return super().unfit(nodes)


def _answer(agent: AgentHandle) -> NodeAnswer:
    if agent.state == "ready":
        return NodeAnswer(agent.name, agent.slots, agent.hello)
    return NodeAnswer(agent.name, agent.slots, None, tuple(agent.problems) or (agent.hint or "it did not answer",))
