"""The copies of trees on a node (``--ship``): each is complete or absent, and is kept while somebody uses it.

``.lock`` in the folder of a copy is locked: exclusively while the copy is made or removed, otherwise shared by the
agents and guardians of the jobs that run in it. The kernel unlocks it when they die, by whatever signal. So what can be
locked exclusively belongs to nobody.
"""

from __future__ import annotations

import fcntl
import json
import os
import time

from bireme import drafts
from bireme.ship import manifest
from bireme.ship.manifest import ManifestError
from bireme.ship.tree import (
    JOBS,
    LOCK,
    MANIFEST,
    OWN,
    STAMPS,
    TEMPORARY,
    WRITTEN_TO,
    HeldTree,
    removal,
    take_lock,
    write_all,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

_IDENTITY = ".identity"
NEWEST = 4
"""Copies that are kept however many there are."""
_KEPT = 30 * 86400.0
"""Seconds for which a copy is kept after its last use if ranks have written to it: they may want that back."""
_ABANDONED = 3600.0
"""Seconds after which a temporary folder without a lock belongs to nobody."""


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
        names = filter(_is_of_a_copy, os.listdir(self.folder))
        used = {name: self._used(name) for name in names}
        return sorted(used, key=lambda name: used[name], reverse=True)

    def _used(self, name: str) -> float:
        try:
            return os.stat(f"{self.folder}/{name}/{LOCK}").st_mtime
        except OSError:
            return 0.0

    def hold(self, name: str) -> HeldTree | None:
        """Hold a copy; ``None``: it is about to be removed, or damaged."""
        lock = self._locked(name, fcntl.LOCK_SH)
        if lock < 0:
            return None
        try:
            with open(f"{self.folder}/{name}/{MANIFEST}", "rb") as file:
                made_from = manifest.read(file.read())
            with open(f"{self.folder}/{name}/{STAMPS}", "rb") as file:
                stamps = tuple(map(tuple, json.load(file)))
            if made_from.digest.startswith(name.partition(".")[0]) and len(stamps) == len(made_from.entries):
                return HeldTree(f"{self.folder}/{name}/{made_from.name}", made_from, stamps, lock)
        except (OSError, ValueError, TypeError, ManifestError):
            pass
        os.close(lock)
        return None

    def find(self, digest: str, job: str = "") -> Generator[None, None, HeldTree | None]:
        """Find, in steps, a copy of this tree: that in which this job has run already, or one that is as it was made.

        Args:
            digest: the SHA-256 of the tree's manifest.
            job: the id of a job that is started several times; "": it is not.
        """
        names = [name for name in self.names() if name.startswith(f"{digest[:32]}.")]
        own = [name for name in names if job and self._has_job(name, job)]
        for name in (*own, *names):
            held = self.hold(name)
            if held is None:
                continue
            if held.manifest.digest == digest and (name in own or (yield from held.is_whole())):
                os.utime(held.lock)
                held.note(job)
                return held
            held.release()
        return None

    def _has_job(self, name: str, job: str) -> bool:
        try:
            with open(f"{self.folder}/{name}/{JOBS}", encoding="ascii") as file:
                return job in file.read().split("\n")
        except (OSError, ValueError):
            return False

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

    def remove_temporary(self) -> Iterator[None]:
        """Remove, in steps, temporary folders that belong to nobody: a killed agent has left them."""
        for name in os.listdir(self.folder):
            if name.endswith(TEMPORARY) and (name.startswith(".") or _is_of_a_copy(name[: -len(TEMPORARY)])):
                yield from self._remove(name, time.time())

    def remove_old(self) -> Iterator[None]:
        """Remove, in steps, old copies that nobody uses, as far as that is possible."""
        now = time.time()
        for place, name in enumerate(self.names()):
            age = now - self._used(name)
            try:
                if age > _KEPT or (place >= NEWEST and not (yield from self._is_written_to(name))):
                    yield from self._remove(name, now)
            except OSError:
                pass

    def _is_written_to(self, name: str) -> Generator[None, None, bool]:
        """Whether ranks have left anything in a copy but Python's own cache. If so, a file says so the next time."""
        sign = f"{self.folder}/{name}/{WRITTEN_TO}"
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
        if lock < 0 and (os.path.exists(f"{path}/{LOCK}") or not _is_older(path, now - _ABANDONED)):
            return
        try:
            if not name.endswith(TEMPORARY):
                os.rename(path, path + TEMPORARY)
                path += TEMPORARY
            yield from removal(path)
        finally:
            if lock >= 0:
                os.close(lock)


def _is_of_a_copy(name: str) -> bool:
    """Whether a folder with this name is a copy. A rank may have left something beside them."""
    digest, _, rest = name.partition(".")
    return len(digest) == 32 and len(rest) == 8


def _has_more(held: HeldTree) -> Generator[None, None, bool]:
    """Whether a copy, or the folder around it, holds files that were not sent, besides Python's own cache."""
    around, name = os.path.split(held.path)
    known = {*OWN, *(f"{name}/{entry.path}" for entry in held.manifest.entries)}
    for folder, folders, files in os.walk(around):
        yield
        folders[:] = [each for each in folders if each != "__pycache__"]
        below = folder[len(around) + 1 :]
        if any((f"{below}/{each}" if below else each) not in known for each in files):
            return True
    return False


def _is_older(path: str, when: float) -> bool:
    try:
        return os.stat(path).st_mtime < when
    except OSError:
        return False
