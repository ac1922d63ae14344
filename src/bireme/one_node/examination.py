"""Examines a node, here or in an agent: finds its facts, and all problems that keep it from running the job."""

from __future__ import annotations

import os
import sys

from bireme.errors import BadInputError, BiremeError
from bireme.one_node import error_folder
from bireme.planning.environment import NodeFacts
from bireme.resources import cores, devices, program
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from bireme.job import JobSpec
    from bireme.resources.devices import Devices

    Choose = Callable[[Devices], tuple[tuple[str, ...], Sequence[str]]]


class Examination(Value):
    """What was found."""

    facts: NodeFacts
    problems: tuple[BiremeError, ...]
    environ: Mapping[str, str]
    notes: tuple[str, ...] = ()

    def refuse(self) -> None:
        """Raise the first problem, if there is one."""
        if self.problems:
            raise self.problems[0]


def examine(
    spec: JobSpec,
    own: Mapping[str, str],
    environ: Mapping[str, str],
    choose: Choose,
    *,
    cwd: str | None = None,
    shared: bool = False,
) -> Examination:
    """Examine this node. Starts nothing but a ``--venv_script``.

    Args:
        own: the environment of this process, which says what devices it may use.
        choose: returns the slots to use of the devices, and notes for the user; may raise a `BiremeError`.
        cwd: the directory to change to; ``None``: the working directory as it is.
        shared: other nodes run the program too, so it may be missing only on this one.
    """
    problems: list[BiremeError] = []
    facts: dict[str, Any] = {"hostname": short_hostname()}
    notes: Sequence[str] = ()
    slots: tuple[str, ...] | None = None
    try:
        found = devices.discover(spec.accelerator, own)
        slots, notes = choose(found)
        facts |= {"accelerator": found.accelerator, "slots": slots}
    except BiremeError as error:
        problems.append(error)
    try:
        if cwd is not None:
            _go_to(cwd, spec)
    except BadInputError as error:
        problems.insert(0, error)
    else:
        try:
            facts["interpreter"], facts["python"], environ = interpreter(spec, environ)
            if spec.program.target:  # `bireme check` may have none
                facts["local_rank_flag"] = program.check(spec, environ, shared=shared)
        except BiremeError as error:
            facts["lacks_python"] = "interpreter" not in facts
            problems.append(error)
    try:
        if slots is not None:
            facts["bound"] = cores.bound(spec.bind_core_list, physical=spec.bind_cores, ranks=len(slots))
            facts["cores"] = cores.usable()
    except BiremeError as error:
        problems.append(error)
    facts |= {"omp_threads_set": "OMP_NUM_THREADS" in environ, "temporary": error_folder.beginning(environ)}
    return Examination(NodeFacts(**facts), tuple(problems), environ, tuple(notes))


def interpreter(spec: JobSpec, environ: Mapping[str, str]) -> tuple[str, str, Mapping[str, str]]:
    """The Python of the ranks, its version if known, and their environment; by default those of this process."""
    if spec.venv_script is None and spec.python in (None, sys.executable):
        return sys.executable, sys.version.split()[0], environ
    from bireme.one_node import activation

    python, environ = activation.interpreter(spec, environ)
    return python, activation.version_of(python), environ


def _go_to(cwd: str, spec: JobSpec) -> None:
    try:
        os.chdir(cwd)
    except OSError as error:
        hint = program.MISSING_THERE if isinstance(error, FileNotFoundError) and not spec.ship else ""
        raise BadInputError(f"cannot change to the working directory {cwd}: {error.strerror}", hint=hint) from None


def working_directory() -> str:
    """The working directory."""
    try:
        return os.getcwd()
    except OSError:
        raise BadInputError("the working directory no longer exists", hint="change to one that exists") from None


def short_hostname() -> str:
    """This machine's name, as shown before every line of output."""
    return os.uname().nodename.partition(".")[0]
