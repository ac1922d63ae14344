"""``--stdin``: reads our stdin, and copies it to ranks through pipes, at the pace of the slowest of them.

A chunk is read only when all ranks have taken the one before, so no more than one is in memory. A rank that has ended,
or has closed its stdin, is passed over. One that lives and does not read makes the others wait.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from bireme.agent.terminal import Terminal
    from bireme.loop import Loop

_CHUNK = 64 * 1024
_BACKGROUND_LOOK = 0.5
"""Seconds after which a command in the background looks whether it may read its terminal."""


class StdinReader:
    """Reads our stdin.

    Args:
        terminal: the terminal on our stdin: it is not read in the background, as that would suspend us.
        on_chunk: called with what was read, at the end with b"". Then :meth:`read_on` has to be called for more.
    """

    def __init__(self, loop: Loop, terminal: Terminal, on_chunk: Callable[[bytes], None]) -> None:
        self._loop, self._terminal, self._on_chunk = loop, terminal, on_chunk

    def read_on(self) -> None:
        """Read the next chunk when there is one."""
        try:
            self._loop.watch(0, self._read)
        except OSError:  # epoll refuses files, which can always be read
            self._loop.unwatch(0)
            self._loop.after(0, self._read)

    def _read(self) -> None:
        self._loop.unwatch(0)
        if not self._terminal.may_be_read():
            self._loop.after(_BACKGROUND_LOOK, self.read_on)
            return
        try:
            data = self._loop.read(0, _CHUNK)
        except BlockingIOError:  # somebody else has read it
            self.read_on()
            return
        except OSError:  # it is closed, or its terminal is gone
            data = b""
        self._on_chunk(data)


class RankPipes:
    """The pipes to the ranks of this machine that read our stdin.

    Args:
        on_taken: called when all ranks have taken what was written.
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
        self._left[ours] = memoryview(b"")
        return theirs

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
