"""Ends a process and everything below it, as DeepSpeed's ``terminate_process_tree`` does."""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import suppress

from bireme.process.kernel import descendants

_GRACE = 30.0


def terminate_process_tree(pid: int) -> None:
    """Send SIGTERM to a process and everything below it, and SIGKILL to what is left after 30 s; wait for all ends.

    Raises:
        OSError: there is no such process, or this system has no pidfds (before Linux 5.3).
    """
    ends = {os.pidfd_open(pid)}  # names the process itself, not whoever gets its number later
    try:
        for each in descendants((pid,)):
            with suppress(ProcessLookupError):
                ends.add(os.pidfd_open(each))
        for signum, seconds in ((signal.SIGTERM, _GRACE), (signal.SIGKILL, None)):
            _send(ends, signum)
            if not _left(ends, seconds):
                break
    finally:
        for end in ends:
            os.close(end)


def _send(ends: set[int], signum: int) -> None:
    for end in _left(ends, 0.0):
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(end, signum)


def _left(ends: set[int], seconds: float | None) -> set[int]:
    """The processes that have not ended after this time; ``None``: however long it takes."""
    deadline = None if seconds is None else time.monotonic() + seconds
    left, poll = set(ends), select.poll()
    for end in ends:
        poll.register(end, select.POLLIN)
    while left:
        wait = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
        ended = [end for end, _ in poll.poll(wait)]
        for end in ended:
            poll.unregister(end)
            left.discard(end)
        if not ended and wait is not None:
            break
    return left
