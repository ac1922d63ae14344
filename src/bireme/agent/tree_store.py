"""The copies of trees on a node (``--ship``): each is complete or absent, and is kept while somebody uses it.

A copy is made in a folder ``DIGEST.RANDOM.tmp``, which is renamed to ``DIGEST.RANDOM`` when nothing is missing. Its
files are its own: ranks may write to them, and spoil no other copy. `is_whole` finds that out before the next job gets
the same copy. The price is the room for one more copy of what is the same; file systems that share blocks (btrfs, XFS)
do not pay it.

``.lock`` in the folder is locked: exclusively while the copy is made or removed, otherwise shared by the agents and
guardians of the jobs that run in it. The kernel unlocks it when they die, by whatever signal. So what can be locked
exclusively belongs to nobody.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import time

from bireme import drafts
from bireme.resources import manifest
from bireme.resources.manifest import ManifestError
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from bireme.resources.manifest import Entry, Manifest

    Stamp = tuple[int, ...]

_LOCK, _MANIFEST, _STAMPS, _WRITTEN_TO = ".lock", ".manifest", ".stamps", ".written-to"
_TEMPORARY = ".tmp"
_IDENTITY = ".identity"
NEWEST = 4
"""Copies that are kept however many there are."""
_KEPT = 30 * 86400.0
"""Seconds for which a copy is kept after its last use if ranks have written to it: they may want that back."""
_ABANDONED = 3600.0
"""Seconds after which a temporary folder without a lock belongs to nobody."""
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
        self._folder = self._final + _TEMPORARY
        self._stamps: list[Stamp] = [()] * len(made_from.entries)
        self.path = f"{self._folder}/{made_from.name}"
        # The lock comes into the folder locked, so that it never seems to belong to nobody.
        lock = f"{folder}/{_LOCK}.{os.urandom(4).hex()}{_TEMPORARY}"
        self._lock = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        _lock(self._lock, fcntl.LOCK_EX)
        os.mkdir(self._folder, 0o700)
        os.rename(lock, f"{self._folder}/{_LOCK}")
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
        for name, data in ((_MANIFEST, self.manifest.text), (_STAMPS, json.dumps(self._stamps).encode())):
            with open(os.open(f"{self._folder}/{name}", _NEW, 0o600), "wb") as file:
                file.write(data)
        os.rename(self._folder, self._final)
        for _ in range(100):  # after the rename: who gets the lock in between finds no folder of the temporary name
            if _lock(self._lock, fcntl.LOCK_SH):
                break
            time.sleep(0.001)
        path, lock = f"{self._final}/{self.manifest.name}", self._lock
        self._lock = -1
        return HeldTree(path, self.manifest, tuple(self._stamps), lock)

    def close(self) -> None:
        """Remove what was made, unless it is finished."""
        if self._lock >= 0:
            for _ in _removal(self._folder):
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


class TreeStore:
    """All copies of one user on this node.

    Args:
        cache: Bireme's folder in the user's cache.

    Raises:
        OSError: it cannot be created.
    """

    def __init__(self, cache: str) -> None:
        self.folder = os.path.join(cache, "trees")
        os.makedirs(self.folder, 0o700, exist_ok=True)

    def identity(self) -> str:
        """A name of this folder, the same on every node that has it; "" where it cannot be kept."""
        path = f"{self.folder}/{_IDENTITY}"
        try:
            if not os.path.exists(path):
                fd, draft = drafts.create(path, 0o600)
                try:
                    write_all(fd, os.urandom(16).hex().encode())
                    os.link(draft, path)  # unlike a rename, it does not replace what another node has just written
                except FileExistsError:
                    pass
                finally:
                    os.close(fd)
                    drafts.remove(draft)
            with open(path, encoding="ascii") as file:
                return file.read(32)
        except (OSError, ValueError):
            return ""

    def names(self) -> list[str]:
        """The complete copies, the last used first."""
        names = (name for name in os.listdir(self.folder) if name != _IDENTITY and not name.endswith(_TEMPORARY))
        used = {name: self._used(name) for name in names}
        return sorted(used, key=lambda name: used[name], reverse=True)

    def _used(self, name: str) -> float:
        try:
            return os.stat(f"{self.folder}/{name}/{_LOCK}").st_mtime
        except OSError:
            return 0.0

    def hold(self, name: str) -> HeldTree | None:
        """Hold a copy; ``None``: it is about to be removed, or damaged."""
        lock = self._locked(name, fcntl.LOCK_SH)
        if lock < 0:
            return None
        try:
            with open(f"{self.folder}/{name}/{_MANIFEST}", "rb") as file:
                made_from = manifest.read(file.read())
            with open(f"{self.folder}/{name}/{_STAMPS}", "rb") as file:
                stamps = tuple(map(tuple, json.load(file)))
            if made_from.digest.startswith(name.partition(".")[0]) and len(stamps) == len(made_from.entries):
                return HeldTree(f"{self.folder}/{name}/{made_from.name}", made_from, stamps, lock)
        except (OSError, ValueError, TypeError, ManifestError):
            pass
        os.close(lock)
        return None

    def find(self, digest: str) -> Generator[None, None, HeldTree | None]:
        """Find, in steps, a copy of this tree that is as it was made."""
        for name in self.names():
            if name.startswith(f"{digest[:32]}."):
                held = self.hold(name)
                if held is not None and held.manifest.digest == digest and (yield from held.is_whole()):
                    os.utime(held.lock)
                    return held
                if held is not None:
                    held.release()
        return None

    def _locked(self, name: str, kind: int) -> int:
        """A descriptor of a folder's lock, locked in this way; -1: it cannot be."""
        path = f"{self.folder}/{name}/{_LOCK}"
        try:
            fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return -1
        try:
            if _lock(fd, kind) and os.path.samestat(os.fstat(fd), os.stat(path)):
                return fd
        except OSError:  # it was renamed meanwhile
            pass
        os.close(fd)
        return -1

    def remove_temporary(self) -> Iterator[None]:
        """Remove, in steps, temporary folders that belong to nobody: a killed agent has left them."""
        for name in os.listdir(self.folder):
            if name.endswith(_TEMPORARY):
                yield from self._remove(name, time.time())

    def remove_old(self) -> Iterator[None]:
        """Remove, in steps, old copies that nobody uses."""
        now = time.time()
        for place, name in enumerate(self.names()):
            age = now - self._used(name)
            if age > _KEPT or (place >= NEWEST and not (yield from self._is_written_to(name))):
                yield from self._remove(name, now)

    def _is_written_to(self, name: str) -> Generator[None, None, bool]:
        """Whether ranks have left anything in a copy but Python's own cache. If so, a file says so the next time."""
        sign = f"{self.folder}/{name}/{_WRITTEN_TO}"
        if os.path.exists(sign):
            return True
        held = self.hold(name)
        if held is None:
            return False
        try:
            found = not (yield from held.is_whole()) or (yield from _has_more(held))
        finally:
            held.release()
        if found:
            os.close(os.open(sign, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        return found

    def _remove(self, name: str, now: float) -> Iterator[None]:
        """Remove a folder, in steps, unless somebody uses it. First it gets a temporary name: no half copy is used."""
        lock = self._locked(name, fcntl.LOCK_EX)
        path = f"{self.folder}/{name}"
        if lock < 0 and (os.path.exists(f"{path}/{_LOCK}") or not _is_older(path, now - _ABANDONED)):
            return
        try:
            if not name.endswith(_TEMPORARY):
                os.rename(path, path + _TEMPORARY)
                path += _TEMPORARY
            yield from _removal(path)
        finally:
            if lock >= 0:
                os.close(lock)


def _has_more(held: HeldTree) -> Generator[None, None, bool]:
    """Whether a copy holds files that were not sent, besides Python's own cache."""
    sent = {entry.path for entry in held.manifest.entries}
    for folder, folders, files in os.walk(held.path):
        yield
        folders[:] = [each for each in folders if each != "__pycache__"]
        below = folder[len(held.path) + 1 :]
        if any((f"{below}/{each}" if below else each) not in sent for each in files):
            return True
    return False


def _is_older(path: str, when: float) -> bool:
    try:
        return os.stat(path).st_mtime < when
    except OSError:
        return False


def _lock(fd: int, kind: int) -> bool:
    """Lock a file; return whether that was possible. Where there are no locks, all may read and nobody may remove."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except OSError as error:
        return kind == fcntl.LOCK_SH and error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
    return True


def _removal(path: str) -> Iterator[None]:
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
