"""Turns the wait status of a process into an exit code and a text.

Death by signal n is always the code 128 + n. (DeepSpeed sometimes turns it into 0 or a negative number, MPICH into n.)
"""

from __future__ import annotations

import os


def exit_code(status: int) -> int:
    """The shell's exit code, 0 to 255, of a wait status as ``os.waitpid`` gives it."""
    if os.WIFSIGNALED(status):
        return 128 + os.WTERMSIG(status)
    return os.WEXITSTATUS(status)


def signal_name(number: int) -> str:
    """``SIGSEGV`` for 11; ``signal 99`` for a number without a name."""
    from signal import Signals  # only for a name: see bireme.signal_numbers

    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"


def describe(code: int, *, by_signal: bool) -> str:
    """How a rank ended, in words: ``exit code 3``, or ``SIGSEGV (exit code 139)``."""
    if by_signal:
        return f"{signal_name(code - 128)} (exit code {code})"
    return f"exit code {code}"
