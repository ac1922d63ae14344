"""Live rows: follows how ranks redraw their last lines on a terminal (progress bars), and draws them below all lines.

`LiveRows` is pure: bytes in, finished lines and live rows out. It understands what tqdm, rich and the like write:
carriage returns, erasing, moving up and down. It drops what would move the cursor over other ranks' lines, and lets no
colour outlive its line. `LiveRegion` has the rows of all ranks on one terminal: redrawn as they change, erased before a
line.
"""

from __future__ import annotations

import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bireme.loop import Loop, Timer

_TOKEN = re.compile(
    rb"\x1b\[[0-?]*[ -/]*[@-~]"  # a control sequence
    rb"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # a command to the terminal (title, link)
    rb"|\x1b[^\[\]]?|[\r\n\b]|[^\x1b\r\n\b]+"
)
_UNFINISHED = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*|\][^\x07\x1b]*\x1b?)?\Z")
_COLOURS = re.compile(rb"(?:\x1b\[[0-?]*[ -/]*m)*\Z")
_RESET = b"\x1b[0m"
_RESETS = (b"\x1b[m", _RESET, b"\x1b[00m")
_BEGUN = 4096
"""Bytes of an unfinished line that are kept. A longer line is not a progress bar."""
_MOST_ROWS = 24
_LONGEST_ESCAPE = 4096

NESTED = 0.1
"""Seconds within which a program that has left a row moves up to it again, if it draws several bars."""


class _Row:
    """A row that may still be redrawn. ``drawn``: its text has replaced an earlier one, as in a progress bar."""

    __slots__ = ("drawn", "text")

    def __init__(self) -> None:
        self.text = b""
        self.drawn = False


