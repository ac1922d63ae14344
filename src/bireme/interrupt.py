"""Ctrl+C before a job's own handlers are there."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # not ``signal``: the 4 ms of its enumerations would be the very window that is to be closed
import os


def exit_quietly_on_interrupt() -> None:
    """Let Ctrl+C end this process at once, with 130 and no traceback.

    A command calls it before it imports anything else, which takes most of the time until it has handlers of its own.
    """
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, lambda *_: os._exit(128 + _signal.SIGINT))
