"""Finds the interpreter of the ranks (``--python``), and their environment after sourcing ``--venv_script``."""

from __future__ import annotations

import os
import sys

from bireme import signal_numbers as signal
from bireme.errors import BadInputError
from bireme.process import guardian
from bireme.process.worker import WorkerStart
from bireme.resources.program import find_executable
from bireme.result.outcome import exit_code

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from bireme.job import JobSpec

_WHERE = "--venv_script"
_ANOTHER = "--python names another: a path, a name on PATH such as python3, or the folder of an environment"


def interpreter(spec: JobSpec, environ: Mapping[str, str]) -> tuple[str, Mapping[str, str]]:
    """Find the Python for the ranks, and the environment that it runs in.

    With ``--venv_script``, the environment is the result of sourcing that script, and Python is the first on its
    ``PATH``. ``--python`` names another Python.
    """
    script = spec.venv_script
    if script is not None:
        environ = _activated(script, environ)
    if spec.python is not None:
        return _named(spec.python, environ, spec.python_from), environ
    for name in ("python", "python3"):
        path = find_executable(name, environ)
        if path:
            return path, environ
    raise BadInputError(f"no python on PATH after sourcing {script}", where=_WHERE)


def version_of(python: str) -> str:
    """The version of a Python, as far as it can be told without starting it: "3.11.7", "3.11" or ""."""
    if python == sys.executable:
        return sys.version.split()[0]
    name = os.path.basename(os.path.realpath(python)).removeprefix("python")
    return name if name.replace(".", "").isdecimal() and "." in name else ""


def _named(python: str, environ: Mapping[str, str], where: str) -> str:
    """The path of the Python of ``--python``, which may be a name on ``PATH``, or the folder of an environment.

    Args:
        where: what has named it; this need not be the option.
    """
    path = "" if os.sep in python else find_executable(python, environ)
    path = path or os.path.abspath(python)
    if os.path.isdir(path):
        from bireme.resources.active_environment import python_of

        path = python_of(path) or path
    if not os.path.isfile(path):
        what = f"not found: {python}" if not os.path.isdir(path) else f"no Python in {python}"
        hint = "give --python the path of a Python, its name on PATH, or the folder of an environment"
        raise BadInputError(what, hint=hint if where == "--python" else _ANOTHER, where=where)
    if not os.access(path, os.X_OK):
        raise BadInputError(f"cannot be executed: {path}", where=where)
    return path


def _activated(script: str, environ: Mapping[str, str]) -> Mapping[str, str]:
    """The environment after sourcing ``script``; with /dev/null it stays as it is."""
    readable = os.path.exists(script) and os.access(script, os.R_OK)
    if not readable or os.path.isdir(script):
        what = f"cannot read {script}" if not readable else f"{script} is a directory"
        raise BadInputError(what, hint="expected the script that activates the environment", where=_WHERE)
    return _sourced(os.path.abspath(script), environ)


def _sourced(script: str, environ: Mapping[str, str]) -> Mapping[str, str]:
    """The environment after ``source script`` in bash."""
    bash = find_executable("bash", environ)
    if not bash:
        raise BadInputError(f"cannot source {script}: no bash on PATH", where=_WHERE)
    import tempfile  # only here: it is slow to import

    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, open(os.devnull, "rb") as nothing:
        argv = (bash, "-c", '. "$1" >&2 && exec env -0', "bash", script)
        start = WorkerStart(
            argv=argv,
            env=dict(environ),
            cwd=os.getcwd(),
            stdin=nothing.fileno(),
            stdout=out.fileno(),
            stderr=err.fileno(),
        )
        status = _status_of(start)
        out.seek(0)
        err.seek(0)
        found, said = out.read(), err.read().decode(errors="replace").strip().splitlines()
    if status != 0 or not found:  # the script may also have called "exit 0"
        raise BadInputError(
            f"{script} exited with code {exit_code(status)} instead of setting up an environment",
            hint=said[-1] if said else "",
            where=_WHERE,
        )
    pairs = (os.fsdecode(item).partition("=") for item in found.split(b"\0") if item)
    return {name: value for name, _, value in pairs}


def _status_of(start: WorkerStart) -> int:
    """Run a program under a guardian, so that nothing is left of it even if we are killed; return its wait status."""
    handle = guardian.start([start], at_loss=lambda: None)
    status = int(signal.SIGKILL)
    try:
        while (events := handle.read()) is not None:
            for word, *args in events:
                if word == "down":
                    status = int(args[1])
                    handle.tell("kill")  # what the script left in the background
    finally:
        handle.close()
        os.waitpid(handle.pid, 0)
    return status
