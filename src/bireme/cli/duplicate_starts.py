"""Refuses a job whose command ``srun`` or ``mpirun`` has started once for each task: each would run the whole job."""

from __future__ import annotations

import os
import sys

from bireme.errors import BAD_INPUT, BadInputError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from bireme.job import JobSpec

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
_LONGEST = 200


def refuse(spec: JobSpec, environ: Mapping[str, str]) -> None:
    """Refuse a job that every task of ``srun`` or ``mpirun`` would start as a whole.

    Not refused: a job of which each command starts its own part (``--no_ssh``, or numbered as for torchrun), and jobs
    of this machine alone that the user asked for (``--hosts localhost``), which several tasks may start side by side.

    Raises:
        BadInputError: this is the first of several tasks.
        SystemExit: with code 2 in the other tasks, which leave the message to the first.
    """
    program, tasks, number = _started(environ)
    if tasks < 2 or spec.by_hand or spec.rendezvous == "static" or _only_here(spec):
        return
    if number:
        raise SystemExit(BAD_INPUT)
    what = f"{program} has started this command {tasks} times, and each would run the whole job"
    raise BadInputError(what, hint=f"type it without {program}: {_typed()}")


def _started(environ: Mapping[str, str]) -> tuple[str, int, int]:
    """(the program that has started this process, how many it has started, the number of this one)."""
    for program, mark, tasks, number in _STARTERS:
        if mark in environ and (program != "srun" or _ONE_TERMINAL not in environ):
            numbers = [environ.get(name, "") for name in (tasks, number)]
            if all(text.isascii() and text.isdecimal() and len(text) < 10 for text in numbers):
                return program, int(numbers[0]), int(numbers[1])
    return "", 1, 0


def _only_here(spec: JobSpec) -> bool:
    if not spec.hosts:
        return False
    from bireme.resources.hostfile import parse_hosts
    from bireme.resources.locality import is_this_machine

    entries = parse_hosts(spec.hosts)
    return len(entries) == 1 and is_this_machine(entries[0].name)


def _typed() -> str:
    """The command line of this process, without secrets, and not longer than can be read."""
    import shlex

    from bireme.planning.masking import masked_words

    name = os.path.basename(sys.argv[0])
    words = {"runner.py": ["python", "-m", "bireme.deepspeed.runner"]}.get(name, ["bireme"])
    text = shlex.join(masked_words([*words, *sys.argv[1:]]))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"
