"""Opens, reads, writes, walks and removes what is inside a folder: never through a link, never across a mount."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections import deque

from bireme.ship.manifest import Entry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
    from typing import TypeAlias

    Stamp: TypeAlias = tuple[int, ...]
    Item: TypeAlias = tuple[str, int, str, os.stat_result]

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a FIFO must not stop us
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
AWAIT = float("inf")
"""What a generator yields that cannot go on by itself."""
_DEEPEST = 200
_BLOCK = 1 << 20
_HAS_PROC = sys.platform == "linux"


class Descriptor(int):
    """An open file or folder, which a ``with`` closes."""

    def __enter__(self) -> Descriptor:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self)


def open_folder(top: int, path: str, *, make: bool = False) -> Descriptor:
    """Open a folder below an open one; "": that one again.

    Args:
        make: make the folders that are missing.
    """
    fd = Descriptor(os.dup(top))
    for part in path.split("/") if path else ():
        with fd:
            if make:
                try:
                    os.mkdir(part, dir_fd=fd)
                except FileExistsError:
                    pass
            fd = Descriptor(os.open(part, FOLDER, dir_fd=fd))
    return fd


class Opener:
    """Opens regular files below an open folder, to read them. The folder of the last one stays open for the next."""

    def __init__(self, top: int) -> None:
        self._top, self._folder, self._path = top, open_folder(top, ""), ""

    def __enter__(self) -> Opener:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._folder)

    def open(self, path: str) -> Descriptor:
        """Open one."""
        above, _, name = path.rpartition("/")
        if above != self._path:
            folder = open_folder(self._top, above)
            os.close(self._folder)
            self._folder, self._path = folder, above
        fd = Descriptor(os.open(name, _FILE, dir_fd=self._folder))
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise FileNotFoundError(errno.ENOENT, "no longer a regular file", path)
        return fd


def open_file(top: int, path: str) -> Descriptor:
    """Open a regular file below an open folder, to read it."""
    with Opener(top) as opener:
        return opener.open(path)


def entry_of(item: Item) -> Entry:
    """What a walk has found, without the digest of a file; a folder also stands for a FIFO, socket or device."""
    path, holder, name, there = item
    if stat.S_ISLNK(there.st_mode):
        return Entry(kind="link", path=path, content=os.readlink(name, dir_fd=holder), mtime=there.st_mtime_ns)
    if not stat.S_ISREG(there.st_mode):
        return Entry(kind="folder", path=path)
    parts: tuple[int, ...] = ()
    if there.st_blocks * 512 < there.st_size:
        with open_file(holder, name) as fd:
            parts = parts_of(fd, there.st_size)
    mode, size, mtime = there.st_mode & 0o777, there.st_size, there.st_mtime_ns
    return Entry(kind="file", path=path, mode=mode, size=size, parts=parts, mtime=mtime)


def parts_of(fd: int, size: int) -> tuple[int, ...]:
    """Where the data of a file begins and ends, if it has holes: holes are not sent."""
    parts: list[int] = []
    place = 0
    while place < size:
        try:
            begin = os.lseek(fd, place, os.SEEK_DATA)
        except OSError:  # there are only holes from here on
            break
        place = min(os.lseek(fd, begin, os.SEEK_HOLE), size)
        parts += [begin, place] if begin < place else []
    return () if parts == [0, size] else tuple(parts or (0, 0))


def blocks(entry: Entry) -> Iterator[tuple[int, int]]:
    """The data of a file in blocks: where each begins, and its size."""
    for begin, end in entry.spans:
        for at in range(begin, end, _BLOCK):
            yield at, min(_BLOCK, end - at)


def digest_of(fd: int, entry: Entry) -> Generator[None, None, str]:
    """The digest of the data of an open file, in steps; of less, if it is shorter."""
    digest = entry.new_digest()
    for at, size in blocks(entry):
        digest.update(os.pread(fd, size, at))
        yield
    return digest.hexdigest()


def is_same(entry: Entry, item: Item) -> Generator[None, None, bool]:
    """Whether what a walk has found is what an entry says, in steps. Contents are compared, permissions are not."""
    _, holder, name, there = item
    found = entry_of(item)
    if (found.kind, found.size, found.parts) != (entry.kind, entry.size, entry.parts):
        return False
    if found.kind != "file":
        return found.kind == "link" and found.content == entry.content
    with open_file(holder, name) as fd:
        right = mount_of(fd) == mount_of(holder) and (yield from digest_of(fd, entry)) == entry.content
        return right and stamp_of(os.fstat(fd)) == stamp_of(there)


def stamp_of(there: os.stat_result) -> Stamp:
    """What changes when somebody writes to a file."""
    return (there.st_size, there.st_mtime_ns, there.st_ctime_ns, there.st_ino)


def mount_of(fd: int) -> str:
    """Names the mount through which a file was opened; a mounted folder may be of the same file system."""
    if _HAS_PROC:
        try:
            with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as file:
                return next(line for line in file if line.startswith("mnt_id:"))
        except (OSError, StopIteration):
            return f"unknown {fd}"  # which is equal to no other
    return str(os.fstat(fd).st_dev)


def walk(
    top: int,
    below: str = "",
    *,
    on_error: Callable[[str, OSError], object],
    enters: Callable[[str], bool] = lambda _: True,
    mounts: bool = True,
) -> Iterator[Item]:
    """What is inside an open folder: its path, the folder that holds it (open), its name, and what it is.

    What is in a folder comes before the folder.

    Args:
        below: begins the paths.
        on_error: called with the path of a folder that cannot be read.
        enters: whether to enter the folder of this path.
        mounts: whether to enter what is mounted there.
    """
    try:
        if below.count("/") > _DEEPEST:  # we have no more descriptors
            raise OSError(errno.ENAMETOOLONG, "folders are too deep", below)
        for name in os.listdir(top):
            path = f"{below}/{name}" if below else name
            try:
                there = os.stat(name, dir_fd=top, follow_symlinks=False)
            except FileNotFoundError:
                continue
            if stat.S_ISDIR(there.st_mode) and enters(path):
                try:
                    with Descriptor(os.open(name, FOLDER, dir_fd=top)) as fd:
                        if not mounts and mount_of(fd) != mount_of(top):
                            raise OSError(errno.EBUSY, "something is mounted there", path)
                        yield from walk(fd, path, on_error=on_error, enters=enters, mounts=mounts)
                except OSError as error:  # what is beside it can be read
                    on_error(path, error)
            yield path, top, name, there
    except OSError as error:
        on_error(below, error)


def remove(folder: int, name: str, known: Mapping[str, Stamp] | None = None) -> Iterator[None]:
    """Remove a folder in an open one, in steps. What cannot be removed stays, and so does what is mounted in it.

    Args:
        known: the stamps of files and links by path inside; anything else, or with another stamp, stays. None: all.
    """
    try:
        with Descriptor(os.open(name, FOLDER, dir_fd=folder)) as top:
            if mount_of(top) != mount_of(folder):
                return
            for path, holder, last, there in walk(top, on_error=lambda *_: None, mounts=False):
                yield
                try:
                    if stat.S_ISDIR(there.st_mode):
                        os.rmdir(last, dir_fd=holder)
                    elif known is None or known.get(path) == stamp_of(there):
                        os.unlink(last, dir_fd=holder)
                except OSError:
                    pass
        os.rmdir(name, dir_fd=folder)
    except OSError:
        pass


def create(folder: int, name: str, entry: Entry) -> int:
    """Create a file in an open folder, with its permissions and holes; return a descriptor. Create a link: -1."""
    if entry.kind == "link":
        os.symlink(entry.content, name, dir_fd=folder)
        return -1
    fd = os.open(name, _NEW, 0o600, dir_fd=folder)
    try:
        os.fchmod(fd, entry.mode)
        if entry.parts:
            os.ftruncate(fd, entry.size)
    except OSError:
        os.close(fd)
        os.unlink(name, dir_fd=folder)
        raise
    return fd


def write(fd: int, data: bytes | memoryview, at: int) -> None:
    """Write at this place of a file."""
    while data:
        written = os.pwrite(fd, data, at)
        data, at = data[written:], at + written


class Incoming:
    """What comes in pieces, to be taken as it is needed."""

    def __init__(self) -> None:
        self._pieces: deque[memoryview] = deque()
        self.is_awaited = False

    def __bool__(self) -> bool:
        """Whether there is something that was not taken."""
        return bool(self._pieces)

    def put(self, piece: bytes) -> None:
        """Add what has come."""
        self._pieces.append(memoryview(piece))

    def take(self, most: int) -> Generator[float | None, None, memoryview]:
        """Take at most this many bytes; yields `AWAIT` while there are none."""
        while not self._pieces:
            self.is_awaited = True
            yield AWAIT
        self.is_awaited = False
        piece = self._pieces.popleft()
        if len(piece) > most:
            self._pieces.appendleft(piece[most:])
        return piece[:most]

    def data_of(self, entry: Entry, write: Callable[[memoryview, int], None]) -> Generator[float | None, None, bool]:
        """Hand on what comes as the data of a file, with its place; return whether it has the content of the entry."""
        digest = entry.new_digest() if entry.kind == "file" and entry.content else None
        for begin, end in entry.spans:
            while begin < end:
                data = yield from self.take(end - begin)
                if digest is not None:
                    digest.update(data)
                write(data, begin)
                begin += len(data)
        return digest is None or digest.hexdigest() == entry.content


def copy(source: int, target: int, entry: Entry) -> Iterator[None]:
    """Copy, in steps, the data of an open file to one without; file systems that share blocks (btrfs, XFS) do so."""
    for at, size in blocks(entry):  # not the holes: somebody may have written to them
        done = 0
        try:
            done = os.copy_file_range(source, target, size, at, at)
        except (OSError, AttributeError):  # not every system has it
            pass
        if done < size:
            write(target, os.pread(source, size - done, at + done), at + done)
        yield


def contents(top: int, entries: Iterable[Entry], buffer: memoryview) -> Iterator[int | OSError]:
    """Fill a buffer again and again with the data of these files; each time, the bytes in it.

    In their place comes an error where a file cannot be read, or is shorter; it goes on with the next file.
    """
    filled = 0
    with Opener(top) as opener:
        for entry in entries:
            try:
                with opener.open(entry.path) as fd:
                    for begin, end in entry.spans:
                        while begin < end:
                            size = os.preadv(fd, [buffer[filled : filled + end - begin]], begin)
                            if not size:
                                raise OSError(0, "it is shorter")
                            begin, filled = begin + size, filled + size
                            if filled == len(buffer):
                                yield filled
                                filled = 0
            except OSError as error:
                if filled:
                    yield filled
                    filled = 0
                error.filename = entry.path
                yield error
        if filled:
            yield filled
