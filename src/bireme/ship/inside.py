"""Opens and removes what is inside a folder, part by part: never through a link, never across a mount."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping

    from bireme.ship.manifest import Entry

    Stamp = tuple[int, ...]

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a FIFO must not stop us

_DEEPEST = 200
_BLOCK = 1 << 20
_HAS_PROC = sys.platform == "linux"


def open_folder(top: int, path: str, *, make: bool = False) -> int:
    """Open a folder below an open one; "": that one again.

    Args:
        make: make the folders that are missing.

    Raises:
        OSError: it does not exist, or a part of its path is a link.
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


def open_folder_at(root: str, path: str) -> int:
    """Open a folder below the path of another one, as `open_folder`."""
    top = os.open(root, FOLDER)
    try:
        return open_folder(top, path)
    finally:
        os.close(top)


def open_file(top: int, path: str) -> int:
    """Open a regular file below an open folder, to read it.

    Raises:
        OSError: it does not exist, is no regular file, or a part of its path is a link.
    """
    folder, _, name = path.rpartition("/")
    parent = open_folder(top, folder) if folder else top
    try:
        fd = os.open(name, _FILE, dir_fd=parent)
    finally:
        if folder:
            os.close(parent)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise FileNotFoundError(errno.ENOENT, "no regular file any more", path)
    return fd


def parts_of(fd: int, there: os.stat_result) -> tuple[int, ...]:
    """Where the data of a file begins and ends, if it has holes: holes are not sent."""
    if there.st_blocks * 512 >= there.st_size:
        return ()
    parts: list[int] = []
    place = 0
    while place < there.st_size:
        try:
            begin = os.lseek(fd, place, os.SEEK_DATA)
        except OSError:  # there are only holes from here on
            break
        place = min(os.lseek(fd, begin, os.SEEK_HOLE), there.st_size)
        parts += [begin, place] if begin < place else []
    return () if parts == [0, there.st_size] else tuple(parts or (0, 0))


def blocks(fd: int, spans: Iterable[tuple[int, int]]) -> Iterator[bytes]:
    """What these parts of an open file hold, block by block; less if it is shorter."""
    for begin, end in spans:
        for at in range(begin, end, _BLOCK):
            yield os.pread(fd, min(_BLOCK, end - at), at)


def is_same(entry: Entry, holder: int, name: str, there: os.stat_result) -> Generator[None, None, bool]:
    """Whether a file, or link, in an open folder is what its entry says, in steps. Contents are compared."""
    if entry.kind == "link":
        return stat.S_ISLNK(there.st_mode) and os.readlink(name, dir_fd=holder) == entry.content
    if entry.kind != "file" or not stat.S_ISREG(there.st_mode) or there.st_size != entry.size:
        return False
    fd = open_file(holder, name)
    try:
        if mount_of(fd) != mount_of(holder) or parts_of(fd, there) != entry.parts:
            return False
        digest = hashlib.sha256()
        for block in blocks(fd, entry.spans):
            digest.update(block)
            yield
        return digest.hexdigest() == entry.content and stamp_of(os.fstat(fd)) == stamp_of(there)
    finally:
        os.close(fd)


def stamp_of(there: os.stat_result) -> Stamp:
    """What changes when somebody writes to a file."""
    return (there.st_size, there.st_mtime_ns, there.st_ctime_ns, there.st_ino)


def prefixes(path: str) -> list[str]:
    """The folders on the way to a path, and itself."""
    parts = path.split("/")
    return ["/".join(parts[:number]) for number in range(1, len(parts) + 1)]


def mount_of(fd: int) -> str:
    """Names the mount through which a file was opened; a mounted folder may be of the same file system."""
    if _HAS_PROC:
        try:
            with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as file:
                return next(line for line in file if line.startswith("mnt_id:"))
        except (OSError, StopIteration):
            return f"unknown {fd}"  # which is equal to no other
    return str(os.fstat(fd).st_dev)


def refuse_deep(path: str) -> None:
    """Refuse a folder in more folders than we have descriptors for.

    Raises:
        OSError: it is.
    """
    if path.count("/") > _DEEPEST:
        raise OSError(errno.ENAMETOOLONG, "folders are too deep", path)


def listing(top: int, below: str = "") -> Iterator[tuple[str, int, str, os.stat_result]]:
    """Everything inside an open folder: its path, the folder that holds it (open), its name, and what it is.

    What is in a folder comes before the folder.

    Raises:
        OSError: a folder cannot be read or is too deep, or something is mounted there.
    """
    refuse_deep(below)
    mount = mount_of(top)
    for name in os.listdir(top):
        path = f"{below}/{name}" if below else name
        there = os.stat(name, dir_fd=top, follow_symlinks=False)
        if stat.S_ISDIR(there.st_mode):
            fd = os.open(name, FOLDER, dir_fd=top)
            try:
                if mount_of(fd) != mount:
                    raise OSError(errno.EBUSY, "something is mounted there", path)
                yield from listing(fd, path)
            finally:
                os.close(fd)
        yield path, top, name, there


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
            for path, holder, last, there in listing(top):
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
