"""The facts that a start plan is made from: those about the whole job, and those about each node."""

from __future__ import annotations

import os

from bireme.job import DEFAULT_PORT
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bireme.job import JobSpec


class NodeFacts(Value):
    """Facts that only the node itself knows, and decisions that follow from them.

    Attributes:
        interpreter: the Python of the ranks.
        python: its version; "": not known.
        lacks_python: whether there is no such Python.
        local_rank_flag: the option by which the script expects its local rank; "": it expects none.
        slots: those that the job may use.
        cores: how many the ranks may use.
        bound: the cores to which each local rank is bound; empty if they are not bound.
        omp_threads_set: whether the user has set ``OMP_NUM_THREADS`` there.
        temporary: its directory for temporary files.
        addresses: those at which other nodes may reach it.
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
        visible_variables: the environment variables that select devices.
        explicit_accelerator: the user has named the accelerator.
        local_rank_flag: the flag for the script's local rank (``--local_rank``); "" if it wants none.
        cwd: the working directory of the ranks.
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
