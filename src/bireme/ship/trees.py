"""The trees on a node (``--ship``): complete or absent, and kept while somebody uses them, or has left something there.

Each job has a tree of its own, by its id, for all nodes that share the folder and for all its attempts and epochs. It
is made in a folder with a temporary name, which gets its name when nothing is missing. ``.lock`` there is locked:
exclusively while the tree is made or removed, otherwise shared by the agents and guardians of the job that runs in it.
The kernel unlocks it when they die, by whatever signal. So what can be locked exclusively belongs to nobody.

Beside the trees is the stock: files in which nobody works, by their content. A new tree takes its files from there, so
they are its own. What the stock lacks is copied from an older tree, and compared, or comes from the runner.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import time

from bireme import drafts
from bireme.regular_file import open_regular
from bireme.resources.ownership import make_owned
from bireme.ship import inside, manifest
from bireme.ship.inside import stamp_of
from bireme.ship.manifest import ManifestError, prefixes
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Generator, Iterator
    from typing import TypeVar

    from bireme.ship.inside import Incoming, Stamp
    from bireme.ship.manifest import Entry, Manifest

    _T = TypeVar("_T")

OWN = LOCK, MANIFEST, CHANGED = ".lock", ".manifest", ".changed"
"""The files beside the tree in its folder."""
TEMPORARY = ".tmp"
_OLD = ".old"
"""The end of the name of a job's tree that is being removed."""
STOCK = ".stock"
NEWEST = 4
"""Trees of jobs that are kept however many there are, and from which others are made."""
_ABANDONED = 3600.0
"""Seconds after which something temporary without a lock belongs to nobody."""
_HINT = "--export XDG_CACHE_HOME=DIR names another place, into which only you can write"


class HeldTree(Value):
    """A complete tree that nobody removes while ``lock`` is open.

    Attributes:
        folder: the path of its folder.
    """

    folder: str
    manifest: Manifest
    lock: int

    @property
    def path(self) -> str:
        """The path of the tree itself."""
        return f"{self.folder}/{self.manifest.name}"

    def known(self) -> Generator[None, None, dict[str, Stamp] | None]:
        """The stamps of all files and links inside, in steps; ``None``: something was added or changed.

        Contents are compared, whatever the times say. What was removed does not count, nor does Python's own cache.
        """
        entries = {entry.path: entry for entry in self.manifest.entries}
        folders = {part for entry in entries.values() for part in prefixes(entry.folder)}
        found: dict[str, Stamp] = {}
        try:
            if not {*os.listdir(self.folder)} <= {*OWN, self.manifest.name}:
                return None
            top = os.open(self.path, inside.FOLDER)
        except OSError as error:
            return found if error.errno == errno.ENOENT else None
        try:
            for item in inside.walk(top, mounts=False):
                yield
                path, _, name, there = item
                entry, cached = entries.get(path), "__pycache__" in path.split("/")[-2:]
                if stat.S_ISDIR(there.st_mode):
                    if not cached and path not in folders:
                        return None
                    continue
                own = cached and name.endswith(".pyc") and stat.S_ISREG(there.st_mode)
                if not own and (entry is None or not (yield from inside.is_same(entry, item))):
                    return None
                found[path] = stamp_of(there)
        except OSError:
            return None
        finally:
            os.close(top)
        return found

    def release(self) -> None:
        """Let the tree be removed."""
        os.close(self.lock)


