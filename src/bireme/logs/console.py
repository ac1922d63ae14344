"""The console: writes the lines of all ranks and our own messages to stdout and stderr.

It knows which line is open (shown, but without its newline yet), so that nothing is written into the middle of it.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import sys

from bireme.errors import BiremeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from bireme.logs.lines import Block
    from bireme.logs.live_rows import LiveRegion
    from bireme.loop import Loop


_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}

COLOURS = {"debug": "\x1b[2m", "warning": "\x1b[33m", "error": "\x1b[31m", "critical": "\x1b[31m"}
"""The colours of our messages on a terminal, by level."""

OUT, ERR = 1, 2
"""The streams, by the number of their descriptor."""


def open_closed_streams() -> list[int]:
    """Open /dev/null for closed standard descriptors, so that no later file gets their numbers; return these."""
    opened = []
    for fd, mode in ((0, os.O_RDONLY), (OUT, os.O_WRONLY), (ERR, os.O_WRONLY)):
        try:
            os.fstat(fd)
        except OSError:
            opened.append(os.open(os.devnull, mode))  # takes the lowest free number, which is ``fd``
    return opened


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
        level: the lowest level of our own messages that is shown.
        on_gone: called when the reader of our stdout has gone away.
        on_lost: called with the reason when stdout cannot be written any more otherwise, as on a full disk.
        on_room: called when there is room again after :attr:`full`.
    """

    def __init__(
        self,
        loop: Loop,
        level: str,
        *,
        on_gone: Callable[[], None],
        on_lost: Callable[[str], object],
        on_room: Callable[[], None],
    ) -> None:
        self._loop, self._on_gone, self._on_lost = loop, on_gone, on_lost
        self._level = _LEVELS[level]
        out = Sink(loop, OUT, on_error=self._out_failed, on_room=on_room)
        # Two descriptors of one file or terminal share the open line and the order of writes.
        same = os.path.sameopenfile(OUT, ERR)
        err = out if same else Sink(loop, ERR, on_error=lambda error: None, on_room=on_room)
        self._sinks = {OUT: out, ERR: err}
        self._open: dict[Sink, object] = {}
        self._regions: dict[Sink, LiveRegion] = {}
        self._colours = COLOURS if wants_colours() else {}

    @property
    def full(self) -> bool:
        """Whether the ranks must wait for the reader of our output."""
        return self._sinks[OUT].full or self._sinks[ERR].full

    @property
    def pending(self) -> bool:
        """Whether something is waiting to be written."""
        return any(sink.pending for sink in self._sinks.values())

    def follow(self, follower: Callable[[bytes], object]) -> None:
        """Also pass on what is written from now on, before it is written."""
        for sink in set(self._sinks.values()):
            sink.followers.append(follower)

    def is_terminal(self, stream: int) -> bool:
        """Whether a stream goes to a terminal."""
        return self._sinks[stream].terminal

    @property
    def on_terminal(self) -> bool:
        """Whether anything goes to a terminal."""
        return any(sink.terminal for sink in self._sinks.values())

    def put(self, stream: int, source: object, block: Block) -> None:
        """Write a block in one piece.

        Args:
            source: identifies the rank's stream that the block comes from.
        """
        sink = self._sinks[stream]
        line = self._open.get(sink)
        data = block.data
        if line is not None and not (block.resumes and line is source):
            data = b"\n" + (block.more if block.resumes else b"") + data
        elif line is None and block.resumes:
            data = block.more + data
        self._open[sink] = source if block.open else None
        self._write_above(sink, data)

    def put_rows(self, stream: int, rank: int, rows: list[bytes]) -> None:
        """Show what a rank redraws below all lines, in the place of what it has drawn before."""
        sink = self._sinks[stream]
        if sink not in self._regions:
            if not rows:
                return
            from bireme.logs.live_rows import LiveRegion

            self._regions[sink] = LiveRegion(self._loop, stream, lambda: self._draw(sink))
        self._regions[sink].put((rank, stream), rows)

    def take_back(self, stream: int, source: object) -> None:
        """Remove an open line, if it is this source's: a bar takes its place."""
        sink = self._sinks[stream]
        if self._open.get(sink) is source:
            self._open[sink] = None
            sink.write(b"\r\x1b[K")

    def _write_above(self, sink: Sink, data: bytes) -> None:
        """Write lines above the live rows, or an open line in their place until it ends or a row changes."""
        region = self._regions.get(sink)
        if region is not None and region.drawn:
            data = region.erase() + data
            if self._open.get(sink) is None:
                data += region.draw()
        sink.write(data)

    def _draw(self, sink: Sink) -> None:
        region = self._regions[sink]
        start = b"\n" if self._open.get(sink) is not None else b""
        self._open[sink] = None
        sink.write(region.erase() + start + region.draw())

    def resized(self) -> None:
        """Draw the live rows anew: the window has another width."""
        for sink, region in self._regions.items():
            if region.drawn:
                sink.write(region.erase() + region.draw())

    def try_again(self, text: str) -> None:
        """Write again after an error, with a message on a line of its own where output is missing."""
        for sink in set(self._sinks.values()):
            sink.is_broken = False
            self._open[sink] = self  # the last line may have been cut
        self.say("warning", text)

    def leave_rows(self) -> None:
        """Move below the live rows, before another program writes to the terminal."""
        for sink, region in self._regions.items():
            if region.drawn:
                sink.write(region.erase() + region.draw() + region.leave())

    def say(self, level: str, text: str, *, over_echo: bool = False) -> None:
        """Show a message of ours on stderr, if its level is high enough.

        Args:
            over_echo: whether it answers a key, so that a terminal has just shown ``^C``, which the message replaces.
        """
        if _LEVELS[level] >= self._level:
            lines = "".join(f"bireme: {line}\n" for line in printable(text).splitlines())
            sink = self._sinks[ERR]
            start = "\n" if self._open.get(sink) is not None else "\r" if over_echo and sink.terminal else ""
            self._open[sink] = None
            shown = coloured(lines, self._colours.get(level, "")) if sink.terminal else lines
            self._write_above(sink, (start + shown).encode())

    def when_drained(self, callback: Callable[[], None]) -> None:
        """Call back once everything was written, or can no longer be written."""
        waiting = [sink for sink in set(self._sinks.values()) if sink.pending]
        if not waiting:
            callback()
        for sink in waiting:
            sink.on_drained = lambda: None if self.pending else callback()

    def finish_line(self, *, report_follows: bool) -> None:
        """End a line that is still open, so that the shell's prompt or our report begins on a new one."""
        self.leave_rows()
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
            self._on_lost(error.strerror or str(error))

    def close(self) -> None:
        """Close what the sinks have opened."""
        for sink in set(self._sinks.values()):
            sink.close()


