"""Finds out whether ``srun`` or ``mpirun`` has started this process as one of several tasks, from the environment."""

from __future__ import annotations

from bireme.errors import number_in
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# (program, a variable that only it sets, the number of tasks, the number of this one). An MPI may start its daemons by
# srun, and srun may offer PMI to its tasks, so the order counts.
_STARTERS = (
    ("mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("mpirun", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
    ("mpirun", "MPI_LOCALNRANKS", "PMI_SIZE", "PMI_RANK"),
    ("srun", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
)
_ONE_TERMINAL = "SLURM_PTY_PORT"
"""``srun --pty`` sets this. It gives its terminal to the first task, so only that one types commands."""


class LauncherTask(Value):
    """The task of ``srun`` or ``mpirun`` (``program``; "": of none) that this process is, ``number`` being from 0."""

    program: str = ""
    tasks: int = 1
    number: int = 0


def find_task(environ: Mapping[str, str]) -> LauncherTask:
    """Find the task that this process is. A batch script, and a shell of ``srun --pty``, counts as a single task."""
    for program, mark, tasks, number in _STARTERS:
        if mark in environ and (program != "srun" or _ONE_TERMINAL not in environ):
            count, place = (number_in(environ.get(name, "")) for name in (tasks, number))
            if count is not None and place is not None:
                return LauncherTask(program, count, place)
    return LauncherTask()
