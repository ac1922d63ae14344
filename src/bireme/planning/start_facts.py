"""The facts that a start plan is made from: those about the whole job, and those about each node."""

from __future__ import annotations

from bireme.value import Value


class NodeFacts(Value):
    """Facts that only the node itself knows, and decisions that follow from them.

    Attributes:
        cores: the number of cores that the agent may use.
        error_dir: the directory of the ranks' traceback files.
        bound: the cores to which each local rank is bound; empty if they are not bound.
        omp_threads_set: the user has set ``OMP_NUM_THREADS``.
    """

    hostname: str
    interpreter: str
    cwd: str
    cores: int
    error_dir: str
    bound: tuple[tuple[int, ...], ...] = ()
    omp_threads_set: bool = False


class JobFacts(Value):
    """Facts about the whole job.

    Attributes:
        visible_variables: the environment variables that select devices.
        explicit_accelerator: the user has named the accelerator.
        local_rank_flag: the flag for the script's local rank (``--local_rank``); "" if it wants none.
    """

    job_id: str
    accelerator: str
    visible_variables: tuple[str, ...]
    explicit_accelerator: bool
    local_rank_flag: str
    master_addr: str
    master_port: int
