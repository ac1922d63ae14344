"""Writing without ever waiting: to a terminal under Ctrl+S, a slow pipe, a full disk.

What cannot be written at once is kept, up to a bound; above it the sink is *full* and its sources are
no longer read, so that the ranks wait instead of our memory growing.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from bireme.loop import Loop

_HIGH_WATER = 256 * 1024
"""Bytes waiting above which a sink is full."""

_SAFE_WRITE = 4096
"""PIPE_BUF: after the poll said "writable", a write of this size does not block even a blocking pipe."""


class Sink:
    """One descriptor that output goes to.

    Args:
        loop: tells when a slow reader has made room.
        fd: the descriptor; it is not closed, and its flags are not changed (a terminal is shared
            with the shell, which would find it non-blocking).
        on_error: called once, with the error, when nothing more can be written; the sink swallows
            everything from then on.
        on_room: called when a full sink has room again.
    """

    def __init__(
        self, loop: Loop, fd: int, *, on_error: Callable[[OSError], None], on_room: Callable[[], None]
    ) -> None:
        self._loop, self._on_error, self._on_room = loop, on_error, on_room
        self._fd, self._limit, self._own = _nonblocking_twin(fd)
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._broken = False
        self.on_drained: Callable[[], None] = lambda: None
        self.full = False
        self.terminal = os.isatty(fd)

    @property
    def pending(self) -> bool:
        """Whether something waits to be written."""
        return self._size > 0

    def write(self, data: bytes) -> None:
        """Write, or keep for later."""
        if self._broken or not data:
            return
        if self._size:
            self._keep(data)
            return
        written = 0 if self._limit else self._try(data)
        if written < len(data) and not self._broken:
            self._keep(data[written:])
            self._loop.watch_write(self._fd, self._room)

    def _keep(self, data: bytes) -> None:
        self._waiting.append(data)
        self._size += len(data)
        self.full = self.full or self._size > _HIGH_WATER

    def _try(self, data: bytes) -> int:
        """Write as much as goes without waiting; return how much that was."""
        done = 0
        view = memoryview(data)
        while done < len(data):
            if self._limit and done:
                break  # one safe piece each time that the poll has said yes
            try:
                done += os.write(self._fd, view[done : done + self._limit] if self._limit else view[done:])
            except BlockingIOError:
                break
            except InterruptedError:
                continue
            except OSError as error:
                self._fail(error)
                break
        return done

    def _room(self) -> None:
        """The poll says that a write will not block."""
        while self._waiting:
            data = self._waiting[0]
            written = self._try(data)
            if self._broken:
                return
            self._size -= written
            if written < len(data):
                self._waiting[0] = data[written:]
                break
            self._waiting.popleft()
            if self._limit:
                break
        if not self._waiting:
            self._loop.unwatch_write(self._fd)
            self.on_drained()
        if self.full and self._size < _HIGH_WATER // 2:
            self.full = False
            self._on_room()

    def _fail(self, error: OSError) -> None:
        self._broken = True
        self._waiting.clear()
        self._size = 0
        self._loop.unwatch_write(self._fd)
        was_full, self.full = self.full, False
        self._on_error(error)
        if was_full:
            self._on_room()
        self.on_drained()

    def close(self) -> None:
        """Free what the sink has opened itself."""
        self._loop.unwatch_write(self._fd)
        if self._own:
            os.close(self._fd)
        self._broken = True


def is_gone(error: OSError) -> bool:
    """Whether the reader of our output went away (a closed pipe, a hung-up terminal)."""
    return error.errno in (errno.EPIPE, errno.ECONNRESET, errno.EIO)


def _nonblocking_twin(fd: int) -> tuple[int, int, bool]:
    """(descriptor, most bytes a write, whether it is ours) by which ``fd`` can be written without waiting.

    A pipe or terminal is opened once more, since ``O_NONBLOCK`` belongs to the open file, which is
    shared with other processes. Where that cannot be done (a socket, a terminal of another user), small
    writes after a poll do not block either. A regular file never blocks in this sense.
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
