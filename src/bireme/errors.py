"""The exceptions of Bireme and its exit codes.

::

    BiremeError                 125  Bireme itself failed
    ├── BadInputError             2  the user's mistake: one or two lines, nothing was started
    ├── UnfitError               69  a host cannot be reached or is not fit
    └── ProtocolError                the other side of a control channel broke its protocol: reported as its node's loss

A job that fails exits with the code of its first failed rank: the program's exit code, or 128 + n for signal n. The
codes below are Bireme's own; ``docs/exit-codes.md`` explains them to users.
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


class BiremeError(Exception):
    """Base of all errors of Bireme.

    Args:
        what: what is wrong, in one line.
        hint: what the user can do about it, shown as a second line.
        where: ``file:line`` or the option at fault, shown before ``what``.

    Attributes:
        hosts: the nodes at fault, by their names in the pool; empty where no node is to blame.
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
    """The user made a mistake; nothing has been started."""

    code = BAD_INPUT


class UnfitError(BiremeError):
    """A host cannot be reached, or cannot run its part of the job."""

    code = UNFIT


class ProtocolError(BiremeError):
    """The other side of a control channel broke the protocol."""
