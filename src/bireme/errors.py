"""The exceptions of Bireme, its exit codes, and helpers for the texts of messages.

::

    BiremeError                 125  Bireme itself failed
    ├── BadInputError             2  the user's mistake: one or two lines, nothing was started
    ├── UnfitError               69  a host cannot be reached or is not fit
    └── ProtocolError                the other side of a control channel broke its protocol: reported as its node's loss

A job that fails exits with the code of its first failed rank: the program's exit code, or 128 + n for signal n. The
codes below are Bireme's own; ``docs/exit-codes.md`` explains them to users.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

OK = 0
BAD_INPUT = 2
UNFIT = 69
NOT_FETCHED = 74
LOST = 75
TOO_FEW = 76
HANG = 77
PREEMPTED = 78
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


def similar(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """The known word that was probably meant; "" if none is at least as similar as ``cutoff``, from 0 to 1."""
    from difflib import get_close_matches  # only for a mistake

    return next(iter(get_close_matches(word, list(known), 1, cutoff)), "")


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "", *, cutoff: float = 0.6, form: str = "{}") -> str:
    """The hint for a word that is not known: ``did you mean …?``, or what else to say if none is `similar`.

    Args:
        form: how the known word is shown, with ``{}`` in its place.
    """
    near = similar(word, known, cutoff)
    return f"did you mean {form.format(near)}?" if near else otherwise


def counted(number: int, noun: str) -> str:
    """``1 trial``, ``2,000 trials``."""
    return f"{number:,} {noun if number == 1 else noun + 's'}"


def number_in(text: str) -> int | None:
    """A whole number of fewer than ten digits, as ``int()`` raises on thousands; ``None``: it is something else."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None
