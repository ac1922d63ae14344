"""The error tree and the exit codes.

::

    BiremeError                 125  Bireme itself failed
    ├── BadInputError             2  the user's mistake: one or two lines, nothing was started
    ├── UnfitError               69  a host cannot be reached or is not fit
    └── LostError                75  a node or an agent was lost

A job's own exit code is that of its first failure: what the program gave, or 128 + n for signal n.
The codes below are Bireme's own (``docs/exit-codes.md`` shows the same table).
"""

from __future__ import annotations

OK = 0
BAD_INPUT = 2
UNFIT = 69
LOST = 75
TOO_FEW = 76
TIME_LIMIT = 124
INTERNAL = 125
CANNOT_RUN = 126
NOT_FOUND = 127
READER_GONE = 141

EXIT_CODES = {
    OK: "every rank ended with 0",
    BAD_INPUT: "bad input: nothing was started",
    UNFIT: "a host cannot be reached or is not fit (preflight)",
    LOST: "a node or an agent was lost",
    TOO_FEW: "an elastic job had too few nodes for too long",
    TIME_LIMIT: "the time limit was reached",
    INTERNAL: "Bireme itself failed",
    CANNOT_RUN: "the program cannot be executed",
    NOT_FOUND: "the program was not found",
    READER_GONE: "the reader of our output went away (128 + SIGPIPE)",
}
"""Every exit code that Bireme gives of its own accord; any other is the program's."""


class BiremeError(Exception):
    """Base of all errors of Bireme.

    Args:
        what: what is wrong, in one line.
        hint: what the user can do about it; shown as a second line.
        where: ``file:line`` or the option at fault; stands before ``what``.

    Attributes:
        hosts: the nodes at fault, by their names in the pool, where it is theirs.
    """

    code = INTERNAL
    hosts: tuple[str, ...] = ()

    def __init__(self, what: str, *, hint: str = "", where: str = "") -> None:
        super().__init__(what)
        self.what, self.hint, self.where = what, hint, where

    def __str__(self) -> str:
        first = f"{self.where}: {self.what}" if self.where else self.what
        return f"{first}\n  {self.hint}" if self.hint else first


class BadInputError(BiremeError, ValueError):
    """The user's mistake; raised before anything is started."""

    code = BAD_INPUT


class UnfitError(BiremeError):
    """A host cannot be reached, or cannot carry the job."""

    code = UNFIT


class LostError(BiremeError):
    """A node or an agent was lost while the job ran."""

    code = LOST
