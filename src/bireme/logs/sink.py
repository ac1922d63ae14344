"""Writes output without blocking, even to a terminal after Ctrl+S or a slow pipe; keeps what cannot be written yet.

While a sink is *full*, the ranks' pipes are not read, so that the ranks wait instead of our memory growing.
"""

from __future__ import annotations

import errno
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from bireme.loop import Loop

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
        self._broken = False
        self.on_drained: Callable[[], None] = lambda: None
        self.terminal = os.isatty(fd)

    @property
    def pending(self) -> bool:
        """Whether something is waiting to be written."""
        return bool(self._waiting)

    def write(self, data: bytes) -> None:
        """Write, or keep for later."""
        if self._broken or not data:
            return
        if self._waiting:
            self._keep(data)
            return
        written = 0 if self._limit else self._try(data)
        if written < len(data) and not self._broken:
            self._keep(data[written:])
            self._loop.watch_write(self._fd, self._room)

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

    def _room(self) -> None:
        """Write what is waiting, now that a write will not block."""
        written = self._try(self._waiting)
        if self._broken:
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
        self._broken = True
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
        self._broken = True


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
