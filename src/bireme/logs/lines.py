"""From a rank's bytes to labelled lines. Pure: bytes in, bytes out, no object per line.

Lines up to :data:`MAX_LINE` are never torn. A longer one is cut into pieces, and every piece after the
first carries a ``+`` in its label; so does the rest of a line whose beginning was shown early
(a prompt, a progress bar) when other output has come in between.
"""

from __future__ import annotations

import time

from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

MAX_LINE = 64 * 1024
"""Bytes of the longest line that is kept whole."""


class Label(Value):
    """What stands before a rank's lines: ``first`` before a line, ``more`` before the rest of a cut one."""

    first: bytes
    more: bytes

    @staticmethod
    def of(host: str, rank: int | str, *, timestamps: bool = False) -> Callable[[], Label]:
        """A function that gives the label for what arrives now: ``[host:rank] `` with the local time if asked."""
        name = f"{host}:{rank}"
        plain = Label(f"[{name}] ".encode(), f"[{name}+] ".encode())
        return (lambda: _stamped(name)) if timestamps else (lambda: plain)

    @staticmethod
    def empty() -> Label:
        """No label at all (``--output raw``)."""
        return Label(b"", b"")


def _stamped(name: str) -> Label:
    now = time.time()
    stamp = time.strftime("%H:%M:%S", time.localtime(now)) + f".{int(now % 1 * 1000):03d}"
    return Label(f"[{stamp} {name}] ".encode(), f"[{stamp} {name}+] ".encode())


class Block:
    """Bytes that go to the console in one piece; a plain object, for one is made with every chunk.

    ``resumes``: the first line goes on where an earlier block of this stream left its line open.
    ``open``: the last line has no newline yet. ``more``: the label to repeat in front of a
    resumed line when something else has been written meanwhile.
    """

    __slots__ = ("data", "more", "open", "resumes")

    def __init__(self, data: bytes, more: bytes, *, resumes: bool = False, open: bool = False) -> None:
        self.data, self.more, self.resumes, self.open = data, more, resumes, open


class LineCutter:
    """Labels one stream of one rank.

    Args:
        label: gives the label for what arrives now.
        relabel_cr: on a terminal, repeat the label after a carriage return, so that a progress
            bar that redraws its line does not wipe it out.
    """

    def __init__(self, label: Callable[[], Label], *, relabel_cr: bool = False) -> None:
        self._label = label
        self._relabel_cr = relabel_cr
        self._rest = b""  # an unfinished line, not shown yet
        self._shown = 0  # bytes of the present line that were shown already
        self._torn = False  # the present line was cut: its next piece is labelled as such

    @property
    def resting(self) -> bool:
        """Whether an unfinished line waits that was not shown yet."""
        return bool(self._rest)

    def feed(self, chunk: bytes) -> Block | None:
        """Take what was read; give the lines that it completes, and the pieces of one that is too long."""
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
        """The first line of ``body`` is too long, and only that can be."""
        blocks = []
        while self._first_line(body) > MAX_LINE:
            room = MAX_LINE - self._shown
            labelled = bool(self._label().first)  # without a label, a cut could not be told from a line's end
            piece = body[:room] + (b"\n" if labelled else b"")
            blocks.append(self._emit(b"", piece, len(piece)))
            self._torn = labelled
            self._shown = 0 if labelled else 1  # what comes next goes on with the line
            body = body[room:]
        end = body.rfind(b"\n") + 1
        self._rest = body[end:]
        if end:
            blocks.append(self._emit(b"", body, end))
        data = b"".join(block.data for block in blocks)
        return Block(data, blocks[0].more, resumes=blocks[0].resumes, open=blocks[-1].open)

    def _first_line(self, body: bytes) -> int:
        """Bytes of the present line with what ``body`` adds to it: only the first line can be too long."""
        newline = body.find(b"\n")
        return self._shown + (newline if newline >= 0 else len(body))

    def flush(self) -> Block | None:
        """Show the unfinished line as far as it is: it has rested, or the stream is at its end."""
        if not self._rest:
            return None
        body, self._rest = self._rest, b""
        return self._emit(b"", body, len(body))

    def _emit(self, begun: bytes, body: bytes, end: int) -> Block:
        """Label ``begun`` (which has no newline) and the first ``end`` bytes of ``body``, in as few copies as can be.

        They end with a newline, or ``end`` is all there is.
        """
        label = self._label()
        whole = body.endswith(b"\n", 0, end)
        resumes = self._shown > 0
        if not label.first:
            data = begun + body[:end]
        elif self._relabel_cr and (b"\r" in body or b"\r" in begun):
            data = self._start(label) + self._redrawn(begun + body[:end], label, whole=whole)
        else:
            # Labels also what follows the last newline: that is cut off again, which costs no copy.
            text = memoryview(body.replace(b"\n", b"\n" + label.first))
            keep = len(text) - (len(body) - end) - (len(label.first) if whole else 0)
            data = b"".join((self._start(label), begun, text[:keep]))
        newline = body.rfind(b"\n", 0, end)
        self._shown = end - (newline + 1) if newline >= 0 else self._shown + len(begun) + end
        self._torn = False
        return Block(data, label.more, resumes=resumes, open=not whole)

    def _start(self, label: Label) -> bytes:
        """What stands before the first line of a block."""
        if self._shown:
            return b""
        return label.more if self._torn else label.first

    def _redrawn(self, text: bytes, label: Label, *, whole: bool) -> bytes:
        """The text labelled, also after carriage returns, but for those before a newline: another kind of line end."""
        text = text[:-1] if whole else text
        text = text.replace(b"\r", b"\r" + label.first).replace(b"\r" + label.first + b"\n", b"\r\n")
        return text.replace(b"\n", b"\n" + label.first) + (b"\n" if whole else b"")