class LiveRows:
    """The end of one stream of one rank, as a terminal would show it."""

    def __init__(self) -> None:
        self.takes_back = False
        """Whether the last feed has replaced the unfinished line that was returned before."""
        self._rows: list[_Row] = []
        self._at = 0  # the cursor's row, from the first live one
        self._fresh = False  # the cursor is at the beginning of its row: text replaces what is there
        self._rose = False  # it was moved up, and nothing was written since
        self._hidden = False  # the program has hidden it, and draws rows until it shows it again
        self._line = b""  # the unfinished line, if no row is live
        self._colour = b""  # to be set before the next text
        self._coloured = False
        self._rest = b""  # an escape sequence that has not been received completely
        self._last = 0.0

    @property
    def rows(self) -> list[bytes]:
        """What is to be shown below all finished lines."""
        return [_ended(row.text) for row in self._rows if row.text.strip()]

    @property
    def left(self) -> bool:
        """Whether the program seems to have finished its rows: it has gone to the next line."""
        return bool(self._rows) and not self._hidden and not any(row.text.strip() for row in self._rows[self._at :])

    def feed(self, chunk: bytes, now: float) -> bytes:
        """Take what was read at ``now``; return the ordinary text in it, and rows that are finished.

        An unfinished line that an earlier feed has returned is void if this one :attr:`takes_back`.
        """
        self.takes_back = False
        chunk, self._rest = self._rest + chunk, b""
        since, self._last = now - self._last, now
        only_adds = b"\r" not in chunk and b"\x1b" not in chunk and b"\b" not in chunk
        if only_adds and not (self._rows or self._hidden or self._colour or self._coloured or self._fresh):
            line = chunk[chunk.rfind(b"\n") + 1 :]
            self._line = (self._line + line if len(line) == len(chunk) else line)[:_BEGUN]
            return chunk
        unfinished = _UNFINISHED.search(chunk)
        if unfinished is not None and len(chunk) - unfinished.start() < _LONGEST_ESCAPE:
            chunk, self._rest = chunk[: unfinished.start()], unfinished.group()
        out: list[bytes] = []
        if not self._hidden and since >= NESTED:
            self._finish(self._at, out)
        for token in _TOKEN.findall(chunk):
            if token == b"\r":
                self._fresh = True
            elif token == b"\n":
                self._end_line(out)
            elif token == b"\b":
                self._delete()
            elif token[0] == 0x1B:
                self._escape(token, out)
            else:
                self._text(token, out)
        return b"".join(out)

    def rested(self) -> bytes:
        """What to show because nothing has followed for a moment: a prompt after a bar."""
        out: list[bytes] = []
        if not self._hidden and self._at == len(self._rows) - 1 and not self._rows[-1].drawn:
            prompt = self._rows.pop().text
            self._finish(self._at, out)
            self._line = prompt[:_BEGUN]
            out.append(prompt)
            self._coloured = b"\x1b[" in prompt
        if self._coloured and not self._rows:
            self._coloured = False
            out.append(_RESET)
        return b"".join(out)

    def end(self) -> bytes:
        """All that is live, as finished lines: the stream has ended."""
        self._hidden = self._fresh = False
        out: list[bytes] = []
        if self._coloured and not self._rows:
            out.append(_RESET)
        self._finish(len(self._rows), out)
        return b"".join(out)

    def _text(self, text: bytes, out: list[bytes]) -> None:
        text, self._colour = self._colour + text, b""
        if not self._rows and not self._hidden:
            if not self._fresh:
                self._line = (self._line + text)[:_BEGUN]
                self._coloured = self._coloured or b"\x1b[" in text
                out.append(text)
                return
            self._replace_line(out)
        if self._rose:
            self._finish(self._at, out)
            self._rose = False
        while len(self._rows) <= self._at:
            self._rows.append(_Row())
        row = self._rows[self._at]
        if self._fresh:
            row.text, row.drawn, self._fresh = text, True, False
        elif len(row.text) < _BEGUN:
            row.text += text

    def _replace_line(self, out: list[bytes]) -> None:
        """Void the unfinished line, whose place the first row takes."""
        if self._line:
            text = b"".join(out)
            end = text.rfind(b"\n") + 1
            self.takes_back = not end
            out[:] = [text[:end]]
        self._line, self._coloured, self._at = b"", False, 0

    def _end_line(self, out: list[bytes]) -> None:
        self._fresh = self._rose = False
        if not self._rows and not self._hidden:
            out.append(_RESET + b"\n" if self._coloured else b"\n")
            self._line, self._coloured, self._colour = b"", False, b""
            return
        last = self._at >= len(self._rows) - 1
        plain = self._at >= len(self._rows) or not self._rows[self._at].drawn
        while len(self._rows) <= self._at:
            self._rows.append(_Row())
        self._at += 1
        self._colour = b""
        if (last and plain and not self._hidden) or len(self._rows) > _MOST_ROWS:
            self._finish(self._at, out)

    def _delete(self) -> None:
        if self._at < len(self._rows) and not self._fresh:
            row = self._rows[self._at]
            text = row.text[: _COLOURS.search(row.text).start()]  # type: ignore[union-attr]  # it matches nothing too
            row.text = text[:-1] + row.text[len(text) :]
        elif not self._rows:
            self._fresh = True

    def _escape(self, token: bytes, out: list[bytes]) -> None:
        kind, parameters = token[-1:], token[2:-1]
        number = int(parameters) if parameters.isdigit() else 0
        if not token.startswith(b"\x1b["):
            return
        if kind == b"m":
            self._colour = token if token in _RESETS else self._colour + token
        elif kind in b"AF":
            self._at, self._rose = max(0, self._at - max(number, 1)), bool(self._rows)
            self._fresh = self._fresh or kind == b"F"
        elif kind in b"BE":
            self._at = min(len(self._rows), self._at + max(number, 1))
            self._fresh = self._fresh or kind == b"E"
        elif kind == b"K" and (number == 2 or (number == 0 and self._fresh)):
            self._fresh = True
            if self._at < len(self._rows):
                self._rows[self._at].text, self._rows[self._at].drawn = b"", True
        elif kind == b"J" and number == 0:
            del self._rows[self._at + (not self._fresh) :]
        elif kind == b"G":
            self._fresh = self._fresh or number <= 1
        elif token == b"\x1b[?25l":
            self._hidden = True
        elif token == b"\x1b[?25h":
            self._hidden = False
            self._finish(self._at, out)
            if not any(row.text.strip() for row in self._rows):
                self._rows.clear()
                self._at = 0

    def _finish(self, number: int, out: list[bytes]) -> None:
        """Turn the first rows into ordinary lines. A bar that was erased leaves none."""
        number = min(number, len(self._rows))
        for row in self._rows[:number]:
            if row.text.strip() or not row.drawn:
                out.append(_ended(row.text) + b"\n")
        del self._rows[:number]
        self._at = max(0, self._at - number)


def _ended(text: bytes) -> bytes:
    """A line without the spaces that have erased a longer one, which sets no colour for what follows."""
    text = text.rstrip(b" ")
    return text + _RESET if b"\x1b[" in text and not text.endswith((_RESET, b"\x1b[m")) else text


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
    from unicodedata import east_asian_width

    for part in re.findall(r"\x1b\[[0-9;:]*m|.", row.decode(errors="replace"), re.DOTALL):
        yield part, 0 if part[0] == "\x1b" else 2 if east_asian_width(part) in "WF" else 1