class Stock:
    """Files to make trees of, each in its folder under a name for its content.

    They have a time that no other file has, and whoever writes to one changes that.
    """

    def __init__(self, folder: str) -> None:
        self._mark = _mark()
        try:
            os.mkdir(f"{folder}/{STOCK}", 0o700)
        except FileExistsError:
            pass
        self._folder = os.open(f"{folder}/{STOCK}", inside.FOLDER)

    def _has(self, name: str, entry: Entry) -> bool:
        """Whether a file is there as it was made."""
        try:
            there = os.stat(name, dir_fd=self._folder, follow_symlinks=False)
        except OSError:
            return False
        as_made = (stat.S_IFREG | entry.mode, entry.size, self._mark or -1)
        return (there.st_mode, there.st_size, there.st_mtime_ns) == as_made

    def take(self, name: str, top: int, entry: Entry) -> bool:
        """Move a file into a tree; return whether it was there."""
        if not self._has(name, entry):
            return False
        try:
            os.rename(name, entry.path, src_dir_fd=self._folder, dst_dir_fd=top)
        except OSError:  # another agent was faster
            return False
        os.utime(entry.path, dir_fd=top)
        return True

    def put(self, name: str, source: int, entry: Entry, *, is_sure: bool) -> Iterator[None]:
        """Copy an open file, in steps, if there is room.

        Args:
            is_sure: nobody can have changed it.
        """
        if not self._mark:
            return
        try:
            drafts.remove(name, self._folder)  # it was changed, or a killed agent has not completed it
            fd = inside.create(self._folder, name, entry)
            try:
                yield from inside.copy(source, fd, entry)
                if is_sure or (yield from inside.digest_of(fd, entry)) == entry.content:
                    os.fchmod(fd, entry.mode)
                    os.utime(fd, ns=(self._mark, self._mark))  # only now: else it is not complete
            finally:
                os.close(fd)
        except FileExistsError:  # another agent puts it there
            pass
        except OSError:
            self.drop()

    def fill(self, held: HeldTree, wanted: Container[str]) -> Iterator[None]:
        """Copy, in steps, what is wanted and missing here, from a tree that may have it."""
        try:
            top = os.open(held.path, inside.FOLDER)
        except OSError:  # ranks have removed it
            return
        try:
            for name, entry in names_of(held.manifest).items():
                yield
                if name not in wanted or self._has(name, entry):
                    continue
                try:
                    fd = inside.open_file(top, entry.path)
                except OSError:  # ranks have removed it
                    continue
                try:
                    yield from self.put(name, fd, entry, is_sure=False)
                finally:
                    os.close(fd)
        finally:
            os.close(top)

    def drop(self, wanted: Container[str] = ()) -> bool:
        """Remove all but what is wanted; return whether there was something. If nothing is, keep nothing any more."""
        if not wanted:
            self._mark = 0
        found = False
        for name in os.listdir(self._folder):
            if name not in wanted:
                drafts.remove(name, self._folder)
                found = True
        return found

    def close(self) -> None:
        """Close its folder."""
        os.close(self._folder)


class NewTree:
    """A tree in the making. It is removed by :meth:`close` unless it was finished.

    Attributes:
        missing: the files with data that are still to come, by their names in the stock.
    """

    def __init__(self, folder: str, made_from: Manifest, stock: Stock) -> None:
        self.manifest, self._stock = made_from, stock
        self._folder = f"{folder}/{os.urandom(6).hex()}{TEMPORARY}"
        self.missing = names_of(made_from)
        # The lock comes into the folder locked, so that it never seems to belong to nobody.
        lock = f"{self._folder}.lock{TEMPORARY}"
        self._lock = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        take_lock(self._lock, fcntl.LOCK_EX)
        self._do(lambda: os.mkdir(self._folder, 0o700))
        os.rename(lock, f"{self._folder}/{LOCK}")
        self._do(lambda: os.mkdir(self.path))
        self._top = os.open(self.path, inside.FOLDER)

    @property
    def path(self) -> str:
        """The path of the tree itself, as long as it is in the making."""
        return f"{self._folder}/{self.manifest.name}"

    def _do(self, action: Callable[[], _T]) -> _T:
        """Do this; without the stock, if there is no room for both."""
        try:
            return action()
        except OSError:
            if not self._stock.drop():
                raise
            return action()

    def begin(self) -> Iterator[None]:
        """Make, in steps, the folders, and what has no data."""
        self._do(lambda: drafts.write(f"{self._folder}/{MANIFEST}", self.manifest.text, mode=0o600))
        made = set[str]()
        for entry in self.manifest.entries:
            yield
            if entry.folder not in made:
                folder = f"{self.path}/{entry.folder}"
                self._do(lambda folder=folder: os.makedirs(folder, exist_ok=True))  # type: ignore[misc]
                made.add(entry.folder)
            if entry.kind != "folder" and not entry.data:
                self._close(self._create(entry), entry)

    def take(self) -> Iterator[None]:
        """Take, in steps, from the stock what it has."""
        for name, entry in [*self.missing.items()]:
            yield
            if self._stock.take(name, self._top, entry):
                del self.missing[name]

    def receive(self, name: str, incoming: Incoming) -> Generator[None, None, bool]:
        """Write a missing file as it comes, and put it into the stock; return whether it is right."""
        entry, right = self.missing[name], False
        fd = self._create(entry)
        try:
            write: Callable[[memoryview, int], None] = lambda data, at: self._do(lambda: inside.write(fd, data, at))  # noqa: E731
            right = yield from incoming.data_of(entry, write)
            if right:  # and nobody can change it yet
                yield from self._stock.put(name, fd, entry, is_sure=True)
        finally:
            self._close(fd, entry)
        return right

    def _create(self, entry: Entry) -> int:
        return self._do(lambda: inside.create(self._top, entry.path, entry))

    def _close(self, fd: int, entry: Entry) -> None:
        if fd >= 0:
            os.fchmod(fd, entry.mode)
            os.close(fd)

    def finish(self, name: str) -> HeldTree:
        """Make the tree complete: give its folder this name."""
        os.rename(self._folder, name)
        for _ in range(100):  # after the rename: who gets the lock in between finds no folder of the temporary name
            if take_lock(self._lock, fcntl.LOCK_SH) is not False:
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


