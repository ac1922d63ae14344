"""Ctrl+C before a job's own handlers are there."""

# no ``from __future__`` here: the module of that name would be looked for in the working directory
import _signal  # type: ignore[import-not-found]  # not ``signal``: the 4 ms of its enumerations would be the very window that is to be closed
import os


def exit_quietly_on_interrupt() -> None:
    """Let Ctrl+C end this process at once, with 130 and no traceback.

    A command calls it before it imports anything else: what Python's own handler raises gives a traceback, and is
    forgotten if it comes in a callback of the import system, as one in some hundreds does. What is imported here has
    been loaded by the interpreter already.
    """
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, lambda *_: os._exit(128 + _signal.SIGINT))
