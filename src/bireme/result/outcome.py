"""What happened: one object that the command line prints, the API returns and the tuner reads."""

from __future__ import annotations

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
    ]


WORDS_OF = 8
"""So many ranks that failed are quoted at most, and as many that were stopped while they showed a traceback."""


class RankEnd(Value):
    """How one rank ended.

    ``code`` is 0 to 255, 128 + n for signal n. ``seconds`` since it was started. ``stopped``: it ended after
    its node was told to stop, so it is no cause. ``recorded``: what it left in ``TORCHELASTIC_ERROR_FILE``.
    ``detail``: its last words, from its traceback on, where it failed; see :data:`WORDS_OF`.
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
    recorded: str = ""
    detail: str = ""


class Outcome(Value):
    """The end of a job.

    ``first``: the failure that brought the job down. ``stuck``: processes that even SIGKILL did not end, as
    ``pid (name, state)``. ``killed``: how many ranks SIGKILL had to end. ``unread``: a part of the output was not
    written, since nobody read and somebody wanted the end. ``hosts``: the nodes at fault, by their names in the pool,
    where the cause is ``agent lost`` or ``unfit``. ``history``: why the epochs of an elastic job have ended.
    ``interrupted``: the first signal by which somebody has asked for the end, also where there was a cause before it.
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