def wants_colours() -> bool:
    """Whether our messages may have colours on a terminal (https://no-color.org)."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"


def coloured(text: str, colour: str) -> str:
    """The lines in a colour, if one is given, which ends with each line."""
    if not colour:
        return text
    return "".join(f"{colour}{line}\x1b[0m\n" for line in text.splitlines())


def complain(text: str, *, every_line: bool = False, patience: float | None = None) -> None:
    """Write a message to stderr when there is no console: before the start or after the end of a session.

    Args:
        every_line: whether each line begins with ``bireme:``, not only the first.
        patience: seconds to wait for a reader that does not read; ``None``: forever.
    """
    said = [
        f"{line}\n" if place and not every_line else f"bireme: {line}\n"
        for place, line in enumerate(printable(text).splitlines())
    ]
    if said and os.isatty(ERR) and wants_colours():
        said[0] = coloured(said[0], COLOURS["error"])
    left = "".join(said).encode()
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


_SAFE_WRITE = 4096
"""PIPE_BUF: after a successful poll, a write of this size does not block, even on a blocking pipe."""


_HIGH_WATER = 256 * 1024
"""Waiting bytes above which a sink is full."""
_LOW_WATER = _HIGH_WATER // 2
"""Waiting bytes below which a full sink has room again."""


class Sink:
    """A descriptor that output is written to.

    Args:
        fd: the descriptor. It is not closed, and its flags are not changed: a terminal is shared with the shell,
            which would find it non-blocking.
        on_error: called once with the error when nothing more can be written; the sink then discards everything.
        on_room: called when a full sink has room again.
    """

    def __init__(
        self, loop: Loop, fd: int, *, on_error: Callable[[OSError], None], on_room: Callable[[], None]
    ) -> None:
        self._loop, self._on_error = loop, on_error
        self._fd, self._limit, self._own = _nonblocking_twin(fd)
        self._waiting = bytearray()
        self.full = False
        """Whether the ranks must wait until some of it is written."""
        self._on_room = on_room
        self.is_broken = False
        """Whether nothing can be written any more."""
        self.on_drained: Callable[[], None] = lambda: None
        self.followers: list[Callable[[bytes], object]] = []
        self.terminal = os.isatty(fd)

    @property
    def pending(self) -> bool:
        """Whether something is waiting to be written."""
        return bool(self._waiting)

    def write(self, data: bytes) -> None:
        """Write, or keep for later."""
        for follower in self.followers if data else ():
            follower(data)
        if self.is_broken or not data:
            return
        if self._waiting:
            self._keep(data)
            return
        written = 0 if self._limit else self._try(data)
        if written < len(data) and not self.is_broken:
            self._keep(data[written:])
            self._loop.watch_write(self._fd, self.write_more)

    def _keep(self, data: bytes) -> None:
        self._waiting += data
        self.full = self.full or len(self._waiting) > _HIGH_WATER

    def _try(self, data: bytes | bytearray) -> int:
        """Write as much as possible without blocking; return the number of bytes."""
        done = 0
        try:
            with memoryview(data) as view:
                while done < len(data):
                    if self._limit and done:
                        break  # one safe piece for each successful poll
                    done += os.write(self._fd, view[done : done + self._limit] if self._limit else view[done:])
        except BlockingIOError:
            pass
        except OSError as error:
            self._fail(error)
        return done

    def write_more(self) -> None:
        """Write what is waiting, now that a write will not block."""
        written = self._try(self._waiting)
        if self.is_broken:
            return
        del self._waiting[:written]
        if not self._waiting:
            self._loop.unwatch_write(self._fd)
            self.on_drained()
        self._relieve()

    def _relieve(self) -> None:
        """Let the ranks go on if there is room again."""
        if self.full and len(self._waiting) < _LOW_WATER:
            self.full = False
            self._on_room()

    def _fail(self, error: OSError) -> None:
        self.is_broken = True
        self._waiting.clear()
        self._loop.unwatch_write(self._fd)
        self._on_error(error)
        self._relieve()
        self.on_drained()

    def close(self) -> None:
        """Close what the sink has opened itself."""
        self._loop.unwatch_write(self._fd)
        if self._own:
            os.close(self._fd)
        self.is_broken = True


def is_gone(error: OSError) -> bool:
    """Whether the error means that the reader is gone (a closed pipe, a hung-up terminal)."""
    return error.errno in (errno.EPIPE, errno.ECONNRESET, errno.EIO)


def _nonblocking_twin(fd: int) -> tuple[int, int, bool]:
    """Find a descriptor by which ``fd`` can be written without blocking.

    A pipe or terminal is opened again, since ``O_NONBLOCK`` belongs to the open file, which other processes share.
    Where that is impossible (a socket, a terminal of another user), small writes after a poll do not block. A regular
    file never blocks in this sense.

    Returns:
        The descriptor, the most bytes per write (0: no limit), and whether we have to close it.
    """
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode) or (stat.S_ISCHR(mode) and not os.isatty(fd)):
        return fd, 0, False
    if not os.get_blocking(fd):
        return fd, 0, False
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        try:
            path = os.ttyname(fd) if os.isatty(fd) else f"/proc/self/fd/{fd}"
            return os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY), 0, True
        except OSError:
            pass
    return fd, _SAFE_WRITE, False
