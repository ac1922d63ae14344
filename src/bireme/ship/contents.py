"""The contents of files as one stream of bytes: how they are read, sent over a channel, and taken on the other side.

Both sides have the entries of the files, so the stream holds nothing but their data, without holes.
"""

from __future__ import annotations

import hashlib
import os

from bireme.control.frames import PIECE_HEAD, put_piece_head
from bireme.errors import BiremeError, ProtocolError
from bireme.ship import inside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from bireme.control.channel import Channel
    from bireme.loop import Loop
    from bireme.ship.manifest import Entry

WINDOW = 1024 * 1024
"""Bytes that may be sent before the other side has taken them: few enough to stay in the CPU's caches."""
GRANT = WINDOW // 2
"""Bytes that are taken before the other side is granted as many."""
_PIECE = 256 * 1024
"""Bytes of the longest piece: what comes after it, such as a ping, waits no longer than it takes."""
_STEP = 0.01
"""Seconds of work after which the loop may do something else."""
_PAUSE = 0.0005


class ChangedError(BiremeError):
    """A file is not what its entry says any more."""

    def __init__(self, path: str, why: str = "") -> None:
        super().__init__(f"{path} has changed since the job began{why and f': {why}'}")
        self.why = why


def in_steps(loop: Loop, steps: Iterator[None]) -> None:
    """Do something in steps of a few milliseconds, between which the loop does what else there is."""
    end = loop.now() + _STEP
    for _ in steps:
        if loop.now() >= end:
            loop.after(_PAUSE, lambda: in_steps(loop, steps))
            return


class Contents:
    """The contents of files below a folder, one after the other. No link on the way to one is followed.

    Args:
        folder: the path of the folder.
        entries: of the files.
    """

    def __init__(self, folder: str, entries: Iterable[Entry]) -> None:
        self._folder, self._root = folder, -1
        self._entries = iter(entries)
        self._spans: list[tuple[int, int]] = []
        """The spans of the file that are left, the next one last."""
        self._fd, self._path, self._left = -1, "", 0
        self._problem: ChangedError | None = None

    def read_into(self, buffer: memoryview) -> int:
        """Fill a buffer with what comes next; return the number of bytes, 0 only at the end.

        Raises:
            ChangedError: a file was changed, or cannot be read. The next call goes on behind it.
        """
        filled = 0
        if self._problem is None:
            try:
                while filled < len(buffer) and (self._left or self._open_next()):
                    read = os.readv(self._fd, [buffer[filled : filled + self._left]])
                    filled, self._left = filled + read, self._left - read
                    if not read:
                        raise OSError(0, "it is shorter")
            except OSError as error:
                path = os.path.join(self._folder, self._path)
                self._problem, self._left, self._spans = ChangedError(path, str(error.strerror)), 0, []
        if self._problem is not None and not filled:
            problem, self._problem = self._problem, None
            raise problem
        return filled

    def _open_next(self) -> bool:
        while not self._spans:
            entry = next(self._entries, None)
            if entry is None:
                self.close()
                return False
            self._close_file()
            self._spans, self._path = [*reversed(entry.spans)], entry.path
        if self._root < 0:
            self._root = os.open(self._folder, inside.FOLDER)
        if self._fd < 0:
            self._fd = inside.open_file(self._root, self._path)
        begin, end = self._spans.pop()
        os.lseek(self._fd, begin, os.SEEK_SET)
        self._left = end - begin
        return True

    def _close_file(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def close(self) -> None:
        """Close what is open."""
        self._close_file()
        if self._root >= 0:
            os.close(self._root)
            self._root = -1


class Outgoing:
    """Sends text and contents over a channel, no more of it ahead than the other side grants.

    Args:
        channel: the channel.
        on_change: called when a file is not what its entry says; returns whether to go on with the next file.
    """

    def __init__(self, channel: Channel, on_change: Callable[[ChangedError], bool]) -> None:
        self._channel, self._on_change = channel, on_change
        self._text = memoryview(b"")
        self._contents: Contents | None = None
        self._frame = bytearray(PIECE_HEAD + _PIECE)
        self._window, self._ended = WINDOW, False
        channel.widen()

    def send(self, what: bytes | Contents) -> None:
        """Send this next."""
        if isinstance(what, Contents):
            self._contents = what
        else:
            self._text = memoryview(what)
        self._channel.feed(self._more)

    def grant(self, size: int) -> None:
        """Let so much more be sent, for so much that was taken.

        Raises:
            ProtocolError: that was not sent.
        """
        if size > WINDOW - self._window:
            raise ProtocolError("it has taken more than was sent")
        self._window += size
        self._channel.feed(self._more)

    def end(self) -> None:
        """Send nothing more."""
        self._ended = True
        if self._contents is not None:
            self._contents.close()

    def _more(self) -> memoryview:
        """The next frame; an empty one if there is none, or the other side has not taken enough."""
        frame, size = memoryview(self._frame), 0
        while not self._ended and self._window > 0:
            try:
                size = self._next(frame[PIECE_HEAD:])
                break
            except ChangedError as error:
                self._ended = not self._on_change(error)
        put_piece_head(self._frame, size)
        self._window -= size
        return frame[: PIECE_HEAD + size if size else 0]

    def _next(self, body: memoryview) -> int:
        part, self._text = self._text[: len(body)], self._text[len(body) :]
        body[: len(part)] = part
        return len(part) or (0 if self._contents is None else self._contents.read_into(body))


class Incoming:
    """A file that comes: writes its data where they belong, and compares them with its digest if that is known.

    Args:
        entry: what comes.
        fd: the file, new, open and as large; ``None``: do not write, because it cannot be kept, or is there.
    """

    def __init__(self, entry: Entry, fd: int | None) -> None:
        self.entry, self.fd = entry, fd
        self._spans = [*reversed(entry.spans)]
        self._digest = hashlib.sha256() if entry.kind == "file" and entry.content else None

    @property
    def due(self) -> int:
        """Bytes that can be taken at once; 0: all of it has come."""
        return self._spans[-1][1] - self._spans[-1][0] if self._spans else 0

    def take(self, data: bytes | memoryview) -> None:
        """Take the next bytes, no more than are due.

        Raises:
            OSError: they cannot be written, but count as taken.
        """
        begin, end = self._spans.pop()
        if begin + len(data) < end:
            self._spans.append((begin + len(data), end))
        if self._digest is not None:
            self._digest.update(data)
        while data and self.fd is not None:
            written = os.pwrite(self.fd, data, begin)
            data, begin = data[written:], begin + written

    @property
    def is_right(self) -> bool:
        """Whether what has come is all that was to come."""
        return not self._spans and (self._digest is None or self._digest.hexdigest() == self.entry.content)
