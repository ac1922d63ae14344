"""The outcome of a job: the value that the command line prints, the API returns and the tuner reads.

Death by signal n is always the code 128 + n. (DeepSpeed sometimes turns it into 0 or a negative number, MPICH into n.)
"""

from __future__ import annotations

import os

from bireme.errors import HANG, INTERNAL, LOST, NOT_FETCHED, OK, PREEMPTED, READER_GONE, TIME_LIMIT, TOO_FEW, UNFIT
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal, TypeAlias

    Cause: TypeAlias = Literal[
        "ok",
        "rank failed",
        "signal",
        "agent lost",
        "unfit",
        "reader gone",
        "time limit",
        "internal error",
        "membership",
        "too few nodes",
        "not fetched",
        "hang",
        "preempted",
    ]

CODES: dict[Cause, int] = {
    "ok": OK,
    "agent lost": LOST,
    "unfit": UNFIT,
    "membership": LOST,  # never a job's end: another epoch follows
    "too few nodes": TOO_FEW,
    "not fetched": NOT_FETCHED,
    "reader gone": READER_GONE,
    "time limit": TIME_LIMIT,
    "internal error": INTERNAL,
    "hang": HANG,
    "preempted": PREEMPTED,
}
"""The exit code of each cause but ``rank failed``, which has the rank's, and ``signal``, which has 128 + n."""

CHOICES = {"Cause": ("rank failed", "signal", *CODES)}
"""The values of this type at run time, for `bireme.validate`."""

WORDS_OF = 8
"""How many failed ranks are quoted at most, and how many that were stopped while they printed a traceback."""


class RankEnd(Value):
    """How one rank ended.

    Attributes:
        rank: its global rank.
        host: its node, by the name in the pool.
        device: such as ``cuda:0`` or ``cpu``.
        pid: its process id on that node.
        code: its exit code, 0 to 255; 128 + n for signal n.
        by_signal: whether a signal ended it.
        seconds: from its start to its end.
        stopped: it ended after its node was told to stop, so it is not the cause of the job's end.
        out_of_memory: the kernel's out-of-memory killer ended it.
        memory_limit: whose limit the killer enforced, such as ``the limit of 512 MiB of systemd's user-1000.slice``;
            "": the node's memory was full, or it is not known.
        peak_memory: bytes of memory that it, or a process that it waited for, had at most. The small process that
            starts ranks counts too, so this is never less than what that has (about 10 MB).
        recorded: what it wrote to ``TORCHELASTIC_ERROR_FILE``.
        detail: the last lines of its stderr, or its last traceback, if it failed; see :data:`WORDS_OF`.
    """

    rank: int
    host: str
    device: str
    pid: int
    code: int
    by_signal: bool
    seconds: float
    stopped: bool
    out_of_memory: bool = False
    memory_limit: str = ""
    peak_memory: int = 0
    recorded: str = ""
    detail: str = ""


class Outcome(Value):
    """How a job ended.

    Attributes:
        exit_code: of the job.
        cause: what ended the job.
        seconds: from its start to its end.
        ends: the ends of its ranks, by rank.
        first: the rank whose failure ended the job, if one did.
        signum: the signal, where that is the cause.
        killed: how many ranks had to be killed by SIGKILL.
        stuck: processes that even SIGKILL did not end, as ``pid (name, state)``.
        logs: paths of the ranks' log files.
        note: a message about the cause.
        unread: part of the output was not written, because its reader did not read and the job was told to stop.
        hosts: the nodes at fault, by their names in the pool, where the cause is ``agent lost`` or ``unfit``.
        history: why the earlier epochs of an elastic job ended.
        interrupted: the first stop signal that was received, even if the job ended for an earlier cause; 0: none.
        job_name: the name of the job; "": it has none.
        stacks: what the ranks were doing that had to be stopped, as text; "": it is not known.
    """

    exit_code: int
    cause: Cause
    seconds: float
    ends: tuple[RankEnd, ...] = ()
    first: RankEnd | None = None
    signum: int = 0
    killed: int = 0
    stuck: tuple[str, ...] = ()
    logs: tuple[str, ...] = ()
    note: str = ""
    unread: bool = False
    hosts: tuple[str, ...] = ()
    history: tuple[str, ...] = ()
    interrupted: int = 0
    job_name: str = ""
    stacks: str = ""


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
