"""The trees on a node (``--ship``): complete or absent, and kept while somebody uses them, or has left something there.

Each job has a tree of its own, by its id, for all nodes that share the folder and for all its attempts and epochs. It
is made in a folder with a temporary name, which gets its name when nothing is missing. ``.lock`` there is locked:
exclusively while the tree is made or removed, otherwise shared by the agents and guardians of the job that runs in it.
The kernel unlocks it when they die, by whatever signal. So what can be locked exclusively belongs to nobody.

Beside the trees are spare trees, in which nobody works: the next tree of that name is made of one. A file there has a
time that no other file has, and whoever writes to it changes that. What is missing there is copied from an older tree,
and compared while it is copied. So all files of a tree are its own.
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
    from collections.abc import Callable, Generator, Iterator

    from bireme.ship.inside import Incoming, Stamp
    from bireme.ship.manifest import Entry, Manifest

OWN = LOCK, MANIFEST, CHANGED = ".lock", ".manifest", ".changed"
"""The files beside the tree in its folder."""
TEMPORARY = ".tmp"
_OLD = ".old"
"""The end of the name of a job's tree that is being removed."""
SPARE = ".spare-"
"""The begin of the names of the folders of spare trees, one for the name of each tree."""
NEWEST = 4
"""Trees of jobs that are kept however many there are, and spare trees."""
_ABANDONED = 3600.0
"""Seconds after which something temporary without a lock belongs to nobody."""
_HINT = "--export XDG_CACHE_HOME=DIR names another place, into which only you can write"


class HeldTree(Value):
    """A complete tree that nobody removes while ``lock`` is open.

    Attributes:
        folder: the path of its folder.
        is_spared: whether there is a spare tree that has the same.
    """

    folder: str
    manifest: Manifest
    lock: int
    is_spared: bool = False

    @property
    def path(self) -> str:
        """The path of the tree itself."""
        return f"{self.folder}/{self.manifest.name}"

    def known(self) -> Generator[None, None, dict[str, Stamp] | None]:
        """The stamps of all files and links inside, in steps; ``None``: something was added or changed.

        Contents are compared, whatever the times say. What was removed does not count, nor does Python's own cache.
        """
        inner = self.manifest.name
        entries = {f"{inner}/{entry.path}": entry for entry in self.manifest.entries}
        folders = {inner, *(f"{inner}/{part}" for entry in entries.values() for part in prefixes(entry.folder))}
        found: dict[str, Stamp] = {}
        top = os.open(self.folder, inside.FOLDER)
        try:
            for item in inside.walk(top, mounts=False):
                yield
                path, _, name, there = item
                entry, cached = entries.get(path), "__pycache__" in path.split("/")[-2:]
                if stat.S_ISDIR(there.st_mode):
                    if not cached and path not in folders:
                        return None
                    continue
                own = path in OWN or (cached and name.endswith(".pyc") and stat.S_ISREG(there.st_mode))
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


