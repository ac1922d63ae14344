"""Refuses a command that ``srun`` or ``mpirun`` has started once for each task: each task would run the whole job."""

from __future__ import annotations

import os
import sys

from bireme.errors import BAD_INPUT, BadInputError
from bireme.resources.starter import find_task

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from bireme.job import JobSpec


def refuse(spec: JobSpec, environ: Mapping[str, str]) -> None:
    """Refuse a job that every task of ``srun`` or ``mpirun`` would start as a whole.

    Not refused are a job of which each task starts its own part (``--no_ssh``, or as for torchrun), and jobs on this
    machine alone (``--hosts localhost``), which several tasks may start side by side.

    Raises:
        BadInputError: this is the first of several tasks.
        SystemExit: with code 2 in the other tasks, which leave the message to the first.
    """
    task = find_task(environ)
    if task.tasks < 2 or spec.by_hand or spec.rendezvous or _only_here(spec):
        return
    if task.number:
        raise SystemExit(BAD_INPUT)
    what = f"{task.program} has started this command {task.tasks} times, and each would run the whole job"
    raise BadInputError(what, hint=f"type it without {task.program}: {_typed()}")


def _only_here(spec: JobSpec) -> bool:
    if not spec.hosts or spec.has_own_names:
        return False
    from bireme.resources.hostfile import parse_hosts
    from bireme.resources.locality import is_this_machine

    entries = parse_hosts(spec.hosts)
    return len(entries) == 1 and is_this_machine(entries[0].name)


def _typed() -> str:
    """The command line of this process, without secrets, and shortened."""
    from bireme.planning.masking import shortened

    name = os.path.basename(sys.argv[0])
    words = {"runner.py": ["python", "-m", "bireme.deepspeed.runner"]}.get(name, ["bireme"])
    return shortened([*words, *sys.argv[1:]])
