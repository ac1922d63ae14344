"""The trees on a node (``--ship``): complete or absent, and kept while somebody uses them, or has left something there.

Each job has a tree of its own, by its id, for all nodes that share the folder and for all its attempts and epochs. It
is made in ``JOB.tmp``, which is renamed to ``JOB`` when nothing is missing. Its ``.lock`` is locked, shared, by the
agent that makes it, then by the agents and guardians of the job that runs in it. The kernel unlocks it when they die,
by whatever signal. So what can be locked exclusively belongs to nobody.

Beside the trees is the stock: files in which nobody works, by their content. A new tree takes its files from there, so
they are its own. What the stock lacks is copied from an older tree, and compared, or comes from the runner.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat

from bireme import drafts
from bireme.regular_file import read_regular, text_of
from bireme.resources.ownership import make_owned
from bireme.ship import inside, manifest
from bireme.ship.inside import Descriptor, stamp_of
from bireme.ship.manifest import ManifestError, prefixes
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Generator, Iterator
    from typing import NoReturn, ParamSpec, TypeVar

    from bireme.ship.inside import Incoming, Stamp
    from bireme.ship.manifest import Entry, Manifest

    _T = TypeVar("_T")
    _P = ParamSpec("_P")

OWN = LOCK, MANIFEST, CHANGED = ".lock", ".manifest", ".changed"
"""The files beside the tree in its folder."""
TEMPORARY = ".tmp"
_OLD = ".old"
"""The end of the name of a job's tree that is being removed."""
STOCK = ".stock"
NEWEST = 4
"""Trees of jobs that are kept however many there are, and from which others are made."""
_LARGEST = 1 << 32
"""Bytes of the largest manifest."""
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

        def refuse(_: str, error: OSError) -> NoReturn:
            raise error

        try:
            if not {*os.listdir(self.folder)} <= {*OWN, self.manifest.name}:
                return None
            if not os.path.lexists(self.path):
                return found
            with Descriptor(os.open(self.path, inside.FOLDER)) as top:
                if inside.mount_of(top) != inside.mount_of(self.lock):
                    return None
                for item in inside.walk(top, on_error=refuse, mounts=False):
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
        return found


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
        drafts.remove(name, self._folder)  # it was changed, or a killed agent has not completed it
        try:
            with Descriptor(inside.create(self._folder, name, entry)) as fd:
                yield from inside.copy(source, fd, entry)
                if is_sure or (yield from inside.digest_of(fd, entry)) == entry.content:
                    os.utime(fd, ns=(self._mark, self._mark))  # only now: else it is not complete
        except FileExistsError:  # another agent puts it there
            pass
        except OSError:
            self.drop()

    def fill(self, held: HeldTree, wanted: Container[str]) -> Iterator[None]:
        """Copy, in steps, what is wanted and missing here, from a tree that may have it."""
        for name, entry in names_of(held.manifest).items():
            yield
            if name in wanted and not self._has(name, entry):
                try:
                    with Descriptor(os.open(held.path, inside.FOLDER)) as top, inside.open_file(top, entry.path) as fd:
                        yield from self.put(name, fd, entry, is_sure=False)
                except OSError:  # ranks have removed it
                    pass

    def give_way(self, action: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Do this; without the stock, if there is no room for both."""
        try:
            return action(*args, **kwargs)
        except OSError:
            if not self.drop():
                raise
            return action(*args, **kwargs)

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
        lock: a descriptor of the lock in its folder.
        missing: the files with data that are still to come, by their names in the stock.
    """

    manifest: Manifest
    missing: dict[str, Entry]

    def __init__(self, trees: Trees, name: str) -> None:
        self._trees, self._stock, self._folder, self._top = trees, trees.stock, f"{trees.folder}/{name}", -1
        self._stock.give_way(os.mkdir, self._folder, 0o700)
        os.close(self._stock.give_way(os.open, f"{self._folder}/{LOCK}", os.O_WRONLY | os.O_CREAT, 0o600))
        self.lock = trees.locked(name, fcntl.LOCK_SH)

    def rename(self, name: str) -> None:
        """Rename its folder, unless there is one of this name."""
        folder = f"{self._trees.folder}/{name}"
        os.rename(self._folder, folder)
        self._folder = folder

    def begin(self, made_from: Manifest) -> Iterator[None]:
        """Make, in steps, the folders, and what has no data; take what is here, in the stock or in the newest trees."""
        self.manifest, self.missing = made_from, names_of(made_from)
        path, do = f"{self._folder}/{made_from.name}", self._stock.give_way
        do(os.mkdir, path)
        self._top = os.open(path, inside.FOLDER)
        do(drafts.write, f"{self._folder}/{MANIFEST}", made_from.text, mode=0o600)
        made = set[str]()
        for entry in made_from.entries:
            yield
            if entry.folder not in made:
                do(os.makedirs, f"{path}/{entry.folder}", exist_ok=True)
                made.add(entry.folder)
            if entry.kind != "folder" and not entry.data:
                fd = do(inside.create, self._top, entry.path, entry)
                if fd >= 0:
                    os.close(fd)
        yield from self._take()
        for name in self._trees.jobs()[:NEWEST]:
            if self.missing and (held := self._trees.hold(name)) is not None:
                with Descriptor(held.lock):
                    yield from self._stock.fill(held, self.missing)
                yield from self._take()

    def _take(self) -> Iterator[None]:
        """Take, in steps, from the stock what it has."""
        for name, entry in [*self.missing.items()]:
            yield
            if self._stock.take(name, self._top, entry):
                del self.missing[name]

    def receive(self, name: str, incoming: Incoming) -> Generator[float | None, None, bool]:
        """Write a missing file as it comes, and put it into the stock; return whether it is right."""
        entry, do = self.missing[name], self._stock.give_way
        with Descriptor(do(inside.create, self._top, entry.path, entry)) as fd:
            right = yield from incoming.data_of(entry, lambda *data: do(inside.write, fd, *data))
            if right:  # and nobody can change it yet
                yield from self._stock.put(name, fd, entry, is_sure=True)
        return right

    def finish(self, job: str) -> HeldTree:
        """Make the tree complete; it becomes that of the job, unless another agent was faster."""
        try:
            self.rename(job)
        except OSError:
            if (held := self._trees.hold(job, digest=self.manifest.digest)) is None:
                raise
            return held
        lock, self.lock = self.lock, -1
        os.close(self._top)
        return HeldTree(self._folder, self.manifest, lock)

    def close(self) -> None:
        """Remove what was made, unless it is finished."""
        if self.lock >= 0:
            for _ in _remove(self._folder):
                pass
            for fd in {self._top, self.lock} - {-1}:
                os.close(fd)
            self.lock = -1


class Trees:
    """All trees of one user on this node, in Bireme's folder of the user's cache."""

    def __init__(self, cache: str) -> None:
        self.folder = os.path.join(cache, "ship")
        make_owned(self.folder, hint=_HINT)
        if os.stat(self.folder).st_mode & 0o077:
            os.chmod(self.folder, 0o700)
        self.stock = Stock(self.folder)

    def new(self, job: str, *, alone: bool) -> Generator[None, None, NewTree | None]:
        """Begin the tree of a job; ``None``: another agent makes it, because agents may share this folder.

        Args:
            alone: make it nevertheless. Who is slower takes what the other one has made.
        """
        draft = job + TEMPORARY
        if not alone and os.path.exists(f"{self.folder}/{draft}/{LOCK}"):
            yield from self._remove_temporary(draft)  # if that agent is dead
            return None
        new = NewTree(self, os.urandom(6).hex() + TEMPORARY)
        try:
            if new.lock >= 0 and not alone:
                new.rename(draft)
        except OSError:
            new.close()
        return new if new.lock >= 0 else None

    def jobs(self) -> list[str]:
        """The names of the trees of jobs, the last used first."""

        def used(name: str) -> float:
            try:
                return os.stat(f"{self.folder}/{name}/{LOCK}").st_mtime
            except OSError:
                return 0.0

        names = (name for name in os.listdir(self.folder) if name[0] != "." and not name.endswith(TEMPORARY))
        return sorted(names, key=used, reverse=True)

    def locked(self, name: str, kind: int) -> int:
        """A descriptor of a folder's lock, locked in this way; -1: it cannot be.

        Where there are no locks, all may read and nobody may remove.
        """
        path = f"{self.folder}/{name}/{LOCK}"
        try:
            fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return -1
        try:
            try:
                fcntl.flock(fd, kind | fcntl.LOCK_NB)
            except OSError as error:
                if kind != fcntl.LOCK_SH or error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                    raise
            if os.path.samestat(os.fstat(fd), os.stat(path)):
                return fd
        except OSError:  # somebody has locked it, or renamed it meanwhile
            pass
        os.close(fd)
        return -1

    def hold(self, name: str, kind: int = fcntl.LOCK_SH, digest: str = "") -> HeldTree | None:
        """Hold a complete tree; ``None``: there is none, or it is about to be removed, damaged or another."""
        lock = self.locked(name, kind)
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

    # -- cleaning --------------------------------------------------------------------------------

    def tidy(self, held: HeldTree) -> Generator[None, None, None]:
        """Fill the stock, in steps, from a tree, as far as there is room; remove what is old."""
        try:
            yield from self.stock.fill(held, names_of(held.manifest))
            texts = [manifest_text(f"{self.folder}/{name}") for name in self.jobs()[:NEWEST]]
            self.stock.drop({name for text in texts if text for name in names_of(manifest.read(text))})
            yield from self.clean()
        except (OSError, ManifestError):
            pass

    def clean(self) -> Iterator[None]:
        """Remove, in steps, what killed agents have left, and old trees in which nothing was added or changed."""
        for name in os.listdir(self.folder):
            if name.endswith(TEMPORARY):
                yield from self._remove_temporary(name)
        for place, name in enumerate(self.jobs()):
            old = (place >= NEWEST or name.endswith(_OLD)) and not os.path.exists(f"{self.folder}/{name}/{CHANGED}")
            if old and (held := self.hold(name, fcntl.LOCK_EX)) is not None:
                with Descriptor(held.lock):
                    yield from _remove_unchanged(held)

    def _remove_temporary(self, name: str) -> Iterator[None]:
        """Remove, in steps, a tree in the making whose agent is dead."""
        if (lock := self.locked(name, fcntl.LOCK_EX)) >= 0:
            with Descriptor(lock):
                yield from _remove(f"{self.folder}/{name}")


def _remove(folder: str) -> Iterator[None]:
    """Remove, in steps, a tree in the making; its lock last."""
    try:
        with Descriptor(os.open(folder, inside.FOLDER)) as top:
            for name in sorted(os.listdir(top), key=LOCK.__eq__):
                yield from inside.remove(top, name)
                drafts.remove(name, top)
        os.rmdir(folder)
    except OSError:
        pass


def _remove_unchanged(held: HeldTree) -> Iterator[None]:
    """Remove, in steps, a job's tree in which nothing was added or changed. Else a file says so from then on."""
    known = yield from held.known()
    try:
        with Descriptor(os.open(held.folder, inside.FOLDER)) as top:
            if known is None:
                os.close(os.open(CHANGED, os.O_WRONLY | os.O_CREAT, 0o600, dir_fd=top))
                return
            folder = held.folder.removesuffix(_OLD) + _OLD
            os.rename(held.folder, folder)  # a tree with the name of a job is complete
            yield from inside.remove(top, held.manifest.name, known)
            if held.manifest.name not in os.listdir(top):  # else the manifest is still needed
                for name in OWN:
                    drafts.remove(name, top)
                os.rmdir(folder)
    except OSError:
        pass


def names_of(made_from: Manifest) -> dict[str, Entry]:
    """The files with data by their names in the stock; files of one content have different ones."""
    names: dict[str, Entry] = {}
    count: dict[str, int] = {}
    for entry in made_from.entries:
        if entry.data:
            count[entry.content] = count.get(entry.content, 0) + 1
            names[f"{entry.content}-{count[entry.content]}"] = entry
    return names


def manifest_text(folder: str) -> bytes:
    """The manifest in the folder of a tree; b"": there is none."""
    try:
        return read_regular(f"{folder}/{MANIFEST}", os.O_NOFOLLOW, _LARGEST)
    except OSError:
        return b""


def _mark() -> int:
    """The time that files of the stock get, in nanoseconds; 0: there is none.

    It names the time since this machine was booted, because a crash can leave a file without its data.
    """
    boot = text_of("/proc/sys/kernel/random/boot_id")[:7]
    return (10**9 + int(boot, 16)) * 10**9 if boot else 0  # after 2001: some file systems know no time before 1980
