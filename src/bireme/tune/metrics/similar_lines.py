"""Says that a pattern never matched, with the line of the output that is most like it, and the end of the output."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

from bireme.regular_file import open_regular

_LOOKED_AT = 1 << 20
"""Bytes at the beginning and at the end of a file that are searched."""

_MOST_ROWS = 4000
_LONGEST = 120
_WIDE = 400
_LAST = 3
_ALIKE = 0.5
"""How much of the pattern's text a similar line has."""

_LABEL = re.compile(r"\[\d+\.\d+ [^\]]*\] ")
_ESCAPE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


def never_matched(pattern: str, paths: Sequence[str]) -> str:
    """The message about a pattern.

    Args:
        paths: the files of the output: of stdout, then of stderr.
    """
    rows = [list(_rows(path)) for path in paths]
    if not any(rows):
        return f"{pattern!r} matches no line: the program printed nothing"
    first = f"{pattern!r} matches no line of the output"
    near = _most_similar(pattern, [row for part in rows for row in part])
    last = next(part for part in rows if part)[-_LAST:]
    ends = " | ".join(_short(row) for row in last)
    return (
        f"{first}; the most similar: {_short(near)}\n  the output ends: {ends}"
        if near
        else f"{first}, which ends: {ends}"
    )


def _short(row: str) -> str:
    return row if len(row) <= _LONGEST else row[: _LONGEST - 1] + "…"


def _rows(path: str) -> Iterator[str]:
    """What the ranks printed, row by row, without labels; rows that differ only in digits once."""
    seen: set[str] = set()
    for piece in _ends_of(path):
        for line in piece.decode(errors="replace").split("\n"):
            label = _LABEL.match(line)
            if label is None:
                continue  # a message of the launcher
            for row in line[label.end() :].split("\r"):
                row = _ESCAPE.sub("", row).strip(" \t\0")
                kind = re.sub(r"\d+", "0", row)[:_WIDE]
                if row and kind not in seen and len(seen) < _MOST_ROWS and not row.startswith("\x1e"):
                    seen.add(kind)
                    yield row


def _ends_of(path: str) -> Iterator[bytes]:
    """The beginning and the end of a file, which are all of it if it is short."""
    try:
        with open(open_regular(path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            yield file.read(_LOOKED_AT)
            if size > _LOOKED_AT:
                file.seek(max(_LOOKED_AT, size - _LOOKED_AT))
                yield file.read(_LOOKED_AT)
    except OSError:
        return


def _most_similar(pattern: str, rows: list[str]) -> str:
    """The row that has the longest pieces of the pattern's text; "" if none has enough of it."""
    parts = [part.strip().lower() for part in pattern.split("{}") if part.strip()]
    pairs = {part[at : at + 2] for part in parts for at in range(len(part) - 1)}

    def shared_pairs(row: str) -> tuple[int, bool]:
        low = row[:_WIDE].lower()
        return sum(1 for pair in pairs if pair in low), any(char.isdigit() for char in low)

    def shared_pieces(row: str) -> int:
        low = row[:_WIDE].lower()
        return sum(
            SequenceMatcher(None, part, low, autojunk=False).find_longest_match(0, len(part), 0, len(low)).size
            for part in parts
        )

    likely = sorted(rows, key=shared_pairs, reverse=True)[:20]
    best = max(likely, key=shared_pieces, default="")
    return best if best and shared_pieces(best) >= max(2, _ALIKE * sum(map(len, parts))) else ""
