"""The facts that a start plan is made from, and the environment variables of every rank that follow from them.

The variables (RANK, WORLD_SIZE, MASTER_ADDR, visible devices and others) are the union of those that ``torchrun``
(PyTorch's "Environment Variables" of elastic launch) and the ``deepspeed`` launcher set, so that scripts for either
work. ``docs/environment.md`` has the table for users.
"""

from __future__ import annotations

import os

from bireme.job import DEFAULT_PORT
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bireme.job import JobSpec


MARK = "BIREME_JOB"
"""This variable of every process of a job is ``<job id>/<node rank>``; leftover processes are found by it."""

JOB_NAME = "BIREME_JOB_NAME"
"""The variable with the name of the job, if it has one."""

TEMPLATES = "BIREME_TEMPLATES"
"""The variable of a job beside a keeper of templates (`bireme.process.keeper`): its name."""

ELASTIC_MARK = "BIREME_ELASTIC"
"""The same for all epochs of an elastic job: while a process of one epoch lives, its node is unfit for the next."""

TRIAL, TUNER = "BIREME_TRIAL", "BIREME_TUNER"
"""The variables of Bireme's that may be exported: the tuner tells the ranks the name of their trial, and its own."""

STEPS = "BIREME_STEPS"
"""The variable with what the path of a rank's file begins with, into which `bireme.report` writes its step."""

RECORDER_PIPE, RECORDED = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "TORCH_FR_DUMP_TEMP_FILE"
RAS_ADDRESS = "NCCL_RAS_ADDR"
"""What the path of the pipe of PyTorch's flight recorder begins with, and that of its file; where NCCL answers."""

ENV_FILE = ".bireme_env"
DEEPSPEED_ENV_FILE = ".deepspeed_env"
DEEPSPEED_ENV_FILE_VARIABLE = "DS_ENV_FILE"
"""Files with variables, which `bireme.planning.exports` reads, and the variable that names another."""


class NodeFacts(Value):
    """Facts that only the node itself knows, and decisions that follow from them.

    Attributes:
        python: its version; "": not known.
        local_rank_flag: the option by which the script expects its local rank; "": it expects none.
        bound: the cores to which each local rank is bound; empty if they are not bound.
        temporary: what the path of the folder of error files begins with, before the job's id.
        port: the leased port of the rendezvous; 0: none was requested.
        own_name: the loopback address that its own name has there; "": it has another one.
    """

    hostname: str
    interpreter: str = ""
    python: str = ""
    lacks_python: bool = False
    local_rank_flag: str = ""
    accelerator: str = ""
    slots: tuple[str, ...] = ()
    cores: int = 0
    bound: tuple[tuple[int, ...], ...] = ()
    omp_threads_set: bool = False
    temporary: str = ""
    addresses: tuple[str, ...] = ()
    port: int = 0
    own_name: str = ""


class JobFacts(Value):
    """Facts about the whole job.

    Attributes:
        local_rank_flag: the flag for the script's local rank (``--local_rank``); "" if it wants none.
    """

    job_id: str
    accelerator: str
    visible_variables: tuple[str, ...]
    explicit_accelerator: bool
    local_rank_flag: str
    master_addr: str
    master_port: int
    cwd: str = "/"


def job_facts(spec: JobSpec, first: NodeFacts, master_addr: str, *, declared: bool, job_id: str = "") -> JobFacts:
    """The facts about a job, which follow from those about its first node.

    Args:
        first: its accelerator may be ``auto`` where the node was not asked.
        declared: whether the slots were declared, not found on the nodes.
        job_id: "": a new one.
    """
    from bireme.resources.devices import visible_variables

    kind = "cuda" if first.accelerator == "auto" else first.accelerator
    return JobFacts(
        job_id=job_id or os.urandom(6).hex(),
        accelerator=first.accelerator,
        visible_variables=visible_variables(kind, declared=declared),
        explicit_accelerator=spec.accelerator != "auto",
        local_rank_flag=first.local_rank_flag,
        master_addr=master_addr,
        master_port=spec.master_port or first.port or DEFAULT_PORT,
        cwd=os.getcwd(),
    )


