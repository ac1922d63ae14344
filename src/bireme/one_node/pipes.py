"""The pipes of one node's ranks: reads stdout and stderr, passes chunks on, and pauses when told to; writes stdin."""

from __future__ import annotations

import errno
import fcntl
import os

from bireme.job import ANSWERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from bireme.loop import Loop, Timer

OUT, ERR = 1, 2
"""The streams of a rank, stdout and stderr; a third one is `ANSWERS`."""
_CHUNK = 64 * 1024
"""Bytes per read: larger reads miss the CPU's cache and are slower (550 instead of 860 MB/s to a file)."""
_PIPE = 256 * 1024
"""Bytes of a pipe's buffer, so that writer and reader need not take turns."""
_SMALL = 4096
_LATE = 0.05
"""Seconds by which the check of an unfinished line may be late. Beyond, the rank may have been suspended like us."""


class _Pipe:
    """One pipe: a stream of one rank."""

    def __init__(self, loop: Loop, rank: int, number: int, ends: tuple[int, int] | None) -> None:
        self.rank, self.number = rank, number
        self.begun = False
        self.excused = False
        """Whether the last check was late and is to be repeated."""
        self.timer: Timer | None = None
        self.last_read = 0.0
        self.read_fd, self.write_fd = ends or loop.pipe()
        loop.set_blocking(self.read_fd, False)
        if ends is not None:
            return
        try:
            fcntl.fcntl(self.read_fd, fcntl.F_SETPIPE_SZ, _PIPE)
        except (AttributeError, OSError):  # not Linux, or the user's limit for pipes is reached
            pass


class Pipes:
    """All pipes of a node's ranks.

    Args:
        on_rest: called with (rank, 1 or 2) when a line is unfinished and nothing has followed for ``rest`` seconds in
            which the pipe was read.
        rest: seconds after which an unfinished line counts as resting.
    """

    def __init__(
        self,
        loop: Loop,
        on_chunk: Callable[[int, int, bytes], None],
        on_rest: Callable[[int, int], None],
        on_eof: Callable[[int, int], None],
        on_end: Callable[[], None],
        *,
        rest: float,
    ) -> None:
        self._loop, self._rest = loop, rest
        self._on_chunk, self._on_rest, self._on_eof, self._on_end = on_chunk, on_rest, on_eof, on_end
        self._open: dict[int, _Pipe] = {}
        self._paused = False

    def add(self, rank: int, number: int, ends: tuple[int, int] | None = None) -> int:
        """Make the pipe for a rank's stream; return the descriptor that the rank writes to.

        Args:
            ends: of a pseudo-terminal or of a socket to use in the pipe's place; they are closed like a pipe's.
        """
        pipe = _Pipe(self._loop, rank, number, ends)
        self._open[pipe.read_fd] = pipe
        return pipe.write_fd

    def begin(self) -> None:
        """Begin to read; closes our copies of the write ends, which the ranks have inherited."""
        for pipe in self._open.values():
            self._loop.close_fd(pipe.write_fd)
        self._watch()

    @property
    def ended(self) -> bool:
        """Whether every pipe has reached its end."""
        return not self._open

    def pause(self) -> None:
        """Stop reading, so that the ranks wait."""
        if not self._paused:
            self._paused = True
            for fd in self._open:
                self._loop.unwatch(fd)

    def resume(self) -> None:
        """Read again."""
        if self._paused:
            self._paused = False
            self._watch()

    def abandon(self) -> None:
        """Read what is there and close: a process that cannot be killed still holds a pipe."""
        for pipe in list(self._open.values()):
            while pipe.read_fd in self._open and self._read(pipe):
                pass
            self._end(pipe)

    def _watch(self) -> None:
        for pipe in self._open.values():
            self._watch_one(pipe)

    def _watch_one(self, pipe: _Pipe) -> None:
        self._loop.watch(pipe.read_fd, lambda: self._read(pipe))

    def _read(self, pipe: _Pipe) -> bool:
        """Read one chunk; return whether there was any."""
        try:
            chunk = self._loop.read(pipe.read_fd, _CHUNK)
        except BlockingIOError:
            return False
        except OSError as error:
            # No process has the pseudo-terminal open any more, or a rank has ended without reading its calls.
            if error.errno not in (errno.EIO, errno.ECONNRESET):
                raise
            chunk = b""
        if not chunk:
            self._end(pipe)
            return False
        if len(chunk) < _SMALL:
            self._loop.small_read()
        self._on_chunk(pipe.rank, pipe.number, chunk)
        if pipe.number != ANSWERS and not chunk.endswith(b"\n"):
            self._let_rest(pipe)
        else:
            pipe.begun = False
        return True

    def _let_rest(self, pipe: _Pipe) -> None:
        pipe.begun, pipe.excused, pipe.last_read = True, False, self._loop.now()
        if pipe.timer is None:
            self._look_after(pipe, self._rest)

    def _look_after(self, pipe: _Pipe, seconds: float) -> None:
        pipe.timer = self._loop.after(seconds, lambda: self._rested(pipe))

    def _rested(self, pipe: _Pipe) -> None:
        assert pipe.timer is not None
        timer, pipe.timer = pipe.timer, None
        if not pipe.begun or pipe.read_fd not in self._open:
            return
        now = self._loop.now()
        late, since = now - timer.due, now - pipe.last_read
        if self._paused or since < self._rest:
            self._look_after(pipe, self._rest - since if since < self._rest else self._rest)
        elif self._read(pipe) or pipe.read_fd not in self._open:
            pass  # the loop was busy, and there was more to read
        elif late > _LATE and not pipe.excused:
            pipe.excused = True
            self._look_after(pipe, self._rest)
        else:
            self._on_rest(pipe.rank, pipe.number)

    def _end(self, pipe: _Pipe) -> None:
        if self._open.pop(pipe.read_fd, None) is None:
            return
        self._loop.unwatch(pipe.read_fd)
        self._loop.close_fd(pipe.read_fd)
        self._on_eof(pipe.rank, pipe.number)
        if not self._open:
            self._on_end()