class Trees:
    """All trees of one user on this node, in Bireme's folder of the user's cache."""

    def __init__(self, cache: str) -> None:
        self.folder = os.path.join(cache, "ship")
        make_owned(self.folder, hint=_HINT)
        if os.stat(self.folder).st_mode & 0o077:
            os.chmod(self.folder, 0o700)
        self.stock = Stock(self.folder)

    def turn(self, job: str) -> tuple[int, str]:
        """A file whose lock says whose turn it is to make the tree of a job, because agents may share this folder.

        The lock only saves work. Who makes a tree nevertheless, as where there are no locks, takes that of another one
        that was faster.
        """
        path = f"{self.folder}/.{job}{TEMPORARY}"
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), path

    def jobs(self) -> list[str]:
        """The names of the trees of jobs, the last used first."""

        def used(name: str) -> float:
            try:
                return os.stat(f"{self.folder}/{name}/{LOCK}").st_mtime
            except OSError:
                return 0.0

        names = (name for name in os.listdir(self.folder) if name[0] != "." and not name.endswith(TEMPORARY))
        return sorted(names, key=used, reverse=True)

    def _locked(self, name: str, kind: int) -> int:
        """A descriptor of a folder's lock, locked in this way; -1: it cannot be.

        Where there are no locks, all may read and nobody may remove.
        """
        path = f"{self.folder}/{name}/{LOCK}"
        try:
            fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return -1
        try:
            locked = take_lock(fd, kind)
            if (locked or (locked is None and kind == fcntl.LOCK_SH)) and os.path.samestat(os.fstat(fd), os.stat(path)):
                return fd
        except OSError:  # it was renamed meanwhile
            pass
        os.close(fd)
        return -1

    def hold(self, name: str, kind: int = fcntl.LOCK_SH, digest: str = "") -> HeldTree | None:
        """Hold a complete tree; ``None``: there is none, or it is about to be removed, damaged or another."""
        lock = self._locked(name, kind)
        if lock >= 0:
            try:
                made_from = manifest.read(manifest_text(f"{self.folder}/{name}"))
                if digest in ("", made_from.digest):
                    return HeldTree(f"{self.folder}/{name}", made_from, lock)
            except ManifestError:
                pass
            os.close(lock)
        return None

    def find_manifest(self, digest: str) -> Manifest | None:
        """A manifest, if one of the newest trees has it."""
        for name in self.jobs()[:NEWEST]:
            text = manifest_text(f"{self.folder}/{name}")
            if hashlib.sha256(text).hexdigest() == digest:
                return manifest.read(text)
        return None

    def take(self, new: NewTree) -> Iterator[None]:
        """Begin a tree, in steps, with what is here already: in the stock, or in the newest trees."""
        yield from new.begin()
        yield from new.take()
        for name in self.jobs()[:NEWEST]:
            if new.missing and (held := self.hold(name)) is not None:
                try:
                    yield from self.stock.fill(held, new.missing)
                finally:
                    held.release()
                yield from new.take()

    def finish(self, new: NewTree, job: str) -> HeldTree:
        """Make a tree complete; it becomes that of the job, unless another agent was faster."""
        try:
            return new.finish(f"{self.folder}/{job}")
        except OSError:
            held = self.hold(job, digest=new.manifest.digest)
            if held is None:
                raise
            return held

    # -- cleaning --------------------------------------------------------------------------------

    def tidy(self, held: HeldTree) -> Iterator[None]:
        """Fill the stock, in steps, from a tree, as far as there is room; remove what is old."""
        yield from self.stock.fill(held, names_of(held.manifest))
        texts = [manifest_text(f"{self.folder}/{name}") for name in self.jobs()[:NEWEST]]
        self.stock.drop({name for text in texts if text for name in names_of(manifest.read(text))})
        yield from self.clean()

    def clean(self) -> Iterator[None]:
        """Remove, in steps, what killed agents have left, and old trees in which nothing was added or changed."""
        for name in os.listdir(self.folder):
            if name.endswith(TEMPORARY):
                yield from self._remove_temporary(name)
        for place, name in enumerate(self.jobs()):
            old = (place >= NEWEST or name.endswith(_OLD)) and not os.path.exists(f"{self.folder}/{name}/{CHANGED}")
            held = self.hold(name, fcntl.LOCK_EX) if old else None
            if held is not None:
                try:
                    yield from _remove_unchanged(held)
                except OSError:
                    pass
                finally:
                    held.release()

    def _remove_temporary(self, name: str) -> Iterator[None]:
        lock, path = self._locked(name, fcntl.LOCK_EX), f"{self.folder}/{name}"
        try:
            if lock < 0 and (os.path.exists(f"{path}/{LOCK}") or os.stat(path).st_mtime > time.time() - _ABANDONED):
                return
            if os.path.isdir(path):
                yield from inside.remove(self.folder, name)
            else:
                drafts.remove(path)
        except OSError:
            pass
        finally:
            if lock >= 0:
                os.close(lock)


