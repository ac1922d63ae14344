"""The functions by which a rank asks for its place in the job, whatever launched it.

It imports almost nothing: ranks of functions get it as source where Bireme is not installed.
"""

import os

_RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
_SIZE = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
_LOCAL = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
_NODE = ("GROUP_RANK", "CROSS_RANK", "SLURM_NODEID")
_OF_NODE = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")


def rank() -> int:
    """The number of this process in its job; 0 outside of any."""
    return _first(_RANK, 0)


def world_size() -> int:
    """How many processes the job has; 1 outside of any."""
    return _first(_SIZE, 1)


def local_rank() -> int:
    """The number of this process among those of its node; 0 outside of any job."""
    return _first(_LOCAL, 0)


def node() -> int:
    """The number of the node on which this process runs; 0 outside of any job.

    Where the launcher does not say it, as Open MPI: as if each node had as many ranks, one after the other.
    """
    return _first(_NODE, rank() // _first(_OF_NODE, rank() + 1))


def _first(names: "tuple[str, ...]", otherwise: int) -> int:
    found = (os.environ[name] for name in names if os.environ.get(name, "").isdecimal())
    return int(next(found, otherwise))
