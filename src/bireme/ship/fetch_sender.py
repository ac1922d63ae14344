"""The node's side of ``--fetch``: finds files below the ranks' working directory, and sends what the runner wants."""

from __future__ import annotations

import hashlib
import os
import stat

from bireme.errors import ProtocolError
from bireme.ship import inside
from bireme.ship.contents import ChangedError, Contents, Outgoing, in_steps
from bireme.ship.fetch_patterns import below
from bireme.ship.manifest import Entry
from bireme.ship.messages import AT_ONCE, MOST, Digests, Found, Skipped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from bireme.control.channel import Channel
    from bireme.control.messages import Fetch, Want
    from bireme.loop import Loop

_PROBLEMS = 20
_MOST_PARTS = 1024
"""Numbers of `Entry.parts` from which on a file is sent with its holes."""


class FetchSender:
    """Answers what the runner asks about files below one folder.

    Args:
        sent: what ``--ship`` has sent there, by path. A file that is still the same is not found.
    """

    def __init__(self, loop: Loop, channel: Channel, folder: str, sent: Mapping[str, Entry]) -> None:
        self._loop, self._channel, self._sent = loop, channel, sent
        self._folder = os.path.realpath(folder)  # links on the way to it are the user's own
        self._files: list[Entry] = []
        self._told = 0
        self._problems: list[str] = []
        self._special = ""
        self._out = Outgoing(channel, self._skip)

    def close(self) -> None:
        """Send nothing more."""
        self._out.end()

    def find(self, fetch: Fetch) -> None:
        """Look for the files that match."""
        in_steps(self._loop, self._look(fetch))

    def want(self, want: Want) -> None:
        """Send what is wanted of the files in these places.

        Raises:
            ProtocolError: there are no such files.
        """
        if any(not 0 <= place < len(self._files) for place in want.places):
            raise ProtocolError("it wants files that were not found")
        files = [self._files[place] for place in want.places]
        if want.digests:
            in_steps(self._loop, self._hash(files))
        else:
            self._out.send(Contents(self._folder, files))

    def grant(self, size: int) -> None:
        """Let so many more bytes be sent.

        Raises:
            ProtocolError: so many were not sent.
        """
        self._out.grant(size)

    def _skip(self, error: ChangedError) -> bool:
        self._channel.send(Skipped(why=error.why))
        return True

    def _look(self, fetch: Fetch) -> Iterator[None]:
        shared = bool(fetch.mark) and os.path.lexists(os.path.join(self._folder, fetch.mark))
        folders = [("", frozenset(tuple(pattern.split("/")) for pattern in fetch.patterns))]
        while folders and len(self._files) < MOST:
            folder, rests = folders.pop()
            holder = -1
            try:
                holder = inside.open_folder_at(self._folder, folder.rstrip("/"))
                with os.scandir(holder) as entries:
                    for entry in entries:
                        left = below(rests, entry.name)
                        if left and entry.is_dir(follow_symlinks=False):
                            folders.append((f"{folder}{entry.name}/", left))
                        elif () in left:
                            yield from self._note(folder + entry.name, holder, entry)
                        elif left - rests and entry.is_dir():
                            self._complain(f"{folder}{entry.name} is a link, which is not followed")
                        while len(self._files) >= self._told + AT_ONCE:
                            self._tell(Found(files=()))
                        yield
            except OSError as error:
                self._complain(f"{folder or self._folder}: {error.strerror}")
            finally:
                if holder >= 0:
                    os.close(holder)
            yield
        if len(self._files) >= MOST:
            self._complain(f"more than {MOST:,} files match, and the others are left there")
        self._tell(Found(files=(), last=True, problems=tuple(self._problems), special=self._special, shared=shared))

    def _tell(self, found: Found) -> None:
        files = tuple(self._files[self._told : self._told + AT_ONCE])
        self._told += len(files)
        self._channel.send(found.replace(files=files))

    def _note(self, path: str, holder: int, entry: os.DirEntry[str]) -> Iterator[None]:
        try:
            there, sent = entry.stat(follow_symlinks=False), self._sent.get(path)
            if sent is not None and (yield from inside.is_same(sent, holder, entry.name, there)):
                return
            if stat.S_ISLNK(there.st_mode):
                target = os.readlink(entry.name, dir_fd=holder)
                self._files.append(Entry(kind="link", path=path, content=target, mtime=there.st_mtime_ns))
            elif stat.S_ISREG(there.st_mode):
                parts: tuple[int, ...] = ()
                if there.st_blocks * 512 < there.st_size:
                    fd = inside.open_file(holder, entry.name)
                    parts = inside.parts_of(fd, there)
                    os.close(fd)
                self._files.append(
                    Entry(
                        kind="file",
                        path=path,
                        mode=there.st_mode & 0o777,
                        size=there.st_size,
                        parts=parts if len(parts) < _MOST_PARTS else (),
                        mtime=there.st_mtime_ns,
                    )
                )
            else:
                self._special = path
        except OSError as error:
            self._complain(f"{path}: {error.strerror}")

    def _complain(self, problem: str) -> None:
        if len(self._problems) < _PROBLEMS:
            self._problems.append(problem)

    def _hash(self, files: list[Entry]) -> Iterator[None]:
        digests: list[str] = []
        for place, file in enumerate(files, 1):
            contents, digest, block = Contents(self._folder, (file,)), hashlib.sha256(), bytearray(1 << 20)
            try:
                while size := contents.read_into(memoryview(block)):
                    digest.update(memoryview(block)[:size])
                    yield
                digests.append(digest.hexdigest())
            except ChangedError:
                contents.close()
                digests.append("")
            if len(digests) == AT_ONCE or place == len(files):
                self._channel.send(Digests(digests=tuple(digests)))
                digests.clear()
