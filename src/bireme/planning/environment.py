"""The environment protocol: what every rank finds in its environment.

The union of what ``torchrun`` (PyTorch's "Environment Variables" of elastic launch) and the ``deepspeed`` launcher
set, so that scripts written for either find what they look for. ``docs/environment.md`` is the table for users.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from bireme.job import JobSpec
    from bireme.planning.start import JobFacts, NodeFacts

MARK = "BIREME_JOB"
"""Every process of a job carries ``<job id>/<node rank>`` in this variable: the sweep goes by it."""

ELASTIC_MARK = "BIREME_ELASTIC"
"""The same for all epochs of an elastic job: a node is not fit for the next while any of an earlier one lives there."""


def elastic_mark(run_id: str, host: str) -> str:
    """The value of `ELASTIC_MARK` on a node, by its name in the pool."""
    return f"{run_id}/{host}"


def node_environment(
    spec: JobSpec,
    job: JobFacts,
    facts: NodeFacts,
    slots: tuple[str, ...],
    *,
    node_rank: int,
    nodes: int,
    world_size: int,
    host: str,
) -> dict[str, str]:
    """What is the same for all ranks of a node; ``host``: its name in the pool."""
    local = str(len(slots))
    env = {
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": local,
        "LOCAL_SIZE": local,
        "NODE_RANK": str(node_rank),
        "GROUP_RANK": str(node_rank),
        "GROUP_WORLD_SIZE": str(nodes),
        "CROSS_RANK": str(node_rank),
        "CROSS_SIZE": str(nodes),
        "MASTER_ADDR": job.master_addr,
        "MASTER_PORT": str(job.master_port),
        MARK: f"{job.job_id}/{node_rank}",
    }
    if job.accelerator == "cpu" and job.explicit_accelerator:
        env["CUDA_VISIBLE_DEVICES"] = ""  # else a script that asks PyTorch finds the GPUs all the same
    else:
        env.update(visible_devices(job, slots))
    if spec.elastic:
        env["TORCHELASTIC_RUN_ID"] = spec.run_id
        env[ELASTIC_MARK] = elastic_mark(spec.run_id, host)
    if spec.restarts or spec.elastic:
        env["TORCHELASTIC_RESTART_COUNT"] = str(spec.attempt)
        env["TORCHELASTIC_MAX_RESTARTS"] = str(spec.restarts)
    if job.explicit_accelerator:
        env["DS_ACCELERATOR"] = job.accelerator
    threads = threads_per_rank(facts, len(slots))
    if threads:
        env["OMP_NUM_THREADS"] = str(threads)
    return env


def visible_devices(job: JobFacts, slots: tuple[str, ...]) -> dict[str, str]:
    """The variables that bind devices, for these slots."""
    return {name: ",".join(slots) for name in job.visible_variables}


def is_mig(slot: str) -> bool:
    """Whether a slot is a slice of a GPU: CUDA shows a process only the first of its list, so each gets its own."""
    return slot.startswith("MIG-")


def threads_per_rank(facts: NodeFacts, ranks: int) -> int:
    """``OMP_NUM_THREADS`` for each rank: its bound cores, else an even share of the node's; 0: the user has set it."""
    if facts.bound:
        return len(facts.bound[0])
    return 0 if facts.omp_threads_set else max(1, facts.cores // ranks)


def rank_environment(rank: int, local_rank: int, *, error_dir: str) -> dict[str, str]:
    """What is a rank's own. ``TORCHELASTIC_ERROR_FILE`` is where torch's ``record`` decorator leaves its traceback."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "TORCHELASTIC_ERROR_FILE": os.path.join(error_dir, f"rank{rank}.json"),
    }


def native_environment(
    world: Sequence[tuple[str, Sequence[str]]],
    rank: int,
    local_rank: int,
    variables: Sequence[str],
    master_addr: str,
    master_port: int,
) -> dict[str, str]:
    """The environment of a rank that an engine has started itself.

    Args:
        world: (host, slots) in rank order.
        rank, local_rank: as the engine numbers them, host by host.
        variables: what binds devices.
    """
    node_of = [node for node, (_, slots) in enumerate(world) for _ in slots]
    node_rank = node_of[rank]
    slots = world[node_rank][1]
    local, nodes = str(len(slots)), str(len(world))
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(sum(len(slots) for _, slots in world)),
        "LOCAL_WORLD_SIZE": local,
        "LOCAL_SIZE": local,
        "NODE_RANK": str(node_rank),
        "GROUP_RANK": str(node_rank),
        "GROUP_WORLD_SIZE": nodes,
        "CROSS_RANK": str(node_rank),
        "CROSS_SIZE": nodes,
        "MASTER_ADDR": master_addr,
        "MASTER_PORT": str(master_port),
        **{name: ",".join(slots) for name in variables},
    }
