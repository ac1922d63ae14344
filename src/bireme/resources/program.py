"""Checks before the start that the program exists, and whether it wants ``--local_rank``."""

from __future__ import annotations

import os
import sys

from bireme.errors import BadInputError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from bireme.job import JobSpec, Program

_ENOUGH = 1 << 20
"""Bytes of a script that are searched for ``--local_rank``."""


def check(spec: JobSpec, environ: Mapping[str, str], *, own_interpreter: bool) -> str:
    """Check that the program can be run; return the flag for its local rank (``--local_rank``), or ``""``.

    Args:
        spec: the job.
        environ: the environment that the ranks inherit.
        own_interpreter: this interpreter runs the ranks, so its search path for modules is known.

    Raises:
        BadInputError: the script or module does not exist, is a directory, or is not readable.
    """
    program = spec.program
    if program.kind == "script":
        text = _read_script(program.target)
    elif program.kind == "module":
        text = _read_module(program, environ) if own_interpreter else b""
    else:
        text = _read_executable(program.target)
    if spec.local_rank_arg == "never":
        return ""
    for flag in ("--local_rank", "--local-rank"):
        if flag.encode() in text:
            return flag
    return "--local_rank" if spec.local_rank_arg == "always" else ""


def _read_script(path: str) -> bytes:
    if os.path.isdir(path):
        path = os.path.join(path, "__main__.py")
        if not os.path.isfile(path):
            raise BadInputError(f"{path[:-12]} is a directory, not a script", hint="name the Python file to run")
    if not os.path.exists(path):
        raise BadInputError(
            f"no such script: {path}",
            hint="put options of bireme before the script; use --no_python to run a command, -m to run a module",
        )
    try:
        return _read(path)
    except OSError as error:
        raise BadInputError(f"cannot read the script {path}: {error.strerror}") from None


def _read_module(program: Program, environ: Mapping[str, str]) -> bytes:
    """The source of the module, if it can be found without importing its parent packages; else empty."""
    from importlib.machinery import PathFinder

    top, _, rest = program.target.partition(".")
    listed = environ.get("PYTHONPATH", "").split(os.pathsep)
    found = PathFinder.find_spec(top, [os.getcwd(), *map(os.path.abspath, listed), *sys.path])
    if found is None and sys.flags.no_user_site:
        found = PathFinder.find_spec(top, _user_site())
    if found is None:
        if top in sys.builtin_module_names:
            return b""
        raise BadInputError(f"no such module: {top}", hint="install its package, or set PYTHONPATH")
    path = found.origin or ""
    for place in found.submodule_search_locations or () if rest or found.submodule_search_locations else ():
        base = os.path.join(place, *rest.split(".")) if rest else place
        for candidate in (f"{base}.py", os.path.join(base, "__main__.py")):
            if os.path.isfile(candidate):
                path = candidate
    return _read(path) if path.endswith(".py") and os.path.isfile(path) else b""


def _user_site() -> list[str]:
    """The user's own site-packages, which an isolated interpreter leaves out of its search path."""
    import site

    path = sys.path[:]
    try:
        site.addsitedir(site.getusersitepackages())
        return sys.path[len(path) :]
    finally:
        sys.path[:] = path


def _read_executable(name: str) -> bytes:
    """The text of an executable script with a ``#!`` line; empty for a binary."""
    if os.path.isdir(name):
        raise BadInputError(f"{name} is a directory, not a program")
    path = name if os.sep in name else find_executable(name, os.environ)
    try:
        text = _read(path) if path else b""
    except OSError:
        return b""  # it may still be executable; if not, the rank reports why
    return text if text.startswith(b"#!") else b""


def _read(path: str) -> bytes:
    """The beginning of a regular file. A pipe (``<(…)`` in bash) can be read only once, so it is left to the ranks."""
    if not os.path.isfile(path):
        return b""
    with open(path, "rb") as file:
        return file.read(_ENOUGH)


def find_executable(name: str, environ: Mapping[str, str]) -> str:
    """The first executable of that name on ``PATH``, or ``""``. Importing ``shutil`` for this would take 10 ms."""
    for directory in environ.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(directory, name)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return ""