def open_terminal(size: os.terminal_size) -> tuple[int, int]:
    """Open a pseudo-terminal of this size, for a rank's stream where our own is a terminal.

    Raises:
        OSError: there are no more pseudo-terminals, or no more files may be opened.
    """
    import termios

    read_fd, write_fd = os.openpty()
    modes = termios.tcgetattr(write_fd)
    modes[1] &= ~termios.OPOST  # our own terminal adds the carriage returns
    termios.tcsetattr(write_fd, termios.TCSANOW, modes)
    resize_terminal(read_fd, size)
    return read_fd, write_fd


def resize_terminal(fd: int, size: os.terminal_size) -> None:
    """Change the size of a pseudo-terminal."""
    import termios
    from struct import pack

    fcntl.ioctl(fd, termios.TIOCSWINSZ, pack("HHHH", size.lines, size.columns, 0, 0))


class InputPipes:
    """The pipes to the ranks of this node that read our stdin (``--stdin``), at the pace of the slowest of them.

    A chunk is read only when all ranks have taken the one before, so no more than one is in memory. A rank that has
    ended, or has closed its stdin, is passed over. One that lives and does not read makes the others wait.
    """

    def __init__(self, loop: Loop, on_taken: Callable[[], None]) -> None:
        self._loop, self._on_taken = loop, on_taken
        self._theirs: list[int] = []
        self._left: dict[int, memoryview] = {}  # the descriptor that we write to → what it has not taken

    def add(self) -> int:
        """Make the pipe to a rank; return the descriptor that the rank reads from."""
        theirs, ours = self._loop.pipe()
        self._loop.set_blocking(ours, False)
        self._theirs.append(theirs)
        self.adopt(ours)
        return theirs

    def adopt(self, ours: int) -> None:
        """Write to this descriptor too, and close it as one of ours."""
        self._left[ours] = memoryview(b"")

    def begin(self) -> None:
        """Close our copies of what the ranks have inherited."""
        while self._theirs:
            self._loop.close_fd(self._theirs.pop())

    def write(self, data: bytes) -> None:
        """Write to all ranks; b"" closes their stdin."""
        if not data:
            self.close()
            return
        for fd in tuple(self._left):
            self._left[fd] = memoryview(data)
            self._loop.watch_write(fd, lambda fd=fd: self._write(fd))  # type: ignore[misc]
        self._maybe_taken()

    def _write(self, fd: int) -> None:
        try:
            self._left[fd] = self._left[fd][self._loop.write(fd, self._left[fd]) :]
        except BlockingIOError:
            return
        except OSError:  # the rank has ended
            self._drop(fd)
        else:
            if self._left[fd]:
                return
            self._loop.unwatch_write(fd)
        self._maybe_taken()

    def _maybe_taken(self) -> None:
        if not any(self._left.values()):
            self._on_taken()

    def _drop(self, fd: int) -> None:
        del self._left[fd]
        self._loop.unwatch_write(fd)
        self._loop.close_fd(fd)

    def close(self) -> None:
        """Close all pipes."""
        self.begin()
        for fd in tuple(self._left):
            self._drop(fd)
