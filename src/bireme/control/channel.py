"""A channel between runner and agent: sends and receives messages over pipes or a socket, without blocking."""

from __future__ import annotations

from bireme.control.frames import MAX_FRAME, Decoder, encode_message
from bireme.control.transport import Transport
from bireme.errors import ProtocolError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Mapping

    from bireme.control.messages import Frame, Message
    from bireme.loop import Loop
else:
    from _collections import deque  # not ``collections``, which takes a while to import

_READ = 256 * 1024
_WIDE = 1024 * 1024


class Channel:
    """Sends and receives frames.

    Args:
        read_fd: the descriptor to read from. It becomes non-blocking and is owned by the channel.
        on_end: called once with the reason when the other side is gone.
        on_violation: called once instead, with what it did, when the other side breaks the protocol.
        on_greeting: called with the tag of the agent's Python in its greeting; ``None``: there comes none.
        transport: protects what is sent; ``None``: the descriptors are protected already.
        early: bytes of the channel that were received already, decoded.
    """

    def __init__(
        self,
        loop: Loop,
        read_fd: int,
        write_fd: int,
        vocabulary: Mapping[str, type[Message]],
        *,
        on_frame: Callable[[Frame], None],
        on_end: Callable[[str], None],
        on_violation: Callable[[str], None],
        on_greeting: Callable[[str], None] | None = None,
        transport: Transport | None = None,
        early: bytes = b"",
        longest: int = MAX_FRAME,
    ) -> None:
        self._loop, self._read_fd, self._write_fd = loop, read_fd, write_fd
        self._transport = transport if transport is not None else Transport()
        self._on_frame, self._on_end, self._on_violation = on_frame, on_end, on_violation
        self._on_greeting = on_greeting
        self._decoder = Decoder(vocabulary, greeted=on_greeting is None, longest=longest)
        self._waiting: deque[bytes | memoryview] = deque()
        self._more: Callable[[], bytes | memoryview] | None = None
        self._size = 0
        self.open = True
        for fd in (read_fd, write_fd):
            loop.set_blocking(fd, False)
        loop.watch(read_fd, self._readable)
        if early:
            loop.after(0, lambda: self._take(early))

    def move(
        self,
        loop: Loop,
        *,
        on_frame: Callable[[Frame], None],
        on_end: Callable[[str], None],
        on_violation: Callable[[str], None],
    ) -> None:
        """Go on in another loop, as the one of before has been closed."""
        self._loop, self._on_frame, self._on_end, self._on_violation = loop, on_frame, on_end, on_violation
        loop.watch(self._read_fd, self._readable)
        if self._waiting:
            loop.watch_write(self._write_fd, self._writable)

    @property
    def readable(self) -> str:
        """Why others on the network can read what is sent; "": they cannot."""
        return self._transport.readable

    @property
    def is_greeted(self) -> bool:
        """Whether the other side's greeting has come, or none is expected."""
        return self._on_greeting is None

    @property
    def noise(self) -> bytes:
        """What the other side printed before its greeting."""
        return self._decoder.noise

    @property
    def pending(self) -> int:
        """Bytes waiting to be sent."""
        return self._size

    @property
    def is_ending(self) -> bool:
        """Whether the other side is gone, even if not all that it has sent was read."""
        return not self.open or self._loop.hung_up(self._read_fd)

    @property
    def is_feeding(self) -> bool:
        """Whether frames of `feed` are still to come."""
        return self._more is not None

    def send(self, message: Message) -> None:
        """Send a message; does nothing on a channel that has ended, or on which a greeting is still expected."""
        if self.open and self._on_greeting is None:
            self.send_raw(encode_message(message))

    def send_raw(self, data: bytes | memoryview) -> None:
        """Send a frame that was encoded already."""
        if self.open:
            self._put(self._transport.encode(data))

    def _put(self, data: bytes | memoryview) -> None:
        if not self._waiting:
            data = data[self._try(data) :]
            if not data:
                return
            self._loop.watch_write(self._write_fd, self._writable)
        self._waiting.append(data)
        self._size += len(data)

    def feed(self, more: Callable[[], bytes | memoryview]) -> None:
        """Send the frames that ``more`` returns, until it returns an empty one.

        It is called when nothing else waits to be sent. So a frame may be in memory that it uses again.
        """
        if self.open:
            self._more = more
            self._loop.watch_write(self._write_fd, self._writable)

    def widen(self, *, incoming: bool = False) -> None:
        """Let the kernel hold more of what is sent: a pipe that is filled and emptied in turns costs much CPU time.

        Args:
            incoming: more of what comes, instead.
        """
        import fcntl

        try:
            fcntl.fcntl(self._read_fd if incoming else self._write_fd, fcntl.F_SETPIPE_SZ, _WIDE)
        except (OSError, AttributeError):  # a socket, or too many wide pipes already; macOS
            pass

    def _try(self, data: bytes | memoryview) -> int:
        try:
            return self._loop.write(self._write_fd, data)
        except BlockingIOError:
            return 0
        except OSError as error:
            # Not now: the caller is in the middle of something. And what the other side said before is read first.
            reason = f"cannot be written: {error.strerror}"
            self._loop.after(0, lambda: self._drain(reason))
            return len(data)

    def _writable(self) -> None:
        if self._more is not None and not self._waiting:
            frame = self._more()
            if frame:
                self._put(self._transport.encode(frame))
            else:
                self._more = None
        while self._waiting and self.open:
            data = self._waiting[0]
            size = len(data)
            written = self._try(data)
            self._size -= written
            if written < size:
                self._waiting[0] = data[written:]
                return
            self._waiting.popleft()
        if self.open and self._more is None:
            self._loop.unwatch_write(self._write_fd)

    def _drain(self, reason: str) -> None:
        while self.open and self._readable():
            pass
        self._end(reason)

    def look(self) -> None:
        """Read now what has arrived, which a busy or suspended loop may not have read yet."""
        if self.open:
            self._readable()

    def _readable(self) -> bool:
        """Read what has arrived; return whether there was anything."""
        try:
            data = self._loop.read(self._read_fd, _READ)
        except BlockingIOError:
            return False
        except OSError as error:
            self._end(f"cannot be read: {error.strerror}")
            return False
        if not data:
            self._end("closed by the other side")
            return False
        try:
            data = self._transport.decode(data)
        except ProtocolError as error:
            self._end(str(error))
            return False
        self._take(data)
        return True

    def _take(self, data: bytes) -> None:
        try:
            for frame in self._decoder.feed(data):
                if self.open:
                    self._on_frame(frame)
            if self._on_greeting is not None and self._decoder.tag:
                greeted, self._on_greeting = self._on_greeting, None
                greeted(self._decoder.tag)
        except ProtocolError as error:
            if self.open:
                self.close()
                self._on_violation(str(error))

    def _end(self, reason: str) -> None:
        if self.open:
            self.close()
            self._on_end(reason)

    def close(self) -> None:
        """Close the channel; drops what is waiting to be sent."""
        if not self.open:
            return
        self.open = False
        self._loop.unwatch(self._read_fd)
        self._loop.unwatch_write(self._write_fd)
        for fd in {self._read_fd, self._write_fd}:
            self._loop.close_fd(fd)
