"""The public names of ``deepspeed.launcher.launch``: the launcher of one node."""

from __future__ import annotations

if __name__ == "__main__":
    from bireme.isolated import exit_quietly_on_interrupt, protect_path

    exit_quietly_on_interrupt()  # before anything else is imported
    protect_path()

import logging
import math
import os
import select
import signal
import sys
import time
from contextlib import suppress

from bireme.cli import agent
from bireme.cli.main import guarded
from bireme.deepspeed.arguments import namespace, parse_as_deepspeed
from bireme.logs.console import complain
from bireme.process.kernel import descendants
from bireme.process.pid_file import DIRECTORY as PID_FILE_BASEPATH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

__all__ = ["PID_FILE_BASEPATH", "logger", "main", "parse_args", "terminate_process_tree"]

_GRACE = 30.0
"""Seconds between SIGTERM and SIGKILL for a process tree, as in DeepSpeed."""


class _OnStderr(logging.Handler):
    """Writes records to stderr, as messages of Bireme."""

    def emit(self, record: logging.LogRecord) -> None:
        complain(self.format(record))


logger = logging.getLogger("bireme.deepspeed")
"""Programs may replace its handlers or set its level; jobs have ``--log_level``."""

logger.setLevel(logging.INFO)
logger.propagate = False
logger.addHandler(_OnStderr())


def parse_args(args: Sequence[str] | None = None) -> Namespace:
    """Parse the command line into a namespace, with ``training_script`` and ``training_script_args``.

    Raises:
        SystemExit: with code 2 if the command line is invalid; with 0 for ``--help``.
    """
    words = sys.argv[1:] if args is None else args
    return namespace("agent", words, "training_script", "training_script_args")


def main() -> None:
    """Run this process's command line as one node of a job; its script gets ``--local_rank``.

    Raises:
        ValueError: bad input; nothing was started.
        SystemExit: with the node's exit code, if it is not 0.
    """
    code = _carry_out(sys.argv[1:])
    if code:
        raise SystemExit(code)


def _carry_out(words: Sequence[str]) -> int:
    return agent.carry_out(parse_as_deepspeed("agent", words))


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
        for signum, seconds in ((signal.SIGTERM, _GRACE), (signal.SIGKILL, math.inf)):
            for end in ends:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(end, signum)
            if _have_ended(ends, seconds):
                break
    finally:
        for end in ends:
            os.close(end)


def _have_ended(ends: set[int], seconds: float) -> bool:
    """Wait until these processes have ended, at most for this time; return whether all have."""
    deadline, left, poll = time.monotonic() + seconds, set(ends), select.poll()
    for end in ends:
        poll.register(end, select.POLLIN)
    while left and (wait := deadline - time.monotonic()) > 0:
        for end, _ in poll.poll(None if wait == math.inf else wait * 1000):
            poll.unregister(end)
            left.discard(end)
    return not left


if __name__ == "__main__":
    guarded(_carry_out, sys.argv[1:])
