"""The live rows of all ranks on one terminal: drawn below all lines, redrawn as they change, erased before a line."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from bireme.loop import Loop, Timer

_PAUSE = 0.05
"""Seconds between two drawings: ranks may redraw their bars much more often than people can see."""


class LiveRegion:
    """The rows at the bottom of a terminal.

    Args:
        loop: the event loop.
        fd: the terminal.
        draw: called when the rows have changed and are to be drawn.
    """

    def __init__(self, loop: Loop, fd: int, draw: Callable[[], None]) -> None:
        self._loop, self._fd, self._draw = loop, fd, draw
        self._rows: dict[tuple[int, int], list[bytes]] = {}
        self._timer: Timer | None = None
        self._drawn = 0

    @property
    def drawn(self) -> bool:
        """Whether rows are on the screen now."""
        return self._drawn > 0

    def put(self, place: tuple[int, int], rows: list[bytes]) -> None:
        """Show these rows, labelled, soon; they replace the earlier ones of the same place (rank, stream)."""
        if self._rows.get(place, []) == rows:
            return
        if rows:
            self._rows[place] = rows
        else:
            del self._rows[place]
        if self._timer is None:
            self._timer = self._loop.after(_PAUSE, self._due)

    def _due(self) -> None:
        self._timer = None
        self._draw()

    def erase(self) -> bytes:
        """The bytes that remove the rows from the screen; the cursor is then where they began."""
        up = b"\x1b[%dA" % (self._drawn - 1) if self._drawn > 1 else b""
        erased = b"\r" + up + b"\x1b[J" if self._drawn else b""
        self._drawn = 0
        return erased

    def draw(self) -> bytes:
        """The bytes that draw the rows that fit, from the cursor on; it is then behind the last row."""
        size = size_of(self._fd)
        rows = [row for place in sorted(self._rows) for row in self._rows[place]]
        shown = rows[-max(1, size.lines - 1) :]
        self._drawn = len(shown)
        return b"\r\n".join(cut(row, size.columns) for row in shown)

    def leave(self) -> bytes:
        """The bytes that move the cursor below the rows, which stay on the screen."""
        below = b"\r\n" if self._drawn else b""
        self._drawn = 0
        return below


def size_of(fd: int) -> os.terminal_size:
    """The size of a terminal; 80 columns and 24 lines if it does not know."""
    try:
        columns, lines = os.get_terminal_size(fd)
    except OSError:
        columns = lines = 0
    return os.terminal_size((columns or 80, lines or 24))


def cut(row: bytes, columns: int) -> bytes:
    """Cut a row to the width of the terminal."""
    if len(row) <= columns:
        return row
    import re
    from unicodedata import east_asian_width

    kept, room = [], columns
    for part in re.findall(r"\x1b\[[0-9;:]*m|.", row.decode(errors="replace"), re.DOTALL):
        if part[0] != "\x1b":
            room -= 2 if east_asian_width(part) in "WF" else 1
        if room >= 0 or part[0] == "\x1b":
            kept.append(part)
    return "".join(kept).encode()
