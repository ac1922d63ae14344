"""One copy of a tree on a node (``--ship``): how it is made, and how it is seen that it is as it was made.

A copy is made in a folder ``DIGEST.RANDOM.tmp``, which is renamed to ``DIGEST.RANDOM`` when nothing is missing. Its
files are its own: ranks may write to them, and spoil no other copy. `HeldTree.is_whole` finds that out before the next
job gets the same copy. The price is the room for one more copy of what is the same; file systems that share blocks
(btrfs, XFS) do not pay it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import time

from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from bireme.ship.manifest import Entry, Manifest

    Stamp = tuple[int, ...]

OWN = LOCK, MANIFEST, STAMPS, WRITTEN_TO, JOBS = ".lock", ".manifest", ".stamps", ".written-to", ".jobs"
"""The files beside the tree in the folder of a copy."""
TEMPORARY = ".tmp"
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_BLOCK = 8 << 20


class HeldTree(Value):
    """A complete copy that nobody removes while ``lock`` is open.

    Attributes:
        path: of the tree's folder.
        manifest: what was sent.
        stamps: of each file as it was made (`stamp_of`).
        lock: a descriptor.
    """

    path: str
    manifest: Manifest
    stamps: tuple[Stamp, ...]
    lock: int

    def is_whole(self) -> Generator[None, None, bool]:
        """Find out, in steps, whether everything is as it was made. More files may have come."""
        for place, entry in enumerate(self.manifest.entries):
            if place % 64 == 0:
                yield
            if not is_unchanged(f"{self.path}/{entry.path}", entry, self.stamps[place]):
                return False
        return True

    def note(self, job: str) -> None:
        """Note that a job runs in this copy, so that it gets the same again (`TreeStore.find`); "": it need not."""
        if job:
            path, flags = f"{os.path.dirname(self.path)}/{JOBS}", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            fd = os.open(path, flags, 0o600)
            try:
                write_all(fd, f"{job}\n".encode())
            finally:
                os.close(fd)

    def release(self) -> None:
        """Let the copy be removed."""
        os.close(self.lock)


def stamp_of(there: os.stat_result) -> Stamp:
    """What changes when somebody writes to a file."""
    return (there.st_size, there.st_mtime_ns, there.st_ctime_ns, there.st_ino)


def is_unchanged(path: str, entry: Entry, stamp: Stamp) -> bool:
    """Whether a part of a copy is as it was made."""
    try:
        there = os.lstat(path)
        if entry.kind == "file":
            return stat.S_ISREG(there.st_mode) and stamp_of(there) == stamp
        if entry.kind == "link":
            return stat.S_ISLNK(there.st_mode) and os.readlink(path) == entry.content
        return stat.S_ISDIR(there.st_mode)
    except OSError:
        return False


class NewTree:
    """A copy in the making. It is removed by :meth:`close` unless it was finished.

    Args:
        folder: of all copies.
        made_from: what the copy will hold.

    Raises:
        OSError: its folder cannot be created.
    """

    def __init__(self, folder: str, made_from: Manifest) -> None:
        self.manifest = made_from
        self._final = f"{folder}/{made_from.digest[:32]}.{os.urandom(4).hex()}"
        self._folder = self._final + TEMPORARY
        self._stamps: list[Stamp] = [()] * len(made_from.entries)
        self.path = f"{self._folder}/{made_from.name}"
        # The lock comes into the folder locked, so that it never seems to belong to nobody.
        lock = f"{folder}/{LOCK}.{os.urandom(4).hex()}{TEMPORARY}"
        self._lock = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        take_lock(self._lock, fcntl.LOCK_EX)
        os.mkdir(self._folder, 0o700)
        os.rename(lock, f"{self._folder}/{LOCK}")
        os.mkdir(self.path)

    def make_folders(self) -> None:
        """Create the folders, before any file or link."""
        made = {self.path}
        for entry in self.manifest.entries:
            path = f"{self.path}/{entry.path}"
            folder = path if entry.kind == "folder" else path.rpartition("/")[0]
            if folder not in made:
                os.makedirs(folder, exist_ok=True)
                made.add(folder)

    def open(self, place: int) -> int:
        """Create a file; return a descriptor to write its content to."""
        return os.open(f"{self.path}/{self.manifest.entries[place].path}", _NEW, 0o600)

    def close_file(self, place: int, fd: int) -> None:
        """Close a file that is complete."""
        os.fchmod(fd, self.manifest.entries[place].mode)
        self._stamps[place] = stamp_of(os.fstat(fd))
        os.close(fd)

    def copy(self, place: int, path: str, stamp: Stamp) -> Generator[None, None, bool]:
        """Copy a file of this machine, in steps; return whether it was as the stamp says until the end."""
        entry = self.manifest.entries[place]
        if not is_unchanged(path, entry, stamp):
            return False
        source = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        target = self.open(place)
        try:
            left = entry.size
            while left:
                copied = _copy_block(source, target, left)
                if not copied:
                    break
                left -= copied
                yield
            if not left and is_unchanged(path, entry, stamp):
                self.close_file(place, os.dup(target))
                return True
            os.unlink(f"{self.path}/{entry.path}")
            return False
        finally:
            os.close(source)
            os.close(target)

    def duplicate(self, place: int, original: int) -> Generator[None, None, None]:
        """Copy a file of this copy, in steps."""
        path = f"{self.path}/{self.manifest.entries[original].path}"
        if not (yield from self.copy(place, path, self._stamps[original])):
            raise OSError(errno.EIO, "a file was changed while it was copied", path)

    def finish(self) -> HeldTree:
        """Make the copy complete: create its links, and give it its name."""
        for entry in self.manifest.entries:
            if entry.kind == "link":
                os.symlink(entry.content, f"{self.path}/{entry.path}")
        for name, data in ((MANIFEST, self.manifest.text), (STAMPS, json.dumps(self._stamps).encode())):
            with open(os.open(f"{self._folder}/{name}", _NEW, 0o600), "wb") as file:
                file.write(data)
        os.rename(self._folder, self._final)
        for _ in range(100):  # after the rename: who gets the lock in between finds no folder of the temporary name
            if take_lock(self._lock, fcntl.LOCK_SH):
                break
            time.sleep(0.001)
        path, lock = f"{self._final}/{self.manifest.name}", self._lock
        self._lock = -1
        return HeldTree(path, self.manifest, tuple(self._stamps), lock)

    def close(self) -> None:
        """Remove what was made, unless it is finished."""
        if self._lock >= 0:
            for _ in removal(self._folder):
                pass
            os.close(self._lock)
            self._lock = -1


def _copy_block(source: int, target: int, most: int) -> int:
    """Copy a block, without reading it where the kernel can; return its size."""
    try:
        return os.copy_file_range(source, target, min(most, _BLOCK))
    except (AttributeError, OSError):
        return write_all(target, os.read(source, min(most, _BLOCK)))


def write_all(fd: int, data: bytes | memoryview) -> int:
    """Write to a file; return the number of bytes."""
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]
    return len(data)


def take_lock(fd: int, kind: int) -> bool:
    """Lock a file; return whether that was possible. Where there are no locks, all may read and nobody may remove."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except OSError as error:
        return kind == fcntl.LOCK_SH and error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
    return True


def removal(path: str) -> Iterator[None]:
    """Remove a folder in steps; what cannot be removed stays. ``shutil`` is slow to import."""
    for folder, folders, files in os.walk(path, topdown=False):
        yield
        _try(os.chmod, folder, 0o700)
        for name in (*files, *folders):
            place = f"{folder}/{name}"
            is_folder = name in folders and not os.path.islink(place)
            _try(os.rmdir if is_folder else os.unlink, place)
    _try(os.rmdir if os.path.isdir(path) else os.unlink, path)


def _try(action: Callable[..., object], *args: object) -> None:
    try:
        action(*args)
    except OSError:
        pass
