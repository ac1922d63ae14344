"""The trees on a node (``--ship``): complete or absent, and kept while somebody uses them, or has left something there.

Each job has a tree of its own, by its id, for all nodes that share the folder and for all its attempts and epochs.
Beside them are spare trees, in which nobody has run: the next job gets one at once.

``.lock`` in the folder of a tree is locked: exclusively while the tree is made or removed, otherwise shared by the
agents and guardians of the job that runs in it. The kernel unlocks it when they die, by whatever signal. So what can be
locked exclusively belongs to nobody.
"""

from __future__ import annotations

import fcntl
import os
import time

from bireme import drafts
from bireme.resources.owned_folder import make_owned
from bireme.ship import inside
from bireme.ship.tree import CHANGED, LOCK, TEMPORARY, HeldTree, NewTree, read_manifest, take_lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from bireme.ship.manifest import Manifest

_IDENTITY = ".identity"
_SPARE = "spare."
_OLD = ".old"
"""The end of the name of a job's tree that is being removed."""
NEWEST = 4
"""Trees of jobs that are kept however many there are."""
_SPARES = 4
_ABANDONED = 3600.0
"""Seconds after which a temporary folder without a lock belongs to nobody."""
_HINT = "--export XDG_CACHE_HOME=DIR names another place, into which only you can write"


