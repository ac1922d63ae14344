"""The preflight: asks nodes, through their agents, whether they are fit for a job; returns facts or problems for each.

``bireme check``, the tuner and the probe of returning nodes call it. A job asks its nodes in the same way: its crew is
an `AgentCrew` too, which starts the ranks after the answers.
"""

from __future__ import annotations

from bireme.backends.base import CONNECT_TIMEOUT
from bireme.cluster import agent_launch
from bireme.cluster.agent_crew import AgentCrew
from bireme.cluster.cluster_job import ClusterJob
from bireme.node.machine import MACHINE
from bireme.process.pid_file import PidFile
from bireme.runner import session
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from bireme.cluster.agent_handle import AgentHandle
    from bireme.cluster.node_selection import Nodes
    from bireme.control.messages import Hello
    from bireme.job import JobSpec
    from bireme.planning.exports import Exports
    from bireme.result.outcome import Outcome
    from bireme.runner.session import Session


class NodeAnswer(Value):
    """What a preflight has found out about one node.

    Attributes:
        name: the node's name in the pool.
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
        accelerator: the kind of device that every node must have; "": any.
        exported: the exported variables; ``None``: as they are now.
        connect_timeout: seconds that a node may take to accept a connection.

    Raises:
        BadInputError: the launcher is not installed or cannot reach a node, or a file with variables cannot be read.
        UnfitError: no port is free for the agents to connect to.
    """
    exported = agent_launch.what_travels(spec, environ) if exported is None else exported
    tree = ClusterJob.find_tree(spec, environ)
    launch = agent_launch.prepare(spec, environ, nodes, launcher, connect_timeout=connect_timeout)
    job = ClusterJob(
        spec=spec, nodes=nodes, launch=launch, exports=exported.variables, accelerator=accelerator, tree=tree
    )
    crews: list[AgentCrew] = []

    def crew(of_session: Session) -> AgentCrew:
        crews.append(AgentCrew(of_session, job, PidFile(None), MACHINE))
        return crews[0]

    outcome = session.run(spec, job.notes(exported), crew)
    return Preflight(tuple(map(_answer, crews[0].agents)), outcome)


def _answer(agent: AgentHandle) -> NodeAnswer:
    if agent.state == "ready":
        return NodeAnswer(agent.name, agent.slots, agent.hello)
    return NodeAnswer(agent.name, agent.slots, None, tuple(agent.problems) or (agent.hint or "it did not answer",))
