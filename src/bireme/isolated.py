"""How Bireme's own processes start: Ctrl+C ends them quietly, and they never import a file of the user as a module.

The working directory and PYTHONPATH are meant for the ranks. Python searches them before its own library: a ``json.py``
beside a training script would be executed by each of our processes that imports ``json``.
"""

# No ``from __future__`` here: Python would look for that module in the working directory.
# `_signal` instead of `signal`, which takes milliseconds to import, in which Ctrl+C would not be handled.
import _signal  # type: ignore[import-not-found]
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_BEGIN = "import sys; sys.path.append(sys.argv.pop(1)); from bireme.isolated import begin; begin()"
"""Isolated Python ignores PYTHONPATH and the user's site-packages, but this package may be installed there. So its
folder is passed as an argument, and searched last."""


def root() -> str:
    """The folder that contains this package."""
    return os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def command(module: str, *words: str) -> tuple[str, ...]:
    """The command line that starts one of our processes, with this interpreter.

    Args:
        module: the module whose ``command()`` is called; for a package, that of its ``__main__``.
    """
    return (sys.executable, "-I", "-c", _BEGIN, root(), module, *words)


def begin() -> "NoReturn":
    """The entry point of a process that was started with `command`; it ends the process."""
    keep_the_locale()
    protect_path()
    name = sys.argv.pop(1)
    module = __import__(name, fromlist=["command"])
    if hasattr(module, "__path__"):
        module = __import__(f"{name}.__main__", fromlist=["command"])
    module.command()
    raise AssertionError("a command does not return")


def exit_quietly_on_interrupt() -> None:
    """Let Ctrl+C end this process at once, with exit code 130 and without a traceback.

    A command calls it before any other import. Python's own handler raises an exception, which ends in a traceback, or
    is lost if it comes in a callback of the import system (one in some hundreds does). The modules imported here are
    already loaded by the interpreter.
    """
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, lambda *_: os._exit(128 + _signal.SIGINT))


def protect_path() -> None:
    """Remove the working directory from ``sys.path``, and move the folders of PYTHONPATH to its end.

    Only for our own processes: ranks, and programs that import this package, keep Python's usual rules.
    """
    try:
        here = os.getcwd()
    except OSError:  # the directory was removed
        here = ""
    if sys.path[:1] in ([""], [here]):
        del sys.path[0]
    listed = os.environ.get("PYTHONPATH")
    if listed and here:
        places = [os.path.abspath(place) for place in listed.split(os.pathsep)]
        sys.path[:] = [place for place in sys.path if place not in places]
        sys.path += [place for place in places if place != here]


def find_packages() -> None:
    """Search the folders of packages too, in an agent, which was started without them because that takes a while."""
    if sys.flags.no_site and "site" not in sys.modules:
        import site

        site.main()


def keep_the_locale() -> None:
    """Restore the original ``LC_CTYPE`` for the ranks: isolated Python sets it, ignoring PYTHONCOERCECLOCALE=0."""
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