class TreeStore:
    """All trees of one user on this node.

    Args:
        cache: Bireme's folder in the user's cache.

    Raises:
        BadInputError: others can change or replace it.
        OSError: it cannot be created.
    """

    def __init__(self, cache: str) -> None:
        self.folder = os.path.join(cache, "ship")
        make_owned(self.folder, hint=_HINT)
        if os.stat(self.folder).st_mode & 0o077:
            os.chmod(self.folder, 0o700)

    def identity(self) -> str:
        """A name of this folder, the same on every node that has it; "" where it cannot be kept."""
        path = f"{self.folder}/{_IDENTITY}"
        try:
            if not os.path.lexists(path):
                os.symlink(os.urandom(16).hex(), path)
        except OSError:  # another agent was faster, or there are no links
            pass
        return os.readlink(path) if os.path.islink(path) else ""

    def place(self, job: str) -> str:
        """The path of the folder of a job's tree."""
        return f"{self.folder}/{job}"

    def jobs(self) -> list[str]:
        """The names of the trees of jobs, the last used first."""
        return [name for name in self._by_use() if name[0] != "." and not name.startswith(_SPARE)]

    def spares(self) -> list[str]:
        """The names of the spare trees, the newest first."""
        return [name for name in self._by_use() if name.startswith(_SPARE)]

    def _by_use(self) -> list[str]:
        names = {name: self._used(name) for name in os.listdir(self.folder) if not name.endswith(TEMPORARY)}
        return sorted(names, key=names.__getitem__, reverse=True)

    def _used(self, name: str) -> float:
        try:
            return os.stat(f"{self.folder}/{name}/{LOCK}").st_mtime
        except OSError:
            return 0.0

    def hold(self, name: str) -> HeldTree | None:
        """Hold a complete tree; ``None``: there is none, or it is about to be removed, or damaged."""
        lock = self._locked(name, fcntl.LOCK_SH)
        if lock < 0:
            return None
        made_from = read_manifest(f"{self.folder}/{name}")
        if made_from is not None:
            return HeldTree(f"{self.folder}/{name}", made_from, lock)
        os.close(lock)
        return None

    def find(self, digest: str, job: str) -> Generator[None, None, HeldTree | None]:
        """Find, in steps, the tree of a job, or give it a spare one that is the same.

        Args:
            digest: the SHA-256 of the tree's manifest.
            job: the id of the job.
        """
        held = self.hold(job)
        if held is not None and held.manifest.digest == digest:
            return held
        if held is not None:
            held.release()
        held = yield from self._spare(lambda there: there.digest == digest)
        if held is None:
            return None
        try:
            os.utime(held.lock)
            return held.rename(self.place(job))
        except OSError:  # another agent was faster
            held.release()
            return self.hold(job)

    def _spare(self, fits: Callable[[Manifest], bool]) -> Generator[None, None, HeldTree | None]:
        """Hold, in steps, an untouched spare tree."""
        for held in map(self.hold, self.spares()):
            if held is not None:
                if fits(held.manifest) and (yield from held.is_untouched()):
                    return held
                held.release()
        return None

    def finish(self, new: NewTree, job: str) -> HeldTree:
        """Make a tree complete; it becomes that of the job, unless another agent was faster.

        Raises:
            OSError: that is not possible.
        """
        try:
            return new.finish(self.place(job))
        except OSError:
            held = self.hold(job)
            if held is None or held.manifest.digest != new.manifest.digest:
                raise
            new.close()
            return held

    def base(self, wanted: Manifest) -> Generator[None, None, NewTree]:
        """Begin a tree, in steps: with the files of a spare one of the same name, if there is one."""
        held = yield from self._spare(lambda there: there.name == wanted.name)
        try:
            return NewTree(self.folder, wanted, held)
        except OSError:
            if held is None:
                raise
            held.release()  # another agent was faster
            return NewTree(self.folder, wanted)

    def fill(self, new: NewTree) -> Iterator[None]:
        """Copy to a new tree, in steps, what the newest ones of the same name have of it."""
        for held in map(self.hold, self.jobs()[:NEWEST]):
            if held is not None:
                if held.manifest.name == new.manifest.name:
                    yield from new.copy_from(held)
                held.release()

    def has_spare(self, digest: str) -> bool:
        """Whether there is a spare tree for this manifest."""
        found = (read_manifest(f"{self.folder}/{name}") for name in self.spares())
        return any(each is not None and each.digest == digest for each in found)

    def keep_spare(self, new: NewTree) -> Iterator[None]:
        """Make a spare tree complete, and remove, in steps, those that it replaces."""
        new.finish(f"{self.folder}/{_SPARE}{os.urandom(6).hex()}", spare=True).release()
        for place, name in enumerate(self.spares()):
            other = read_manifest(f"{self.folder}/{name}") if 0 < place < _SPARES else None
            if place and (other is None or other.name == new.manifest.name):
                yield from self._remove(name)

    def remove_temporary(self) -> Iterator[None]:
        """Remove, in steps, temporary folders that belong to nobody: a killed agent has left them."""
        for name in os.listdir(self.folder):
            if name.endswith(TEMPORARY):
                yield from self._remove(name)

    def remove_old(self) -> Iterator[None]:
        """Remove, in steps, old trees that nobody uses and in which ranks have neither added nor changed anything."""
        for place, name in enumerate(self.jobs()):
            if place < NEWEST and not name.endswith(_OLD):
                continue
            lock = self._locked(name, fcntl.LOCK_EX)
            if lock < 0:
                continue
            try:
                made_from = read_manifest(f"{self.folder}/{name}")
                if made_from is not None and not os.path.exists(f"{self.folder}/{name}/{CHANGED}"):
                    yield from _remove_unchanged(HeldTree(f"{self.folder}/{name}", made_from, lock))
            except OSError:
                pass
            finally:
                os.close(lock)

    def _locked(self, name: str, kind: int) -> int:
        """A descriptor of a folder's lock, locked in this way; -1: it cannot be."""
        path = f"{self.folder}/{name}/{LOCK}"
        try:
            fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return -1
        try:
            if take_lock(fd, kind) and os.path.samestat(os.fstat(fd), os.stat(path)):
                return fd
        except OSError:  # it was renamed meanwhile
            pass
        os.close(fd)
        return -1

    def _remove(self, name: str) -> Iterator[None]:
        """Remove, in steps, a folder in which nobody has run, unless somebody uses it."""
        lock, path = self._locked(name, fcntl.LOCK_EX), f"{self.folder}/{name}"
        if lock < 0 and (os.path.exists(f"{path}/{LOCK}") or not _is_older(path, time.time() - _ABANDONED)):
            return
        try:
            if not os.path.isdir(path):
                drafts.remove(path)
                return
            if not name.endswith(TEMPORARY):
                os.rename(path, path + TEMPORARY)
                name += TEMPORARY
            yield from inside.remove(self.folder, name)
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
        held = held.rename(held.folder + _OLD)
    inner = f"{held.manifest.name}/"
    below = {path.removeprefix(inner): stamp for path, stamp in known.items() if path.startswith(inner)}
    yield from inside.remove(held.folder, held.manifest.name, below)
    if not os.path.lexists(held.path):  # else the manifest is still needed
        yield from inside.remove(*os.path.split(held.folder), known)


def _is_older(path: str, when: float) -> bool:
    try:
        return os.stat(path).st_mtime < when
    except OSError:
        return False
