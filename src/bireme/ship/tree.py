"""One tree on a node (``--ship``): how it is made, and how it is seen that nothing in it was added or changed.

A tree is made in a folder with a temporary name, which gets its name when nothing is missing. Its files are its own:
whatever ranks do with them, no other tree has them. A file of an older tree is used only if its content, compared while
it is copied, has the digest that is wanted. File systems that share blocks (btrfs, XFS) do so.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import time

from bireme.ship import inside, manifest
from bireme.ship.contents import Incoming
from bireme.ship.inside import stamp_of
from bireme.ship.manifest import ManifestError
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from bireme.ship.inside import Stamp
    from bireme.ship.manifest import Entry, Manifest

OWN = LOCK, MANIFEST, STAMPS, CHANGED = ".lock", ".manifest", ".stamps", ".changed"
"""The files beside the tree in its folder."""
TEMPORARY = ".tmp"
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FICLONE = 0x40049409


class HeldTree(Value):
    """A complete tree that nobody removes while ``lock`` is open.

    Attributes:
        folder: the path of its folder.
        manifest: what was sent.
        lock: a descriptor.
    """

    folder: str
    manifest: Manifest
    lock: int

    @property
    def path(self) -> str:
        """The path of the tree itself."""
        return f"{self.folder}/{self.manifest.name}"

    def stamps(self) -> dict[str, Stamp] | None:
        """The stamps of files and links as made; ``None``: the machine was booted since, and may have lost some."""
        try:
            with open(f"{self.folder}/{STAMPS}", "rb") as file:
                boot, stamps = json.load(file)
            found = {str(path): tuple(stamp) for path, stamp in stamps.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return None
        return found if boot and boot == boot_id() else None

    def is_untouched(self) -> Generator[None, None, bool]:
        """Find out, in steps, whether all is as it was made. Only for a tree in which nobody has run."""
        stamps = self.stamps()
        if stamps is None:
            return False
        for place, entry in enumerate(self.manifest.entries):
            if place % 64 == 0:
                yield
            try:
                there = os.lstat(f"{self.path}/{entry.path}")
            except OSError:
                return False
            if stamps.get(entry.path) != stamp_of(there) if entry.kind != "folder" else not stat.S_ISDIR(there.st_mode):
                return False
        return True

    def known(self) -> Generator[None, None, dict[str, Stamp] | None]:
        """The stamps of all files and links inside, in steps; ``None``: something was added or changed.

        Contents are compared, whatever the times say. What was removed does not count, nor does Python's own cache.
        """
        entries = {f"{self.manifest.name}/{entry.path}": entry for entry in self.manifest.entries}
        folders = {self.manifest.name, *(part for path in entries for part in inside.prefixes(path)[:-1])}
        found: dict[str, Stamp] = {}
        top = os.open(self.folder, inside.FOLDER)
        try:
            for path, holder, name, there in inside.listing(top):
                yield
                entry, cached = entries.get(path), "__pycache__" in path.split("/")[-2:]
                if stat.S_ISDIR(there.st_mode):
                    if not cached and path not in folders and (entry is None or entry.kind != "folder"):
                        return None
                    continue
                own = path in OWN or (cached and name.endswith(".pyc") and stat.S_ISREG(there.st_mode))
                if not own and (entry is None or not (yield from inside.is_same(entry, holder, name, there))):
                    return None
                found[path] = stamp_of(there)
        except OSError:
            return None
        finally:
            os.close(top)
        return found

    def rename(self, new: str) -> HeldTree:
        """Give its folder another name.

        Raises:
            OSError: there is such a folder, or another process has renamed it.
        """
        os.rename(self.folder, new)
        return self.replace(folder=new)

    def release(self) -> None:
        """Let the tree be removed."""
        os.close(self.lock)


def read_manifest(folder: str) -> Manifest | None:
    """The manifest of the tree in a folder; ``None``: it is damaged, or there is none."""
    try:
        with open(f"{folder}/{MANIFEST}", "rb") as file:
            return manifest.read(file.read())
    except (OSError, ManifestError):
        return None


class NewTree:
    """A tree in the making. It is removed by :meth:`close` unless it was finished.

    Args:
        folder: of all trees.
        made_from: what the tree will hold.
        base: an untouched tree to make it from, which then is no more; ``None``: an empty folder.

    Raises:
        OSError: its folder cannot be created.
    """

    def __init__(self, folder: str, made_from: Manifest, base: HeldTree | None = None) -> None:
        self.manifest = made_from
        self._folder = f"{folder}/{os.urandom(6).hex()}{TEMPORARY}"
        self.stamps: dict[str, Stamp] = {}
        if base is None:
            # The lock comes into the folder locked, so that it never seems to belong to nobody.
            lock = f"{folder}/{LOCK}.{os.urandom(6).hex()}{TEMPORARY}"
            self._lock = os.open(lock, _NEW, 0o600)
            take_lock(self._lock, fcntl.LOCK_EX)
            os.mkdir(self._folder, 0o700)
            os.rename(lock, f"{self._folder}/{LOCK}")
            os.mkdir(f"{self._folder}/{made_from.name}")
        else:
            base = base.rename(self._folder)
            self._lock = base.lock
            os.rename(f"{self._folder}/{base.manifest.name}", f"{self._folder}/{made_from.name}")
            self._keep_common(base)
        self._top = os.open(self.path, inside.FOLDER)
        self._make_folders()
        for entry in made_from.entries:
            if self.lacks(entry) and not entry.data:
                self.close_file(entry, self.open(entry))

    def _keep_common(self, base: HeldTree) -> None:
        """Remove what the tree will not hold."""
        stamps, wanted = base.stamps() or {}, {entry.path: entry for entry in self.manifest.entries}
        path = self.path
        for entry in reversed(base.manifest.entries):
            same = wanted.get(entry.path) == entry
            if same and entry.kind != "folder":
                self.stamps[entry.path] = stamps[entry.path]
            elif not same:
                (os.rmdir if entry.kind == "folder" else os.unlink)(f"{path}/{entry.path}")
                for folder in reversed(inside.prefixes(entry.path)[:-1]):
                    try:
                        os.rmdir(f"{path}/{folder}")
                    except OSError:
                        break
        for name in (MANIFEST, STAMPS):
            os.unlink(f"{self._folder}/{name}")

    def _make_folders(self) -> None:
        made = set()
        for entry in self.manifest.entries:
            folder = entry.path if entry.kind == "folder" else entry.path.rpartition("/")[0]
            if folder and folder not in made:
                os.makedirs(f"{self.path}/{folder}", exist_ok=True)
                made.add(folder)

    def lacks(self, entry: Entry) -> bool:
        """Whether a file is still missing."""
        return entry.kind == "file" and entry.path not in self.stamps

    def open(self, entry: Entry) -> int:
        """Create a file, with its holes; return a descriptor to write its data to."""
        fd = os.open(entry.path, _NEW, 0o600, dir_fd=self._top)
        if entry.parts:
            os.ftruncate(fd, entry.size)
        return fd

    def close_file(self, entry: Entry, fd: int) -> None:
        """Close a file that is complete."""
        os.fchmod(fd, entry.mode)
        self.stamps[entry.path] = stamp_of(os.fstat(fd))
        os.close(fd)

    @property
    def path(self) -> str:
        """The path of the tree itself, as long as it is in the making."""
        return f"{self._folder}/{self.manifest.name}"

    def copy_from(self, other: HeldTree | NewTree) -> Iterator[None]:
        """Copy, in steps, the files that another tree has too, and in which nobody has changed them."""
        there = {entry.path: entry for entry in other.manifest.entries}
        try:
            top = os.open(other.path, inside.FOLDER)
        except OSError:  # ranks have removed it
            return
        try:
            for entry in self.manifest.entries:
                if self.lacks(entry) and there.get(entry.path) == entry:
                    yield
                    yield from self._copy(entry, top, isinstance(other, NewTree))
        finally:
            os.close(top)

    def _copy(self, entry: Entry, top: int, is_trusted: bool) -> Iterator[None]:
        try:
            source = inside.open_file(top, entry.path)
        except OSError:
            return
        target = self.open(entry)
        try:
            cloned = not entry.parts and _clone(source, target)  # somebody may have written to the holes
            wanted = entry.replace(content="") if is_trusted else entry  # nobody can have changed what is in the making
            copy = Incoming(wanted, None if cloned else target)
            for block in inside.blocks(target if cloned else source, entry.spans):
                copy.take(block)
                yield
            if copy.is_right and os.fstat(target).st_size == entry.size:
                self.close_file(entry, os.dup(target))
            else:
                os.unlink(entry.path, dir_fd=self._top)
        finally:
            os.close(source)
            os.close(target)

    def finish(self, name: str, *, spare: bool = False) -> HeldTree:
        """Make the tree complete: create its links, and give its folder this name.

        Args:
            name: the path of its folder.
            spare: nobody will run in it, so that it can be seen that it is untouched. Files may be missing.

        Raises:
            OSError: there is such a folder.
        """
        for entry in self.manifest.entries:
            if entry.kind == "link" and entry.path not in self.stamps:
                os.symlink(entry.content, entry.path, dir_fd=self._top)
                self.stamps[entry.path] = stamp_of(os.stat(entry.path, dir_fd=self._top, follow_symlinks=False))
        if spare:
            kept = [entry for entry in self.manifest.entries if not self.lacks(entry)]
            self.manifest = manifest.make(self.manifest.name, kept)
        files = {MANIFEST: self.manifest.text}
        if spare:
            files[STAMPS] = json.dumps([boot_id(), self.stamps]).encode()
        for each, data in files.items():
            with open(os.open(f"{self._folder}/{each}", _NEW, 0o600), "wb") as file:
                file.write(data)
        os.rename(self._folder, name)
        for _ in range(100):  # after the rename: who gets the lock in between finds no folder of the temporary name
            if take_lock(self._lock, fcntl.LOCK_SH):
                break
            time.sleep(0.001)
        lock, self._lock = self._lock, -1
        os.close(self._top)
        return HeldTree(name, self.manifest, lock)

    def close(self) -> None:
        """Remove what was made, unless it is finished."""
        if self._lock >= 0:
            os.close(self._top)
            for _ in inside.remove(*os.path.split(self._folder)):
                pass
            os.close(self._lock)
            self._lock = -1


def _clone(source: int, target: int) -> bool:
    """Let a file share the blocks of another one, if the file system can."""
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:
        return False
    return True


def take_lock(fd: int, kind: int) -> bool:
    """Lock a file; return whether that was possible. Where there are no locks, all may read and nobody may remove."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except OSError as error:
        return kind == fcntl.LOCK_SH and error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
    return True


def boot_id() -> str:
    """Names the time since this machine was booted; "" where it has no such name."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
