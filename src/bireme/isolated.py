"""How our own processes are started: isolated, so that none of them takes a file of the user's for a module.

The working directory and PYTHONPATH are the ranks'. Python would look there before it looks into its own library: a
``json.py`` beside a training script would be executed by every process of ours that imports ``json``.
"""

# no ``from __future__`` here: the module of that name would be looked for in the working directory
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
"""Where this package lies."""

_BEGIN = "import sys; sys.path.append(sys.argv.pop(1)); from bireme.isolated import begin; begin()"
"""Isolated Python sees neither PYTHONPATH nor the user's packages, one of which may be where this package was found.
So that place comes along, and is searched last."""


def command(module: str, *words: str) -> tuple[str, ...]:
    """The command line by which a process of ours is started: this interpreter, by its path.

    Args:
        module: whose ``command()`` is called; of a package, that of its ``__main__``.
        words: its arguments.
    """
    return (sys.executable, "-I", "-c", _BEGIN, ROOT, module, *words)


def begin() -> "NoReturn":
    """Where a process that was started by `command` begins."""
    _keep_the_locale()
    protect_path()
    name = sys.argv.pop(1)
    module = __import__(name, fromlist=["command"])
    if hasattr(module, "__path__"):
        module = __import__(f"{name}.__main__", fromlist=["command"])
    module.command()
    raise AssertionError("a command does not return")


def protect_path() -> None:
    """Take the working directory off ``sys.path``, and have PYTHONPATH searched last.

    For processes of ours only: a rank, and a program that imports this package, has Python's usual rules.
    """
    try:
        here = os.getcwd()
    except OSError:  # it is gone
        here = ""
    if sys.path[:1] in ([""], [here]):
        del sys.path[0]
    listed = os.environ.get("PYTHONPATH")
    if listed and here:
        places = [os.path.abspath(place) for place in listed.split(os.pathsep)]
        sys.path[:] = [place for place in sys.path if place not in places]
        sys.path += [place for place in places if place != here]


def _keep_the_locale() -> None:
    """Give ranks the ``LC_CTYPE`` that we were given: isolated Python overlooks PYTHONCOERCECLOCALE=0, and sets it."""
    if os.environ.get("PYTHONCOERCECLOCALE") != "0":
        return
    try:
        with open("/proc/self/environ", "rb") as file:
            given = [line for line in file.read().split(b"\0") if line.startswith(b"LC_CTYPE=")]
    except OSError:
        return
    os.environ.pop("LC_CTYPE", None)
    if given:
        os.environb[b"LC_CTYPE"] = given[0].partition(b"=")[2]
