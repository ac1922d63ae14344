"""Handles Ctrl+C during startup, before the command has signal handlers of its own."""

# No ``from __future__`` here: that module would be looked for in the working directory.
# `_signal` instead of `signal`, which takes milliseconds to import, in which Ctrl+C would not be handled.
import _signal  # type: ignore[import-not-found]
import os


def exit_quietly_on_interrupt() -> None:
    """Let Ctrl+C end this process at once, with exit code 130 and without a traceback.

    A command calls it before any other import. Python's own handler raises an exception, which ends in a traceback, or
    is lost if it comes in a callback of the import system (one in some hundreds does). The modules imported here are
    already loaded by the interpreter.
    """
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, lambda *_: os._exit(128 + _signal.SIGINT))
