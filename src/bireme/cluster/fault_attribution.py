"""Several nodes were lost: decides which of them is at fault."""

from __future__ import annotations

from bireme.cluster.agent_handle import addresses_of
from bireme.resources.reach import reachable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from bireme.agent.session import Session
    from bireme.cluster.agent_handle import AgentHandle
    from bireme.cluster.cluster_job import ClusterJob


def attribute_losses(session: Session, cluster_job: ClusterJob, members: Sequence[AgentHandle]) -> None:
    """Put right the session's verdict, which blames whom it has heard of first."""
    lost = [member for member in members if member.state == "lost"]
    if len(lost) < 2 or session.verdict.cause != "agent lost":
        return
    if cluster_job.one_by_one:
        at_fault = {*session.verdict.hosts, *(member.name for member in lost)}
        session.verdict.hosts = tuple(member.name for member in members if member.name in at_fault)
    else:
        _blame_the_silent(session, lost, cluster_job.spec.ssh_port or 22)


def _blame_the_silent(session: Session, lost: Sequence[AgentHandle], port: int) -> None:
    """An engine of all nodes takes every agent along when it loses one: the one that is silent is to blame."""
    dead = tuple(member.name for member in lost if not reachable(addresses_of(member.name), port, seconds=1.0))
    if dead:
        note = f"agent lost on {', '.join(dead)}: the node does not answer any more"
        session.trouble("agent lost", note, float("-inf"), dead)
