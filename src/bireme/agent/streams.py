"""The pipes of one node's ranks: read them, keep the last words, label lines, hand them on."""

from __future__ import annotations

import fcntl
import os
import time
from functools import partial

from bireme.logs.console import ERR, OUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from bireme.logs.console import Console
    from bireme.logs.lines import Block, LineCutter
    from bireme.logs.rankfiles import RankFiles
    from bireme.loop import Loop

_CHUNK = 64 * 1024
"""Bytes a read: larger ones leave the CPU's cache and are slower (860 against 550 MB/s to a file)."""
_PIPE = 256 * 1024
"""Bytes of a pipe, so that writer and reader need not take turns."""
_SMALL = 4096
_TAIL = 32 * 1024
"""Bytes of stderr that are kept of each rank, for the report."""


class Stream:
    """One pipe: stdout or stderr of one rank. ``cutter`` is ``None`` where the output is not shown."""

    def __init__(self, rank: int, number: int, cutter: LineCutter | None, rest_seconds: float) -> None:
        self.rank, self.number, self.cutter, self.rest_seconds = rank, number, cutter, rest_seconds
        self.read_fd, self.write_fd = os.pipe()
        os.set_blocking(self.read_fd, False)
        try:
            fcntl.fcntl(self.read_fd, fcntl.F_SETPIPE_SZ, _PIPE)
        except (AttributeError, OSError):  # not Linux, or the user's bound for pipes is reached
            pass
        self.last_read = 0.0
        self.timed = False
        self.tail = b""


class Streams:
    """All pipes of a node's ranks.

    Args:
        loop: says when a pipe can be read.
        console: where shown output goes; when it is full, nothing is read.
        files: the ranks' log files, if asked for.
        on_end: called when the last pipe has reached its end.
    """

    def __init__(self, loop: Loop, console: Console, files: RankFiles | None, on_end: Callable[[], None]) -> None:
        self._loop, self._console, self._files, self._on_end = loop, console, files, on_end
        self._open: dict[int, Stream] = {}
        self._tails: dict[int, Stream] = {}
        self._paused = False

    def add(self, rank: int, number: int, cutter: LineCutter | None, rest_seconds: float) -> int:
        """Make the pipe for a rank's stream; return the descriptor that the rank writes to."""
        stream = Stream(rank, number, cutter, rest_seconds)
        self._open[stream.read_fd] = stream
        if number == ERR:
            self._tails[rank] = stream
        return stream.write_fd

    def begin(self) -> None:
        """The ranks have their ends: close ours, and read."""
        for stream in self._open.values():
            os.close(stream.write_fd)
        self._watch()

    def tail(self, rank: int) -> bytes:
        """The last bytes that a rank has written to its stderr."""
        return self._tails[rank].tail

    def resume(self) -> None:
        """The console has room again."""
        if self._paused and not self._console.full:
            self._paused = False
            self._watch()

    @property
    def ended(self) -> bool:
        """Whether every pipe has reached its end."""
        return not self._open

    def abandon(self) -> None:
        """Read what is there now and let go: a process that cannot be ended still holds a pipe."""
        for stream in list(self._open.values()):
            while stream.read_fd in self._open and self._read(stream):
                pass
            self._end(stream)

    def _watch(self) -> None:
        for stream in self._open.values():
            self._loop.watch(stream.read_fd, partial(self._read, stream))

    def _pause(self) -> None:
        self._paused = True
        for fd in self._open:
            self._loop.unwatch(fd)

    def _read(self, stream: Stream) -> bool:
        """Take one chunk; return whether there was any."""
        try:
            chunk = os.read(stream.read_fd, _CHUNK)
        except BlockingIOError:
            return False
        if not chunk:
            self._end(stream)
            return False
        if len(chunk) < _SMALL:
            self._loop.small_read()
        if stream.number == ERR:
            stream.tail = chunk[-_TAIL:] if len(chunk) >= _TAIL else (stream.tail + chunk)[-_TAIL:]
        if self._files is not None:
            self._files.write(stream.rank, chunk)
        if stream.cutter is not None:
            self._put(stream, stream.cutter.feed(chunk))
            if stream.cutter.resting:
                self._let_rest(stream, stream.cutter)
        return True

    def _put(self, stream: Stream, block: Block | None) -> None:
        if block is not None:
            self._console.put(stream.number, stream, block)
            if self._console.full and not self._paused:
                self._pause()

    def _let_rest(self, stream: Stream, cutter: LineCutter) -> None:
        """An unfinished line is shown once nothing has followed it for a moment."""
        if not stream.rest_seconds:
            self._put(stream, cutter.flush())
            return
        stream.last_read = time.monotonic()
        if not stream.timed:
            stream.timed = True
            self._loop.after(stream.rest_seconds, lambda: self._rested(stream, cutter))

    def _rested(self, stream: Stream, cutter: LineCutter) -> None:
        stream.timed = False
        if not cutter.resting:
            return
        since = time.monotonic() - stream.last_read
        if self._paused or since < stream.rest_seconds:
            stream.timed = True
            self._loop.after(max(stream.rest_seconds - since, 0.01), lambda: self._rested(stream, cutter))
        else:
            self._put(stream, cutter.flush())

    def _end(self, stream: Stream) -> None:
        if self._open.pop(stream.read_fd, None) is None:
            return
        self._loop.unwatch(stream.read_fd)
        os.close(stream.read_fd)
        if stream.cutter is not None:
            self._put(stream, stream.cutter.flush())
        if not self._open:
            self._on_end()


__all__ = ["ERR", "OUT", "Streams"]
