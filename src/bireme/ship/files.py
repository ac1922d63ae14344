"""Opens, reads, writes, walks and removes what is inside a folder: never through a link, never across a mount."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import sys

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
_FICLONE = 0x40049409
DEEPEST = 200
_BLOCK = 1 << 20
_HAS_PROC = sys.platform == "linux"


def open_folder(top: int, path: str, *, make: bool = False) -> int:
    """Open a folder below an open one; "": that one again.

    Args:
        make: make the folders that are missing.
    """
    fd = os.dup(top)
    for part in path.split("/") if path else ():
        try:
            if make:
                try:
                    os.mkdir(part, dir_fd=fd)
                except FileExistsError:
                    pass
            inner = os.open(part, FOLDER, dir_fd=fd)
        finally:
            os.close(fd)
        fd = inner
    return fd


def open_file(top: int, path: str) -> int:
    """Open a regular file below an open folder, to read it."""
    folder, _, name = path.rpartition("/")
    parent = open_folder(top, folder)
    try:
        fd = os.open(name, _FILE, dir_fd=parent)
    finally:
        os.close(parent)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise FileNotFoundError(errno.ENOENT, "no regular file any more", path)
    return fd


def entry_of(item: Item) -> Entry | None:
    """What a walk has found, without the digest of a file; ``None``: neither a file nor a link nor a folder."""
    path, holder, name, there = item
    if stat.S_ISLNK(there.st_mode):
        return Entry(kind="link", path=path, content=os.readlink(name, dir_fd=holder), mtime=there.st_mtime_ns)
    if stat.S_ISDIR(there.st_mode):
        return Entry(kind="folder", path=path)
    if not stat.S_ISREG(there.st_mode):
        return None
    parts: tuple[int, ...] = ()
    if there.st_blocks * 512 < there.st_size:
        fd = open_file(holder, name)
        parts = parts_of(fd, there.st_size)
        os.close(fd)
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


def blocks(fd: int, entry: Entry) -> Iterator[bytes]:
    """The data of an open file, block by block; less if it is shorter."""
    for begin, end in entry.spans:
        for at in range(begin, end, _BLOCK):
            yield os.pread(fd, min(_BLOCK, end - at), at)


def digest_of(fd: int, entry: Entry) -> Generator[None, None, str]:
    """The SHA-256 of the data of an open file, in steps."""
    digest = hashlib.sha256()
    for block in blocks(fd, entry):
        digest.update(block)
        yield
    return digest.hexdigest()


def is_same(entry: Entry, item: Item) -> Generator[None, None, bool]:
    """Whether what a walk has found is what an entry says, in steps. Contents are compared, permissions are not."""
    _, holder, name, there = item
    found = entry_of(item)
    if (
        found is None
        or entry.kind == "folder"
        or entry
        != found.replace(path=entry.path, mode=entry.mode, mtime=entry.mtime, content=found.content or entry.content)
    ):
        return False
    if found.kind == "link":
        return True
    fd = open_file(holder, name)
    try:
        right = mount_of(fd) == mount_of(holder) and (yield from digest_of(fd, entry)) == entry.content
        return right and stamp_of(os.fstat(fd)) == stamp_of(there)
    finally:
        os.close(fd)


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
    enters: Callable[[str], bool] = lambda _: True,
    on_error: Callable[[str, OSError], None] | None = None,
    mounts: bool = True,
) -> Iterator[Item]:
    """What is inside an open folder: its path, the folder that holds it (open), its name, and what it is.

    What is in a folder comes before the folder.

    Args:
        below: begins the paths.
        enters: whether to enter the folder of this path.
        on_error: called with the path of a folder that cannot be read; ``None``: raise the error.
        mounts: whether to enter what is mounted there.
    """
    try:
        if below.count("/") > DEEPEST:  # we have no more descriptors
            raise OSError(errno.ENAMETOOLONG, "folders are too deep", below)
        for name in os.listdir(top):
            path = f"{below}/{name}" if below else name
            try:
                there = os.stat(name, dir_fd=top, follow_symlinks=False)
            except FileNotFoundError:
                continue
            if stat.S_ISDIR(there.st_mode) and enters(path):
                fd = -1
                try:
                    fd = os.open(name, FOLDER, dir_fd=top)
                    if not mounts and mount_of(fd) != mount_of(top):
                        raise OSError(errno.EBUSY, "something is mounted there", path)
                    yield from walk(fd, path, enters=enters, on_error=on_error, mounts=mounts)
                except OSError as error:  # what is beside it can be read
                    if on_error is None:
                        raise
                    on_error(path, error)
                finally:
                    if fd >= 0:
                        os.close(fd)
            yield path, top, name, there
    except OSError as error:
        if on_error is None:
            raise
        on_error(below, error)


def remove(folder: str, name: str, known: Mapping[str, Stamp] | None = None) -> Iterator[None]:
    """Remove a folder in steps. What cannot be removed stays, and so does what is mounted in it.

    Args:
        folder: the path of the folder that holds it.
        name: its name.
        known: the stamps of files and links by path inside; anything else, or with another stamp, stays. None: all.
    """
    parent = os.open(folder, FOLDER)
    try:
        top = os.open(name, FOLDER, dir_fd=parent)
        try:
            if mount_of(top) != mount_of(parent):
                return
            for path, holder, last, there in walk(top, mounts=False):
                yield
                try:
                    if stat.S_ISDIR(there.st_mode):
                        os.rmdir(last, dir_fd=holder)
                    elif known is None or known.get(path) == stamp_of(there):
                        os.unlink(last, dir_fd=holder)
                except OSError:
                    pass
        finally:
            os.close(top)
        os.rmdir(name, dir_fd=parent)
    except OSError:
        pass
    finally:
        os.close(parent)


class Draft:
    """A new file or link in a folder: takes its data, and compares them with its digest if that is known.

    Args:
        folder: the folder, open; ``None``: take the data, but do not keep them.
        name: its path there.
        entry: what it is to be.
    """

    def __init__(self, folder: int | None, name: str, entry: Entry) -> None:
        self.entry, self._folder, self.name, self.fd = entry, folder, name, -1
        self._spans = [*reversed(entry.spans)]
        self._digest = hashlib.sha256() if entry.kind == "file" and entry.content else None
        if folder is None:
            return
        if entry.kind == "link":
            os.symlink(entry.content, name, dir_fd=folder)
            return
        self.fd = os.open(name, _NEW, 0o600, dir_fd=folder)
        try:
            os.ftruncate(self.fd, entry.size if entry.parts else 0)
        except OSError:
            self.drop()
            raise

    @property
    def due(self) -> int:
        """Bytes that can be taken at once; 0: all of it has come."""
        return self._spans[-1][1] - self._spans[-1][0] if self._spans else 0

    def take(self, data: bytes | memoryview, *, is_there: bool = False) -> None:
        """Take the next bytes, no more than are due. After an error they can be taken again.

        Args:
            is_there: the file has them already.
        """
        begin, end = self._spans[-1]
        rest, at = memoryview(data), begin
        while rest and self.fd >= 0 and not is_there:
            written = os.pwrite(self.fd, rest, at)
            rest, at = rest[written:], at + written
        self._spans.pop()
        if begin + len(data) < end:
            self._spans.append((begin + len(data), end))
        if self._digest is not None:
            self._digest.update(data)

    @property
    def is_kept(self) -> bool:
        """Whether the data are written, not only counted."""
        return self._folder is not None

    @property
    def is_right(self) -> bool:
        """Whether what has come is all that was to come."""
        return not self._spans and (self._digest is None or self._digest.hexdigest() == self.entry.content)

    def close(self, mode: int) -> None:
        """Give it its permissions; it is complete."""
        if self.fd >= 0:
            os.fchmod(self.fd, mode)
            os.close(self.fd)
            self.fd = -1

    def drop(self) -> None:
        """Remove it, and only count what is taken of it from now on."""
        if self.fd >= 0:
            os.close(self.fd)
        if self._folder is not None:
            try:
                os.unlink(self.name, dir_fd=self._folder)
            except OSError:
                pass
        self.fd, self._folder = -1, None


def copy(top: int, path: str, folder: int, name: str, entry: Entry) -> Generator[None, None, bool]:
    """Make a file, in steps, as a copy of one whose content is right; return whether it is. Else there is no file.

    File systems that share blocks (btrfs, XFS) do so.

    Args:
        top: the open folder with that file.
        path: the path there.
        folder: the open folder for the copy.
        name: the path there.
        entry: what it is to be; without a digest, the content is not compared.
    """
    try:
        source = open_file(top, path)
    except OSError:
        return False
    try:
        draft = Draft(folder, name, entry)
        try:
            cloned = not entry.parts and _clone(source, draft.fd)  # somebody may have written to the holes
            for block in blocks(draft.fd if cloned else source, entry):
                draft.take(block, is_there=cloned)
                yield
            right = draft.is_right and os.fstat(draft.fd).st_size == entry.size
            (draft.close(entry.mode) if right else draft.drop())
        except OSError:
            draft.drop()
            raise
        return right
    finally:
        os.close(source)


def _clone(source: int, target: int) -> bool:
    """Let a file share the blocks of another one, if the file system can."""
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:
        return False
    return True


def contents(top: int, entries: Iterable[Entry], buffer: memoryview) -> Iterator[int | OSError]:
    """Fill a buffer again and again with the data of these files; each time, the bytes in it.

    In their place comes an error where a file cannot be read, or is shorter; it goes on with the next file.
    """
    filled = 0
    for entry in entries:
        fd = -1
        try:
            for begin, end in entry.spans:
                fd = open_file(top, entry.path) if fd < 0 else fd
                while begin < end:
                    size = os.preadv(fd, [buffer[filled : filled + end - begin]], begin)
                    if not size:
                        raise OSError(0, "it is shorter", entry.path)
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
        finally:
            if fd >= 0:
                os.close(fd)
    if filled:
        yield filled
