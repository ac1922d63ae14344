"""Ctrl+C before a job's own handlers are there."""

from __future__ import annotations

import os
import signal


def exit_quietly_on_interrupt() -> None:
    """Let Ctrl+C end this process at once, with 130 and no traceback.

    A command calls it before it imports anything else, which takes most of the time until it has handlers of its own.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda *_: os._exit(128 + signal.SIGINT))
