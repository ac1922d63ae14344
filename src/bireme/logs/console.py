"""The screen: where the lines of all ranks and our own messages meet.

Knows which line is open (shown without its newline yet), so that nothing is ever written into the middle
of it.
"""

from __future__ import annotations

import os
import select
import sys

from bireme.errors import BiremeError
from bireme.logs.sink import Sink, is_gone

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from bireme.logs.lines import Block
    from bireme.loop import Loop

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}

OUT, ERR = 1, 2
"""The streams, by the number of their descriptor."""


def printable(text: str) -> str:
    """A message in which no word of another process can command the terminal.

    We quote what engines, nodes and ranks say. Ends of lines become newlines, and colours are left out; any other
    control character, and whatever else is not printable, is shown by its number: an escape as ``\\x1b``.
    """
    if text.isprintable():
        return text
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if "\x1b[" in text:
        import re

        text = re.sub(r"\x1b\[[0-9;:]*m", "", text)
    return "".join(char if char.isprintable() or char in "\n\t" else _by_number(char) for char in text)


def _by_number(char: str) -> str:
    if "\udc80" <= char <= "\udcff":  # stands for a byte that is not UTF-8
        return f"\\x{ord(char) - 0xDC00:02x}"
    return char.encode("unicode_escape").decode()


class Console:
    """Our stdout and stderr.

    Args:
        loop: for what cannot be written at once.
        level: the least level of our own messages that is shown.
        on_gone: called when the reader of our stdout went away.
        on_room: called when there is room again after :attr:`full`.
    """

    def __init__(self, loop: Loop, level: str, *, on_gone: Callable[[], None], on_room: Callable[[], None]) -> None:
        self._loop, self._on_gone = loop, on_gone
        self._level = _LEVELS[level]
        out = Sink(loop, OUT, on_error=self._out_failed, on_room=on_room)
        # Two ends of one file or terminal share the place on the line, and the order of what is written.
        same = os.path.sameopenfile(OUT, ERR)
        err = out if same else Sink(loop, ERR, on_error=lambda error: None, on_room=on_room)
        self._sinks = {OUT: out, ERR: err}
        self._open: dict[Sink, object] = {}

    @property
    def full(self) -> bool:
        """Whether the ranks have to wait for the reader of our output."""
        return self._sinks[OUT].full or self._sinks[ERR].full

    @property
    def pending(self) -> bool:
        """Whether something waits to be written."""
        return any(sink.pending for sink in self._sinks.values())

    def is_terminal(self, stream: int) -> bool:
        """Whether a stream goes to a terminal."""
        return self._sinks[stream].terminal

    def put(self, stream: int, source: object, block: Block) -> None:
        """Write a block of one source (a rank's stream) in one piece."""
        sink = self._sinks[stream]
        line = self._open.get(sink)
        data = block.data
        if line is not None and not (block.resumes and line is source):
            data = b"\n" + (block.more if block.resumes else b"") + data
        elif line is None and block.resumes:
            data = block.more + data
        self._open[sink] = source if block.open else None
        sink.write(data)

    def say(self, level: str, text: str) -> None:
        """One message of ours, on stderr, whole lines."""
        if _LEVELS[level] >= self._level:
            self.write_lines("".join(f"bireme: {line}\n" for line in printable(text).splitlines()))

    def write_lines(self, text: str, stream: int = ERR) -> None:
        """Whole lines of ours."""
        sink = self._sinks[stream]
        start = "\n" if self._open.get(sink) is not None else ""
        self._open[sink] = None
        sink.write((start + printable(text)).encode())

    def when_drained(self, callback: Callable[[], None]) -> None:
        """Call once everything has been written, or cannot be any more."""
        waiting = [sink for sink in set(self._sinks.values()) if sink.pending]
        if not waiting:
            callback()
        for sink in waiting:
            sink.on_drained = lambda: None if self.pending else callback()

    def finish_line(self, *, report_follows: bool) -> None:
        """End a line that was left open, so that the shell's prompt, or our report, begins on one of its own."""
        for sink in set(self._sinks.values()):
            if self._open.get(sink) is not None and (sink.terminal or (report_follows and sink is self._sinks[ERR])):
                self._open[sink] = None
                sink.write(b"\n")

    def pass_on(self, stream: int, data: bytes) -> None:
        """Bytes of the only source there is, as they are."""
        sink = self._sinks[stream]
        self._open[sink] = None if data.endswith(b"\n") else self
        sink.write(data)

    def _out_failed(self, error: OSError) -> None:
        if is_gone(error):
            self._on_gone()
        else:
            self.say("error", f"cannot write to stdout: {error.strerror}; the job continues without it")

    def close(self) -> None:
        """Free what the sinks have opened."""
        for sink in set(self._sinks.values()):
            sink.close()


def complain(text: str, *, every_line: bool = False, patience: float | None = None) -> None:
    """A message of ours when there is no console: before the start, or after the end.

    Args:
        every_line: each line says that it is ours, not only the first.
        patience: seconds to wait for a reader that does not read; ``None``: as long as it takes.
    """
    said = printable(text).splitlines()
    left = "".join(
        f"{line}\n" if place and not every_line else f"bireme: {line}\n" for place, line in enumerate(said)
    ).encode()
    poll = select.poll()
    poll.register(ERR, select.POLLOUT)
    try:
        while left and poll.poll(None if patience is None else patience * 1000):
            left = left[os.write(ERR, left[:256]) :]  # a small piece does not block after the poll's yes
    except OSError:
        pass


def show(text: str) -> None:
    """What was asked for, on stdout, when there is no console: a page of help, a plan.

    Raises:
        BiremeError: it cannot be written.
        BrokenPipeError: its reader went away.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise BiremeError(f"cannot write to stdout: {error.strerror}") from None