def elastic_mark(run_id: str, host: str) -> str:
    """The value of `ELASTIC_MARK` on a node; ``host``: its name in the pool."""
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
    """The variables that all ranks of a node share."""
    env = {
        **_of_node(slots, node_rank, nodes, world_size, job.master_addr, job.master_port),
        "ROLE_NAME": spec.role,
        "TORCHELASTIC_RUN_ID": spec.run_id or job.job_id,
        "TORCHELASTIC_RESTART_COUNT": str(spec.attempt + spec.requeues),
        "TORCHELASTIC_MAX_RESTARTS": str(spec.restarts),
        MARK: f"{job.job_id}/{node_rank}",
    }
    if job.accelerator == "cpu" and job.explicit_accelerator:
        env["CUDA_VISIBLE_DEVICES"] = ""  # otherwise PyTorch would still find the GPUs
    else:
        env.update(visible_devices(job, slots))
    if spec.job_name:
        env[JOB_NAME] = spec.job_name
    if spec.elastic:
        env[ELASTIC_MARK] = elastic_mark(spec.run_id, host)
    if job.explicit_accelerator:
        env["DS_ACCELERATOR"] = job.accelerator
    threads = threads_per_rank(facts, len(slots))
    if threads:
        env["OMP_NUM_THREADS"] = str(threads)
    return env


def visible_devices(job: JobFacts, slots: tuple[str, ...]) -> dict[str, str]:
    """The variables that restrict a process to the devices of these slots."""
    return {name: ",".join(slots) for name in job.visible_variables}


def is_mig(slot: str) -> bool:
    """Whether a slot is a MIG device. CUDA shows a process only the first of a list, so each rank is given its own."""
    return slot.startswith("MIG-")


def threads_per_rank(facts: NodeFacts, ranks: int) -> int:
    """``OMP_NUM_THREADS`` of each rank: its bound cores, or an equal share of the node's; 0 if the user has set it."""
    if facts.bound:
        return len(facts.bound[0])
    return 0 if facts.omp_threads_set else max(1, facts.cores // ranks)


def rank_environment(rank: int, local_rank: int, *, error_dir: str) -> dict[str, str]:
    """The variables of one rank. PyTorch's ``record`` decorator writes a traceback to ``TORCHELASTIC_ERROR_FILE``."""
    return {**_of_rank(rank, local_rank), "TORCHELASTIC_ERROR_FILE": os.path.join(error_dir, f"rank{rank}.json")}


def recording_environment(folder: str) -> dict[str, str]:
    """The variables by which ranks with NCCL can be asked in which collectives they wait.

    PyTorch's flight recorder remembers the last 500: to read more would hold up the agent. Each job has a port of its
    own for NCCL's RAS, below those that the kernel gives.

    Args:
        folder: one of this job alone, on this node.
    """
    return {
        "TORCH_FR_BUFFER_SIZE": "500",
        RECORDER_PIPE: os.path.join(folder, "recorder"),
        RECORDED: os.path.join(folder, "recorded"),
        RAS_ADDRESS: f"localhost:{20000 + int.from_bytes(os.urandom(2), 'big') % 8000}",
    }


def native_environment(
    world: Sequence[tuple[str, Sequence[str]]],
    rank: int,
    local_rank: int,
    variables: Sequence[str],
    master_addr: str,
    master_port: int,
) -> dict[str, str]:
    """The environment of a rank that mpirun or srun has started itself (``--native_ranks``).

    Args:
        world: (host, slots) in rank order.
    """
    node_of = [node for node, (_, slots) in enumerate(world) for _ in slots]
    node_rank = node_of[rank]
    slots = world[node_rank][1]
    return {
        **_of_rank(rank, local_rank),
        **_of_node(slots, node_rank, len(world), len(node_of), master_addr, master_port),
        **{name: ",".join(slots) for name in variables},
    }


def _of_rank(rank: int, local_rank: int) -> dict[str, str]:
    return {"RANK": str(rank), "ROLE_RANK": str(rank), "LOCAL_RANK": str(local_rank)}


def _of_node(
    slots: Sequence[str], node_rank: int, nodes: int, world_size: int, master_addr: str, master_port: int
) -> dict[str, str]:
    """The variables of a node's place in the world."""
    values = {
        ("WORLD_SIZE", "ROLE_WORLD_SIZE"): world_size,
        ("LOCAL_WORLD_SIZE", "LOCAL_SIZE"): len(slots),
        ("NODE_RANK", "GROUP_RANK", "CROSS_RANK"): node_rank,
        ("GROUP_WORLD_SIZE", "CROSS_SIZE"): nodes,
        ("MASTER_ADDR",): master_addr,
        ("MASTER_PORT",): master_port,
    }
    return {name: str(value) for names, value in values.items() for name in names}


def may_find_env_file(environ: Mapping[str, str], home: str, cwd: str) -> bool:
    """Whether there may be an environment file. If not, the modules that read one need not be imported."""
    if environ.get(DEEPSPEED_ENV_FILE_VARIABLE):
        return True
    names = (DEEPSPEED_ENV_FILE, ENV_FILE)
    return any(os.path.lexists(os.path.join(folder, name)) for folder in (home, cwd) for name in names)
