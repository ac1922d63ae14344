"""Node plans: turns the nodes' answers into what each node starts. Pure, except for the job's random id."""

from __future__ import annotations

import os

from bireme.errors import BadInputError
from bireme.planning.start import start_plan
from bireme.planning.start_facts import JobFacts, NodeFacts
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
    accelerator = first.hello.accelerator
    job = JobFacts(
        job_id=os.urandom(6).hex(),
        accelerator=accelerator,
        visible_variables=devices.visible_variables(accelerator, declared=None not in cluster_job.nodes.slots.values()),
        explicit_accelerator=spec.accelerator != "auto",
        local_rank_flag=first.hello.local_rank_flag,
        master_addr=master_addr,
        master_port=spec.master_port or first.hello.port,
    )
    nodes = {member.name: _facts(member, job.job_id) for member in members}
    plan = start_plan(spec, active, job, nodes)
    return plan, dict(zip(active, plan.nodes, strict=True))


def _facts(member: AgentHandle, job_id: str) -> NodeFacts:
    """The facts about a node that the plan needs, from its agent's hello."""
    hello = member.hello
    return NodeFacts(
        hostname=hello.hostname,
        interpreter=hello.interpreter,
        cwd=os.getcwd(),
        cores=hello.cores,
        error_dir=os.path.join(hello.temporary, f"bireme-{job_id}"),
        bound=hello.bound,
        omp_threads_set=hello.omp_threads_set,
    )
