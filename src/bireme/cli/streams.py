"""Decides which local ranks are shown, by torchrun's ``--redirects`` and ``--tee`` (``3``, or ``0:3,1:1`` by rank)."""

from __future__ import annotations

from bireme.cli.parser import whole
from bireme.errors import BadInputError

_BOTH = 3
"""stdout (1) and stderr (2)."""
_OTHERS = -1
"""Instead of a rank's number: all ranks that are not listed."""
_MOST_RANKS = 4096
"""More than any node has."""


def shown(redirects: str, tee: str, only: tuple[int, ...]) -> tuple[int, ...] | None:
    """The local ranks whose output is shown; empty: all; ``None``: none.

    Args:
        redirects: the value of ``--redirects``: streams that go only to files; "": none.
        tee: the value of ``--tee``: streams that are shown nevertheless; "": none.
        only: the local ranks that may be shown; empty: all.

    Raises:
        BadInputError: one of them is not a list of streams.
    """
    to_files, also_shown = _streams(redirects, "--redirects"), _streams(tee, "--tee")

    def hidden(rank: int) -> bool:
        return to_files.get(rank, to_files[_OTHERS]) & ~also_shown.get(rank, also_shown[_OTHERS]) == _BOTH

    ranks = only or range(_MOST_RANKS)
    found = tuple(rank for rank in ranks if not hidden(rank))
    return found if found and len(found) < len(ranks) else only if found else None


def _streams(text: str, where: str) -> dict[int, int]:
    """The streams of each rank that a value names, as a sum of 1 (stdout) and 2 (stderr)."""
    streams = {_OTHERS: 0}
    for word in text.split(",") if text else ():
        rank, colon, number = word.rpartition(":")
        value = whole(number, where)
        if not 0 <= value <= _BOTH or (not colon and word != text):
            hint = "expected 0 (none), 1 (stdout), 2 (stderr) or 3 (both), or such a number for each rank: 0:3,1:1"
            hint = f"for a time limit: --time_limit {text}" if where == "--tee" and value > _BOTH else hint
            raise BadInputError(f"not a list of streams: {text!r}", hint=hint, where=where)
        streams[whole(rank, where) if colon else _OTHERS] = value
    return streams
