"""Node plans: turns the nodes' answers into what each node starts. Pure, except for the job's random id."""

from __future__ import annotations

from bireme.errors import BadInputError
from bireme.planning.start import start_plan
from bireme.planning.start_facts import job_facts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from bireme.cluster.agent_handle import AgentHandle
    from bireme.cluster.cluster_job import ClusterJob
    from bireme.planning.start import NodePlan, StartPlan


def node_plans(
    cluster_job: ClusterJob, members: Sequence[AgentHandle], master_addr: str
) -> tuple[StartPlan, dict[str, NodePlan]]:
    """Make the start plan, and look up the plan of each node.

    Args:
        members: the agents in the order of their ranks; the first holds the rendezvous port.
        master_addr: the address at which the others reach the first.

    Returns:
        The plan, and the plan of each node that has slots, by its name in the pool.

    Raises:
        BadInputError: the filters leave no slots on the first node, or in the whole pool.
    """
    spec, first = cluster_job.spec, members[0]
    active = cluster_job.active({member.name: member.hello.slots for member in members})
    if first.name not in active:  # it holds the port, at an address of its own
        what = f"the filters leave no slots on {first.name}, the first node"
        raise BadInputError(what, hint=f"exclude the whole node: --exclude {first.name}", where="--exclude")
    declared = None not in cluster_job.nodes.slots.values()
    job = job_facts(spec, first.hello, master_addr, declared=declared)
    plan = start_plan(spec, active, job, {member.name: member.hello for member in members})
    return plan, dict(zip(active, plan.nodes, strict=True))
