"""From what the nodes have answered to what each of them starts. Pure, but for the job's random name."""

from __future__ import annotations

import os

from bireme.cluster import preflight_report
from bireme.errors import BadInputError
from bireme.planning.start import JobFacts, start_plan
from bireme.resources import devices

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from bireme.cluster.agent_handle import AgentHandle
    from bireme.cluster.cluster_job import ClusterJob
    from bireme.planning.start import NodePlan, StartPlan


def node_plans(
    cluster_job: ClusterJob, members: Sequence[AgentHandle], master_addr: str
) -> tuple[StartPlan, dict[str, NodePlan]]:
    """The start plan, and the part of each node that has one, by its name in the pool.

    Args:
        members: in the order of their ranks; the first holds the port at which these meet.
        master_addr: where the others reach the first.

    Raises:
        BadInputError: the filters leave nothing of the first node, or of the pool.
    """
    spec, first = cluster_job.spec, members[0]
    active = cluster_job.resolve({member.name: member.hello.slots for member in members})
    if first.name not in active:  # it holds the port, at an address of its own
        what = f"the filters leave no slot of {first.name}, the first node"
        raise BadInputError(what, hint=f"leave out the whole node: --exclude {first.name}", where="--exclude")
    accelerator = first.hello.accelerator
    job = JobFacts(
        os.urandom(6).hex(),
        accelerator,
        devices.visible_variables(accelerator, declared=all(slots is not None for slots in cluster_job.slots)),
        spec.accelerator != "auto",
        first.hello.local_rank_flag,
        master_addr,
        spec.master_port or first.hello.port,
    )
    nodes = {member.name: preflight_report.node_facts(member, job.job_id) for member in members}
    plan = start_plan(spec, active, job, nodes)
    return plan, dict(zip(active, plan.nodes, strict=True))
