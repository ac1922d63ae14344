"""Looks at the program before anything starts: is it there, does it want ``--local_rank``?"""

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
    """Refuse a program that cannot be run; return the flag by which it wants its local rank, or ``""``.

    Args:
        spec: the job.
        environ: what the ranks inherit.
        own_interpreter: they run by this interpreter, so that we know where it finds modules.

    Raises:
        BadInputError: no such script or module, a directory, not readable.
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
            f"there is no script {path}",
            hint="options of bireme stand before the script; --no_python runs a command, -m a module",
        )
    try:
        return _read(path)
    except OSError as error:
        raise BadInputError(f"cannot read the script {path}: {error.strerror}") from None


def _read_module(program: Program, environ: Mapping[str, str]) -> bytes:
    """The module's source, where it can be found without importing its parents."""
    from importlib.machinery import PathFinder

    top, _, rest = program.target.partition(".")
    listed = environ.get("PYTHONPATH", "").split(os.pathsep)
    found = PathFinder.find_spec(top, [os.getcwd(), *map(os.path.abspath, listed), *sys.path])
    if found is None and sys.flags.no_user_site:
        found = PathFinder.find_spec(top, _user_site())
    if found is None:
        if top in sys.builtin_module_names:
            return b""
        raise BadInputError(f"there is no module {top}", hint="is its package installed, or PYTHONPATH set?")
    path = found.origin or ""
    for place in found.submodule_search_locations or () if rest or found.submodule_search_locations else ():
        base = os.path.join(place, *rest.split(".")) if rest else place
        for candidate in (f"{base}.py", os.path.join(base, "__main__.py")):
            if os.path.isfile(candidate):
                path = candidate
    return _read(path) if path.endswith(".py") and os.path.isfile(path) else b""


def _user_site() -> list[str]:
    """Where this interpreter looks for a user's own packages, had it not been told to leave them out."""
    import site

    path = sys.path[:]
    try:
        site.addsitedir(site.getusersitepackages())
        return sys.path[len(path) :]
    finally:
        sys.path[:] = path


def _read_executable(name: str) -> bytes:
    """The text of a script with a ``#!`` line; a binary's words mean nothing."""
    if os.path.isdir(name):
        raise BadInputError(f"{name} is a directory, not a program")
    path = name if os.sep in name else find_executable(name, os.environ)
    try:
        text = _read(path) if path else b""
    except OSError:
        return b""  # may be executable all the same; if it is not, the rank says why
    return text if text.startswith(b"#!") else b""


def _read(path: str) -> bytes:
    """The text of a regular file. Of a pipe (``<(…)`` in bash) only the ranks may read, for it gives its text once."""
    if not os.path.isfile(path):
        return b""
    with open(path, "rb") as file:
        return file.read(_ENOUGH)


def find_executable(name: str, environ: Mapping[str, str]) -> str:
    """The first executable of that name on ``PATH``, or ``""`` (``shutil`` costs 10 ms)."""
    for directory in environ.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(directory, name)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return ""
