"""Plans elastic training with ``--no_ssh``: PyTorch's own elastic agent (torchrun) starts the ranks of a node. Pure."""

from __future__ import annotations

import os

from bireme.options import conflicts
from bireme.planning.environment import is_mig
from bireme.planning.start import StartPlan, WorkerPlan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bireme.job import JobSpec

_ITS_OWN = (
    *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_SIZE", "NODE_RANK", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    *("CROSS_RANK", "CROSS_SIZE", "MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK"),
    *(
        "BIREME_ELASTIC",
        "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_RESTART_COUNT",
        "TORCHELASTIC_MAX_RESTARTS",
        "TORCHELASTIC_ERROR_FILE",
        *("ROLE_NAME", "ROLE_WORLD_SIZE"),
    ),
)
"""Variables about nodes and ranks that PyTorch's agent sets itself, or that are wrong after a change of nodes."""


def by_torchrun(plan: StartPlan, spec: JobSpec, interpreter: str, nodes: int) -> StartPlan:
    """Replace the ranks of one node's plan by one ``python -m torch.distributed.run``.

    Args:
        plan: the plan of this node only.
        nodes: the number of nodes of the world, as given.
    """
    (node,) = plan.nodes
    mig = len(node.workers) > 1 and is_mig(node.workers[0].slot)
    given = {**conflicts.of_job(spec), "--no_ssh": True, "--node_rank": spec.node_rank}
    conflicts.refuse({**given, conflicts.MIG: True} if mig else given)
    most = spec.max_nodes or max(nodes, spec.min_nodes)
    kind = {"module": ("-m",), "exec": ("--no-python",), "script": ()}[spec.program.kind]
    argv = (
        *(interpreter, "-m", "torch.distributed.run"),
        f"--nnodes={spec.min_nodes}:{most}",
        f"--nproc-per-node={len(node.workers)}",
        *_rendezvous(plan, spec),
        f"--rdzv-id={spec.run_id}",
        f"--role={spec.role}",
        f"--max-restarts={spec.restarts}",
        *spec.torchrun_args,
        *kind,
        spec.program.target,
        *spec.program.args,
    )
    env = {name: value for name, value in node.env.items() if name not in _ITS_OWN}
    slots = ",".join(worker.slot for worker in node.workers)
    agent = WorkerPlan(rank=0, local_rank=0, slot=slots, argv=argv, env={"TORCHELASTIC_ERROR_FILE": os.devnull})
    return plan.replace(world_size=1, nodes=(node.replace(env=env, error_dir="", workers=(agent,)),))


def _rendezvous(plan: StartPlan, spec: JobSpec) -> tuple[str, ...]:
    """How the nodes find each other: by their numbers, or numbered by PyTorch."""
    address = f"[{plan.master_addr}]" if ":" in plan.master_addr else plan.master_addr
    if spec.rendezvous == "static":
        return (
            *("--rdzv-backend=static", f"--node-rank={spec.node_rank}"),
            *(f"--master-addr={address}", f"--master-port={plan.master_port}"),
        )
    return ("--rdzv-backend=c10d", f"--rdzv-endpoint={address}:{plan.master_port}")
