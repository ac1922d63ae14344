"""Fault attribution: decides which node is at fault when several were lost."""

from __future__ import annotations

import time

from bireme.cluster.agent_handle import addresses_of
from bireme.resources.reach import reachable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from bireme.agent.session import Session
    from bireme.cluster.agent_handle import AgentHandle
    from bireme.cluster.cluster_job import ClusterJob


_LOOKS, _PAUSE = 3, 0.4
"""How often nodes are tried, and the seconds between: one that is just dying may still answer."""


def attribute_losses(session: Session, cluster_job: ClusterJob, members: Sequence[AgentHandle]) -> None:
    """Correct the session's verdict, which blames the node whose loss was noticed first."""
    lost = [member for member in members if member.state == "lost"]
    if len(lost) < 2 or session.verdict.cause != "agent lost":
        return
    if cluster_job.one_by_one:
        at_fault = {*session.verdict.hosts, *(member.name for member in lost)}
        session.verdict.hosts = tuple(member.name for member in members if member.name in at_fault)
    else:
        _blame_the_silent(session, lost, cluster_job.spec.ssh_port or 22)


def _blame_the_silent(session: Session, lost: Sequence[AgentHandle], port: int) -> None:
    """Blame the nodes that cannot be reached: a launcher process for all nodes ends every agent when it loses one."""
    for look in range(_LOOKS):
        time.sleep(_PAUSE if look else 0.0)
        dead = tuple(member.name for member in lost if not reachable(addresses_of(member.name), port, seconds=1.0))
        if dead:
            break
    if dead:
        note = f"agent lost on {', '.join(dead)}: the node no longer answers"
        session.trouble("agent lost", note, float("-inf"), dead)
