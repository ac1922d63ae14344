"""Tables, paragraphs and counts in the texts of a study."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from math import floor, log10

WIDTH = 100
_LONGEST = 60
"""Characters of a value that are shown."""

_NAMED = 3
"""Of several trials with one remark this many are named; the others are counted."""


def figure(number: float) -> str:
    """Four significant digits, without an exponent if it is of a usual size: ``1234``, ``300.0``, ``0.01250``."""
    if not 1e-9 <= abs(number) < 1e15:
        return f"{number:.4g}"
    return f"{number:.{max(0, 3 - floor(log10(abs(number))))}f}"


def short(value: str) -> str:
    """A value without its middle if it is long, so that it does not fill the screen."""
    return value if len(value) <= _LONGEST else f"{value[: _LONGEST - 20]}…{value[-19:]}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown, as DeepSpeed prints it."""
    lines = [tuple(header), *map(tuple, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    drawn = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    ]
    rule = "|" + "|".join(":" + "-" * (width + 1) for width in widths) + "|"
    return "\n".join([drawn[0], rule, *drawn[1:]])


def few(names: Sequence[str]) -> str:
    """The first names, and the number of the others."""
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def listed(title: str, lines: Iterable[str]) -> str:
    """A title and indented lines."""
    return "\n".join((title, *(wrapped(line, "  ") for line in lines)))


def wrapped(text: str, indent: str = "") -> str:
    """A paragraph; further lines are indented more."""
    # Do not break names and paths: users copy them.
    further = indent + "  "
    return textwrap.fill(
        text, WIDTH, initial_indent=indent, subsequent_indent=further, break_long_words=False, break_on_hyphens=False
    )