def _remove_unchanged(held: HeldTree) -> Iterator[None]:
    """Remove, in steps, a job's tree in which nothing was added or changed. Else a file says so from then on."""
    known = yield from held.known()
    if known is None:
        os.close(os.open(f"{held.folder}/{CHANGED}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        return
    if not held.folder.endswith(_OLD):  # a tree with the name of a job is complete
        os.rename(held.folder, held.folder + _OLD)
        held = held.replace(folder=held.folder + _OLD)
    yield from inside.remove(held.folder, held.manifest.name, known)
    if not os.path.lexists(held.path):  # else the manifest is still needed
        for name in OWN:
            drafts.remove(f"{held.folder}/{name}")
        os.rmdir(held.folder)


def names_of(made_from: Manifest) -> dict[str, Entry]:
    """The files with data by their names in the stock; files of one content have different ones."""
    names: dict[str, Entry] = {}
    count: dict[str, int] = {}
    for entry in made_from.entries:
        if entry.data:
            content = entry.content
            if entry.parts or not content.isalnum():  # a digest leaves out the holes; another text may be no file name
                content = hashlib.sha256(repr((content, entry.size, entry.parts)).encode()).hexdigest()
            count[content] = count.get(content, 0) + 1
            names[f"{content}-{count[content]}"] = entry
    return names


def manifest_text(folder: str) -> bytes:
    """The manifest in the folder of a tree; b"": there is none."""
    try:
        with open(open_regular(f"{folder}/{MANIFEST}", os.O_NOFOLLOW), "rb") as file:
            return file.read()
    except OSError:
        return b""


def _mark() -> int:
    """The time that files of the stock get, in nanoseconds; 0: there is none.

    It names the time since this machine was booted, because a crash can leave a file without its data.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return (10**9 + int(file.read(7), 16)) * 10**9  # after 2001: some file systems know no time before 1980
    except (OSError, ValueError):
        return 0


def take_lock(fd: int, kind: int) -> bool | None:
    """Lock a file; return whether that was possible; ``None``: there are no locks here."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in (errno.EWOULDBLOCK, errno.EACCES) else None
    return True
