"""The node's side of ``--fetch``: finds files below the ranks' working directory, and sends what the runner wants.

Looking and hashing go in steps of a few milliseconds, between which the agent answers its runner. Contents are read
piece by piece, when the channel has room and the runner has granted it.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections import deque

from bireme.control.frames import PIECE_HEAD, put_piece_head
from bireme.errors import ProtocolError
from bireme.ship.fetch_messages import AT_ONCE, CHUNK, MOST, WINDOW, Digests, Found, FoundFile
from bireme.ship.fetch_patterns import below

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from bireme.control.channel import Channel
    from bireme.control.messages import Fetch, Want
    from bireme.loop import Loop

_STEP = 0.01
"""Seconds of work after which the loop may do something else."""
_PAUSE = 0.0005
_PIECE = 256 * 1024
_FILES_IN_A_PIECE = 64
_BLOCK = 1 << 20
_PROBLEMS = 20
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class FetchSender:
    """Answers what the runner asks about files below one folder."""

    def __init__(self, loop: Loop, channel: Channel, folder: str) -> None:
        self._loop, self._channel, self._folder = loop, channel, folder
        self._files: list[FoundFile] = []
        self._waiting: deque[FoundFile] = deque()
        self._window = WINDOW
        self._fd, self._at, self._size, self._sparse = -1, 0, 0, False
        self._problems: list[str] = []
        self._special = ""

    def close(self) -> None:
        """Close the file that is being read."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def find(self, fetch: Fetch) -> None:
        """Look for the files that match."""
        self._go(self._look(fetch))

    def want(self, want: Want) -> None:
        """Send what is wanted of the files in these places.

        Raises:
            ProtocolError: there are no such files.
        """
        if any(not 0 <= place < len(self._files) for place in want.places):
            raise ProtocolError("it wants files that were not found")
        files = [self._files[place] for place in want.places]
        if want.digests:
            self._go(self._hash(files))
        else:
            self._waiting.extend(files)
            self._channel.feed(self._more)

    def grant(self, size: int) -> None:
        """Let so many more bytes be sent."""
        self._window += size
        self._channel.feed(self._more)

    def _go(self, steps: Iterator[None]) -> None:
        end = self._loop.now() + _STEP
        for _ in steps:
            if self._loop.now() >= end:
                self._loop.after(_PAUSE, lambda: self._go(steps))
                return

    # -- looking -----------------------------------------------------------------------------------

    def _look(self, fetch: Fetch) -> Iterator[None]:
        shared = bool(fetch.mark) and os.path.lexists(os.path.join(self._folder, fetch.mark))
        folders = [("", frozenset(tuple(pattern.split("/")) for pattern in fetch.patterns))]
        sent = 0
        while folders and len(self._files) < MOST:
            folder, rests = folders.pop()
            try:
                with os.scandir(os.path.join(self._folder, folder)) as entries:
                    for entry in entries:
                        left = below(rests, entry.name)
                        if left and entry.is_dir(follow_symlinks=False):
                            folders.append((f"{folder}{entry.name}/", left))
                        elif () in left:
                            self._note(folder + entry.name, entry)
                        elif left - rests and entry.is_dir():
                            self._complain(f"{folder}{entry.name} is a link, which is not followed")
                        while len(self._files) >= sent + AT_ONCE:
                            self._channel.send(Found(files=tuple(self._files[sent : sent + AT_ONCE])))
                            sent += AT_ONCE
                        yield
            except OSError as error:
                self._complain(f"{folder or self._folder}: {error.strerror}")
            yield
        if len(self._files) >= MOST:
            self._complain(f"more than {MOST:,} files match, and the others are left there")
        last = Found(
            files=tuple(self._files[sent:]),
            last=True,
            problems=tuple(self._problems),
            special=self._special,
            shared=shared,
        )
        self._channel.send(last)

    def _note(self, path: str, entry: os.DirEntry[str]) -> None:
        try:
            there = entry.stat(follow_symlinks=False)
            target = os.readlink(entry.path) if entry.is_symlink() else ""
        except OSError as error:
            self._complain(f"{path}: {error.strerror}")
            return
        if target or stat.S_ISREG(there.st_mode):
            mode = there.st_mode & 0o777
            self._files.append(
                FoundFile(path=path, size=there.st_size, mtime=there.st_mtime_ns, mode=mode, target=target)
            )
        else:
            self._special = path

    def _complain(self, problem: str) -> None:
        if len(self._problems) < _PROBLEMS:
            self._problems.append(problem)

    def _hash(self, files: list[FoundFile]) -> Iterator[None]:
        digests: list[str] = []
        for place, file in enumerate(files, 1):
            digest = hashlib.sha256()
            try:
                with open(os.open(os.path.join(self._folder, file.path), _OPEN), "rb", buffering=0) as opened:
                    left = file.size
                    while block := opened.read(min(left, _BLOCK)):
                        digest.update(block)
                        left -= len(block)
                        yield
                digests.append(digest.hexdigest())
            except OSError:
                digests.append("")
            if len(digests) == AT_ONCE or place == len(files):
                self._channel.send(Digests(digests=tuple(digests)))
                digests.clear()
            yield

    # -- sending -----------------------------------------------------------------------------------

    def _more(self) -> tuple[memoryview, ...]:
        """The next piece; nothing if there is none, or the runner has not taken enough."""
        frame = bytearray(PIECE_HEAD)
        opened = 0
        while self._window > 0 and len(frame) < _PIECE and opened < _FILES_IN_A_PIECE:
            if self._fd < 0:
                if not self._waiting:
                    break
                opened += 1
            frame += self._chunk(_PIECE - len(frame))
        size = len(frame) - PIECE_HEAD
        if not size:
            return ()
        put_piece_head(frame, size)
        self._window -= size
        return (memoryview(frame),)

    def _chunk(self, room: int) -> bytes:
        """The next chunk of the next file."""
        try:
            if self._fd < 0:
                self._open(self._waiting.popleft())
            if self._at >= self._size:
                self.close()
                return CHUNK.pack(b"E", 0)
            if self._sparse:
                data = _next_data(self._fd, self._at, self._size)
                if data > self._at:
                    hole, self._at = data - self._at, data
                    return CHUNK.pack(b"H", hole)
            block = os.pread(self._fd, min(max(room, 4096), self._size - self._at), self._at)
        except OSError as error:
            self.close()
            return CHUNK.pack(b"X", error.errno or 0)
        if not block:
            self.close()
            return CHUNK.pack(b"X", 0)
        self._at += len(block)
        return CHUNK.pack(b"D", len(block)) + block

    def _open(self, file: FoundFile) -> None:
        self._fd = os.open(os.path.join(self._folder, file.path), _OPEN)
        there = os.fstat(self._fd)
        if not stat.S_ISREG(there.st_mode):
            raise OSError(0, "changed")
        self._at, self._size = 0, file.size
        self._sparse = there.st_blocks * 512 < file.size


def _next_data(fd: int, at: int, size: int) -> int:
    """Where the next data of a sparse file begins, or the file ends."""
    try:
        return min(os.lseek(fd, at, os.SEEK_DATA), size)
    except OSError:  # ENXIO: there is no more
        return size if os.fstat(fd).st_size >= size else at