class NewTree:
    """A tree in the making. It is removed by :meth:`close` unless it was finished.

    Args:
        mark: the time of its files if it is a spare tree; 0: now.
    """

    def __init__(self, folder: str, made_from: Manifest, mark: int = 0) -> None:
        self.manifest, self.mark = made_from, mark
        self._folder = f"{folder}/{os.urandom(6).hex()}{TEMPORARY}"
        self.missing = {entry.path: entry for entry in made_from.entries if entry.data}
        # The lock comes into the folder locked, so that it never seems to belong to nobody.
        lock = f"{self._folder}.lock{TEMPORARY}"
        self._lock = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        take_lock(self._lock, fcntl.LOCK_EX)
        os.mkdir(self._folder, 0o700)
        os.rename(lock, f"{self._folder}/{LOCK}")
        self.top = self._file = -1
        self.spare: NewTree | None = None
        """A spare tree that is made of the same."""

    @property
    def path(self) -> str:
        """The path of the tree itself, as long as it is in the making."""
        return f"{self._folder}/{self.manifest.name}"

    def begin(self, spare: str) -> Iterator[None]:
        """Make, in steps, the folders, and what has no data. Take what is right of a spare tree, if there is one."""
        own = f"{self._folder}/{SPARE}"
        try:
            os.rename(spare, own)
            kept = yield from self._clean(own)
            os.rename(f"{own}/{self.manifest.name}", self.path)
        except (OSError, ManifestError):  # there is none, or another tree was faster, or it cannot be cleaned
            os.mkdir(self.path)
            kept = []
        for path in kept:
            del self.missing[path]
        self.top = os.open(self.path, inside.FOLDER)
        yield from inside.remove(self._folder, SPARE)
        made = set()
        for entry in self.manifest.entries:
            yield
            if entry.folder not in made:
                os.makedirs(f"{self.path}/{entry.folder}", exist_ok=True)
                made.add(entry.folder)
            if entry.kind != "folder" and not entry.data:
                self._open(entry)
                self._close(entry)

    def _clean(self, spare: str) -> Generator[None, None, list[str]]:
        """Leave, in steps, the files that are as they were made, and as they are to be here; return their paths."""
        text = manifest_text(spare)
        known = self.manifest if text == self.manifest.text else manifest.read(text)
        folders = {part for entry in self.manifest.entries for part in prefixes(entry.folder)}
        mark, entries, kept = _mark(), {entry.path: entry for entry in known.entries}, []
        top = os.open(f"{spare}/{self.manifest.name}", inside.FOLDER)
        try:
            for path, holder, name, there in inside.walk(top, mounts=False):
                yield
                entry = self.missing.get(path)
                if stat.S_ISDIR(there.st_mode):
                    if path not in folders:
                        os.rmdir(name, dir_fd=holder)
                elif entry and entry == entries.get(path) and _is_as_made(there, entry, mark):
                    if not self.mark:
                        os.utime(name, dir_fd=holder)
                    kept.append(path)
                else:
                    os.unlink(name, dir_fd=holder)
        finally:
            os.close(top)
        return kept

    def copy(self, source: HeldTree) -> Iterator[None]:
        """Copy, in steps, what is missing from a tree that has it."""
        there = {_content(entry): entry.path for entry in source.manifest.entries if entry.data}
        try:
            top = os.open(source.path, inside.FOLDER)
        except OSError:  # ranks have removed it
            return
        try:
            for entry in [*self.missing.values()]:
                yield
                try:
                    fd = inside.open_file(top, there[_content(entry)])
                except (OSError, KeyError):
                    continue
                right = False
                try:
                    self._open(entry)
                    right = yield from inside.copy(fd, self._file, entry)
                finally:
                    os.close(fd)
                    self._close(entry, right=right)
        finally:
            os.close(top)

    def receive(self, entry: Entry, incoming: Incoming) -> Generator[None, None, bool]:
        """Write a file as it comes, and to the spare tree, as nobody can change it yet; return whether it is right."""
        right = False
        self._both(lambda tree: tree._open(entry))
        try:
            right = yield from incoming.data_of(
                entry, lambda data, at: self._both(lambda tree: inside.write(tree._file, data, at))
            )
        finally:
            self._both(lambda tree: tree._close(entry, right=right))
        return right

    def _both(self, action: Callable[[NewTree], None]) -> None:
        """Do this to this tree and to the spare one, as long as there is room for both."""
        try:
            action(self)
        except OSError:
            if self.spare is None:
                raise
            self.drop_spare()
            action(self)
        if self.spare is not None:
            try:
                action(self.spare)
            except OSError:
                self.drop_spare()

    def _open(self, entry: Entry) -> None:
        """Create a file or link."""
        self._file = inside.create(self.top, entry.path, entry)

    def _close(self, entry: Entry, *, right: bool = True) -> None:
        """Give a file its permissions and its time, if it has all its data; else remove it."""
        if self._file >= 0 and right:
            os.fchmod(self._file, entry.mode)
            if self.mark:
                os.utime(self._file, ns=(self.mark, self.mark))
        self._end_file()
        if right:
            self.missing.pop(entry.path, None)
        else:
            os.unlink(entry.path, dir_fd=self.top)

    def _end_file(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def drop_spare(self) -> None:
        """Do without a spare tree."""
        if self.spare is not None:
            self.spare.close()
            self.spare = None

    def finish(self, name: str) -> HeldTree:
        """Make the tree complete: give its folder this name."""
        with open(f"{self._folder}/{MANIFEST}", "xb") as file:
            file.write(self.manifest.text)
        os.rename(self._folder, name)
        for _ in range(100):  # after the rename: who gets the lock in between finds no folder of the temporary name
            if take_lock(self._lock, fcntl.LOCK_SH) is not False:
                break
            time.sleep(0.001)
        lock, self._lock = self._lock, -1
        os.close(self.top)
        return HeldTree(name, self.manifest, lock)

    def close(self) -> None:
        """Remove what was made, unless it is finished."""
        self.drop_spare()
        if self._lock >= 0:
            self._end_file()
            if self.top >= 0:
                os.close(self.top)
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

    def turn(self, job: str) -> tuple[int, str]:
        """A file whose lock says whose turn it is to make the tree of a job, because agents may share this folder.

        The lock only saves work. Who makes a tree nevertheless, as where there are no locks, takes that of another one
        that was faster.
        """
        path = f"{self.folder}/.{job}{TEMPORARY}"
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), path

    def jobs(self) -> list[str]:
        """The names of the trees of jobs, the last used first."""
        return self._newest(lambda name: name[0] != "." and not name.endswith(TEMPORARY), LOCK)

    def _newest(self, fits: Callable[[str], bool], inner: str = "") -> list[str]:
        """The names that fit, the newest first, by the time of what is inside."""

        def used(name: str) -> float:
            try:
                return os.stat(f"{self.folder}/{name}/{inner}").st_mtime
            except OSError:
                return 0.0

        return sorted(filter(fits, os.listdir(self.folder)), key=used, reverse=True)

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
        """Begin a tree, in steps, with what is here already: a spare tree, and copies of what the newest trees have."""
        yield from new.begin(self._spare(new.manifest))
        for name in self.jobs()[:NEWEST]:
            held = self.hold(name) if new.missing else None
            if held is not None:
                try:
                    yield from new.copy(held)
                finally:
                    held.release()

    def finish(self, new: NewTree, job: str) -> HeldTree:
        """Make a tree complete; it becomes that of the job, unless another agent was faster."""
        is_spared = new.spare is not None and not new.spare.missing
        if new.spare is not None:
            self._put_spare(new.spare)
        try:
            return new.finish(f"{self.folder}/{job}").replace(is_spared=is_spared)
        except OSError:
            held = self.hold(job, digest=new.manifest.digest)
            if held is None:
                raise
            return held

    # -- spare trees -----------------------------------------------------------------------------

    def _spare(self, made_from: Manifest) -> str:
        """The path of the spare tree for trees of this name."""
        return f"{self.folder}/{SPARE}{hashlib.sha256(os.fsencode(made_from.name)).hexdigest()[:16]}"

    def _new_spare(self, made_from: Manifest) -> NewTree | None:
        """A spare tree in the making; ``None``: there can be none."""
        mark = _mark()
        return NewTree(self.folder, made_from, mark) if mark else None

    def add_spare(self, new: NewTree) -> Iterator[None]:
        """Begin, in steps, a spare tree that gets what a new tree gets."""
        try:
            new.spare = self._new_spare(new.manifest)
            if new.spare is not None:
                yield from new.spare.begin("")
        except OSError:
            new.drop_spare()

    def _put_spare(self, spare: NewTree) -> None:
        """Leave a spare tree to the next job, unless another agent was faster. It may lack files."""
        try:
            spare.finish(self._spare(spare.manifest)).release()
        except OSError:
            spare.close()

    def tidy(self, held: HeldTree) -> Iterator[None]:
        """Copy, in steps, what the spare tree lacks, as far as there is room; remove what is old."""
        spare = None if held.is_spared else self._new_spare(held.manifest)
        if spare is not None:
            try:
                yield from spare.begin(self._spare(held.manifest))
                yield from spare.copy(held)
                self._put_spare(spare)
            finally:
                spare.close()
        for name in self._newest(lambda name: name.startswith(SPARE), LOCK)[NEWEST:]:
            old = f"{os.urandom(6).hex()}{TEMPORARY}"  # so that nobody takes it meanwhile
            os.rename(f"{self.folder}/{name}", f"{self.folder}/{old}")
            yield from inside.remove(self.folder, old)
        yield from self.clean()

    # -- cleaning --------------------------------------------------------------------------------

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
    inner = f"{held.manifest.name}/"
    below = {path.removeprefix(inner): stamp for path, stamp in known.items() if path.startswith(inner)}
    yield from inside.remove(held.folder, held.manifest.name, below)
    if not os.path.lexists(held.path):  # else the manifest is still needed
        yield from inside.remove(*os.path.split(held.folder), known)


def _content(entry: Entry) -> tuple[object, ...]:
    return entry.content, entry.size, entry.parts


def manifest_text(folder: str) -> bytes:
    """The manifest in the folder of a tree; b"": there is none."""
    try:
        with open(open_regular(f"{folder}/{MANIFEST}", os.O_NOFOLLOW), "rb") as file:
            return file.read()
    except OSError:
        return b""


def _is_as_made(there: os.stat_result, entry: Entry, mark: int) -> bool:
    """Whether nobody has changed a file of a spare tree."""
    expected = (stat.S_IFREG | entry.mode, entry.size, mark or -1)
    return (there.st_mode, there.st_size, there.st_mtime_ns) == expected


def _mark() -> int:
    """The time that files of spare trees get, in nanoseconds; 0: there is none.

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
