"""Finds the Python environment that is active where the command is typed, if Bireme itself is installed in another."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_VARIABLES = ("VIRTUAL_ENV", "CONDA_PREFIX")
_COMMAND = "bireme"
"""The name of the console script."""


def other_python(environ: Mapping[str, str], program: str) -> str:
    """The Python of the active environment; "" if there is none, or Bireme is part of it.

    Args:
        program: the path by which the command was started. ``python -m bireme`` has named its Python already.
    """
    if os.path.basename(program) != _COMMAND:
        return ""
    prefix = active_prefix(environ)
    return python_of(prefix) if prefix and os.path.realpath(prefix) != os.path.realpath(sys.prefix) else ""


def active_prefix(environ: Mapping[str, str]) -> str:
    """The folder of the active environment, "" if none is active.

    An environment can be activated within another one: the one whose programs are found first counts.
    """
    searched = [os.path.normpath(place) for place in environ.get("PATH", "").split(os.pathsep) if place]

    def place_of(prefix: str) -> int:
        folder = os.path.join(os.path.normpath(prefix), "bin")
        return searched.index(folder) if folder in searched else len(searched)

    known = [environ[name] for name in _VARIABLES if environ.get(name)]
    usable = [prefix for prefix in known if python_of(prefix)]
    first = min(usable, key=place_of, default="")
    # Another environment, which no variable names, hides it: its path was put in front by hand.
    hidden = first and place_of(sys.prefix) < place_of(first) and os.path.isfile(os.path.join(sys.prefix, "pyvenv.cfg"))
    return "" if hidden else first


def python_of(prefix: str) -> str:
    """The Python of an environment, "" if it has none."""
    for name in ("python", "python3"):
        path = os.path.join(prefix, "bin", name)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return os.path.abspath(path)
    return ""
