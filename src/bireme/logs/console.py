"""The console: writes the lines of all ranks and our own messages to stdout and stderr.

It knows which line is open (shown, but without its newline yet), so that nothing is written into the middle of it.
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
    """Escape control characters, so that text quoted from launchers, nodes and ranks cannot control the terminal.

    Line ends become newlines, and colours are removed. Every other character that is not printable is shown by its
    number: an escape as ``\\x1b``.
    """
    if text.isprintable():
        return text
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if "\x1b[" in text:
        import re

        text = re.sub(r"\x1b\[[0-9;:]*m", "", text)
    return "".join(char if char.isprintable() or char in "\n\t" else _by_number(char) for char in text)


def _by_number(char: str) -> str:
    if "\udc80" <= char <= "\udcff":  # represents a byte that is not UTF-8
        return f"\\x{ord(char) - 0xDC00:02x}"
    return char.encode("unicode_escape").decode()


class Console:
    """Our stdout and stderr.

    Args:
        loop: the event loop.
        level: the lowest level of our own messages that is shown.
        on_gone: called when the reader of our stdout has gone away.
        on_room: called when there is room again after :attr:`full`.
    """

    def __init__(self, loop: Loop, level: str, *, on_gone: Callable[[], None], on_room: Callable[[], None]) -> None:
        self._loop, self._on_gone = loop, on_gone
        self._level = _LEVELS[level]
        out = Sink(loop, OUT, on_error=self._out_failed, on_room=on_room)
        # Two descriptors of one file or terminal share the open line and the order of writes.
        same = os.path.sameopenfile(OUT, ERR)
        err = out if same else Sink(loop, ERR, on_error=lambda error: None, on_room=on_room)
        self._sinks = {OUT: out, ERR: err}
        self._open: dict[Sink, object] = {}

    @property
    def full(self) -> bool:
        """Whether the ranks must wait for the reader of our output."""
        return self._sinks[OUT].full or self._sinks[ERR].full

    @property
    def pending(self) -> bool:
        """Whether something is waiting to be written."""
        return any(sink.pending for sink in self._sinks.values())

    def is_terminal(self, stream: int) -> bool:
        """Whether a stream goes to a terminal."""
        return self._sinks[stream].terminal

    def put(self, stream: int, source: object, block: Block) -> None:
        """Write a block in one piece.

        Args:
            stream: `OUT` or `ERR`.
            source: identifies the rank's stream that the block comes from.
            block: the block.
        """
        sink = self._sinks[stream]
        line = self._open.get(sink)
        data = block.data
        if line is not None and not (block.resumes and line is source):
            data = b"\n" + (block.more if block.resumes else b"") + data
        elif line is None and block.resumes:
            data = block.more + data
        self._open[sink] = source if block.open else None
        sink.write(data)

    def say(self, level: str, text: str, *, over_echo: bool = False) -> None:
        """Show a message of ours on stderr, if its level is high enough.

        Args:
            level: its level.
            text: the message.
            over_echo: whether it answers a key, so that a terminal has just shown ``^C``, which the message replaces.
        """
        if _LEVELS[level] >= self._level:
            self.write_lines("".join(f"bireme: {line}\n" for line in printable(text).splitlines()), over_echo=over_echo)

    def write_lines(self, text: str, stream: int = ERR, *, over_echo: bool = False) -> None:
        """Write whole lines of ours."""
        sink = self._sinks[stream]
        start = "\n" if self._open.get(sink) is not None else "\r" if over_echo and sink.terminal else ""
        self._open[sink] = None
        sink.write((start + printable(text)).encode())

    def when_drained(self, callback: Callable[[], None]) -> None:
        """Call back once everything was written, or can no longer be written."""
        waiting = [sink for sink in set(self._sinks.values()) if sink.pending]
        if not waiting:
            callback()
        for sink in waiting:
            sink.on_drained = lambda: None if self.pending else callback()

    def finish_line(self, *, report_follows: bool) -> None:
        """End a line that is still open, so that the shell's prompt or our report begins on a new one."""
        for sink in set(self._sinks.values()):
            if self._open.get(sink) is not None and (sink.terminal or (report_follows and sink is self._sinks[ERR])):
                self._open[sink] = None
                sink.write(b"\n")

    def pass_on(self, stream: int, data: bytes) -> None:
        """Write bytes unchanged, of the only source."""
        sink = self._sinks[stream]
        self._open[sink] = None if data.endswith(b"\n") else self
        sink.write(data)

    def _out_failed(self, error: OSError) -> None:
        if is_gone(error):
            self._on_gone()
        else:
            self.say("error", f"cannot write to stdout: {error.strerror}; the job continues without it")

    def close(self) -> None:
        """Close what the sinks have opened."""
        for sink in set(self._sinks.values()):
            sink.close()


def complain(text: str, *, every_line: bool = False, patience: float | None = None) -> None:
    """Write a message to stderr when there is no console: before the start or after the end of a session.

    Args:
        text: the message.
        every_line: whether each line begins with ``bireme:``, not only the first.
        patience: seconds to wait for a reader that does not read; ``None``: forever.
    """
    said = printable(text).splitlines()
    left = "".join(
        f"{line}\n" if place and not every_line else f"bireme: {line}\n" for place, line in enumerate(said)
    ).encode()
    poll = select.poll()
    poll.register(ERR, select.POLLOUT)
    try:
        while left and poll.poll(None if patience is None else patience * 1000):
            left = left[os.write(ERR, left[:256]) :]  # after a successful poll a small write does not block
    except OSError:
        pass


def show(text: str) -> None:
    """Write requested text (help, a plan) to stdout when there is no console.

    Raises:
        BiremeError: it cannot be written.
        BrokenPipeError: the reader has gone away.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise BiremeError(f"cannot write to stdout: {error.strerror}") from None
