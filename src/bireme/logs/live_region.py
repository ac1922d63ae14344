"""The live rows of all ranks on one terminal: drawn below all lines, redrawn as they change, erased before a line."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bireme.loop import Loop, Timer

_PAUSE = 0.05
"""Seconds between two drawings: ranks may redraw their bars much more often than people can see."""


class LiveRegion:
    """The rows at the bottom of a terminal.

    Args:
        draw: called when the rows have changed and are to be drawn.
    """

    def __init__(self, loop: Loop, fd: int, draw: Callable[[], None]) -> None:
        self._loop, self._fd, self._draw = loop, fd, draw
        self._rows: dict[tuple[int, int], list[bytes]] = {}
        self._timer: Timer | None = None
        self._drawn: list[bytes] = []

    @property
    def drawn(self) -> bool:
        """Whether rows are on the screen now."""
        return bool(self._drawn)

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
        lines = len(self._drawn)
        if lines and _wraps():  # a window that is narrower by now shows a row on several lines
            columns = size_of(self._fd).columns
            lines = sum(max(1, -(-_width(row) // columns)) for row in self._drawn)
        up = b"\x1b[%dA" % (lines - 1) if lines > 1 else b""
        erased = b"\r" + up + b"\x1b[J" if lines else b""
        self._drawn = []
        return erased

    def draw(self) -> bytes:
        """The bytes that draw the rows that fit, from the cursor on; it is then behind the last row."""
        size = size_of(self._fd)
        rows = [row for place in sorted(self._rows) for row in self._rows[place]]
        self._drawn = [cut(row, size.columns) for row in rows[-max(1, size.lines - 1) :]]
        return b"\r\n".join(self._drawn)

    def leave(self) -> bytes:
        """The bytes that move the cursor below the rows, which stay on the screen."""
        below = b"\r\n" if self._drawn else b""
        self._drawn = []
        return below


def _wraps() -> bool:
    """Whether the terminal wraps its lines again when the window becomes narrower: xterm, screen and Linux do not."""
    environ = os.environ
    return not ("XTERM_VERSION" in environ or "STY" in environ or environ.get("TERM") == "linux")


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
    kept, room = [], columns
    for part, width in _parts(row):
        room -= width
        if room >= 0 or not width:
            kept.append(part)
    return "".join(kept).encode()


def _width(row: bytes) -> int:
    """The columns that a row takes."""
    return len(row) if row.isascii() and b"\x1b" not in row else sum(width for _, width in _parts(row))


def _parts(row: bytes) -> Iterator[tuple[str, int]]:
    """The characters and colours of a row, each with its columns."""
    import re
    from unicodedata import east_asian_width

    for part in re.findall(r"\x1b\[[0-9;:]*m|.", row.decode(errors="replace"), re.DOTALL):
        yield part, 0 if part[0] == "\x1b" else 2 if east_asian_width(part) in "WF" else 1
