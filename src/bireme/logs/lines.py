"""Cuts a rank's output into lines and labels them. Pure: bytes in, bytes out, without an object per line.

Lines up to :data:`MAX_LINE` are kept whole. A longer one is cut into pieces, and every piece after the first has a
``+`` in its label. So has the rest of a line whose beginning was shown early (a prompt, a progress bar) if other output
came in between.
"""

from __future__ import annotations

import os
import time

from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

SINCE = "BIREME_LABELS_SINCE"
"""The tuner's private wish: labels with times have the seconds since this reading of the machine's monotonic clock."""

MAX_LINE = 64 * 1024
"""Bytes of the longest line that is kept whole."""


class Label(Value):
    """The prefix of a rank's lines: ``first`` for a line, ``more`` for the rest of a line that was cut."""

    first: bytes
    more: bytes

    @staticmethod
    def of(host: str, rank: int | str, *, timestamps: bool = False) -> Callable[[], Label]:
        """A function that returns the label for output that arrives now.

        Args:
            rank: a rank, or a set of ranks.
        """
        name = f"{host}:{rank}"
        if timestamps and (since := os.environ.get(SINCE)):
            begin = float(since)
            return lambda: _labelled(f"{time.monotonic() - begin:.3f} {name}")
        if timestamps:
            return lambda: _labelled(f"{_local_time()} {name}")
        plain = _labelled(name)
        return lambda: plain

    @staticmethod
    def empty() -> Label:
        """No label at all (``--output raw``)."""
        return Label(b"", b"")


def _labelled(name: str) -> Label:
    return Label(f"[{name}] ".encode(), f"[{name}+] ".encode())


def _local_time() -> str:
    now = time.time()
    return time.strftime("%H:%M:%S", time.localtime(now)) + f".{int(now % 1 * 1000):03d}"


class Block:
    """Bytes to write to the console in one piece. A plain object, since one is created for every chunk.

    Args:
        more: the label to repeat before a resumed line if something else was written in between.
        resumes: whether the first line continues the open line of an earlier block.
        open: whether the last line has no newline yet.
    """

    __slots__ = ("data", "more", "open", "resumes")

    def __init__(self, data: bytes, more: bytes, *, resumes: bool = False, open: bool = False) -> None:
        self.data, self.more, self.resumes, self.open = data, more, resumes, open


class LineCutter:
    """Labels one stream of one rank."""

    def __init__(self, label: Callable[[], Label]) -> None:
        self.label = label
        self._rest = b""  # an unfinished line, not shown yet
        self._shown = 0  # bytes of the current line that were shown already
        self._torn = False  # the current line was cut: its next piece is labelled as such

    def take_back(self) -> None:
        """Forget the unfinished line, whether it was shown or not: a bar takes its place."""
        self._rest, self._shown, self._torn = b"", 0, False

    def feed(self, chunk: bytes) -> Block | None:
        """Take what was read; return the lines that it completes, and the pieces of a line that is too long."""
        newline = chunk.find(b"\n")
        rest = self._rest
        length = self._shown + len(rest) + (newline if newline >= 0 else len(chunk))
        if length > MAX_LINE:
            return self._cut(rest + chunk)
        end = chunk.rfind(b"\n") + 1 if newline >= 0 else 0
        if not end:
            self._rest = rest + chunk
            return None
        self._rest = chunk[end:]
        return self._emit(rest, chunk, end)

    def _cut(self, body: bytes) -> Block:
        """Cut the first line of ``body``, which is too long; no other line can be."""
        blocks = []
        while self._first_line(body) > MAX_LINE:
            room = MAX_LINE - self._shown
            labelled = bool(self.label().first)  # without a label, a cut would look like the end of a line
            piece = body[:room] + (b"\n" if labelled else b"")
            blocks.append(self._emit(b"", piece, len(piece)))
            self._torn = labelled
            self._shown = 0 if labelled else 1  # what comes next continues the line
            body = body[room:]
        end = body.rfind(b"\n") + 1
        self._rest = body[end:]
        if end:
            blocks.append(self._emit(b"", body, end))
        data = b"".join(block.data for block in blocks)
        return Block(data, blocks[0].more, resumes=blocks[0].resumes, open=blocks[-1].open)

    def _first_line(self, body: bytes) -> int:
        """Bytes of the current line with what ``body`` adds to it."""
        newline = body.find(b"\n")
        return self._shown + (newline if newline >= 0 else len(body))

    def flush(self) -> Block | None:
        """Return the unfinished line as far as it was read, because it rests or the stream has ended."""
        if not self._rest:
            return None
        body, self._rest = self._rest, b""
        return self._emit(b"", body, len(body))

    def _emit(self, begun: bytes, body: bytes, end: int) -> Block:
        """Label ``begun`` (without a newline) and the first ``end`` bytes of ``body``, with as few copies as possible.

        They end with a newline, or ``end`` is the length of ``body``.
        """
        label = self.label()
        whole = body.endswith(b"\n", 0, end)
        resumes = self._shown > 0
        if not label.first:
            data = begun + body[:end]
        else:
            # Also labels what follows the last newline, and cuts that off again without a copy.
            text = memoryview(body.replace(b"\n", b"\n" + label.first))
            keep = len(text) - (len(body) - end) - (len(label.first) if whole else 0)
            data = b"".join((self._start(label), begun, text[:keep]))
        newline = body.rfind(b"\n", 0, end)
        self._shown = end - (newline + 1) if newline >= 0 else self._shown + len(begun) + end
        self._torn = False
        return Block(data, label.more, resumes=resumes, open=not whole)

    def _start(self, label: Label) -> bytes:
        """The label of a block's first line."""
        if self._shown:
            return b""
        return label.more if self._torn else label.first
