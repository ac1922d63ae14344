"""The tree that ``--ship`` sends: finds its files, makes its manifest, and reads their contents.

A file that has not changed since the last time is not read for the manifest: its digest is kept in the user's cache.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import subprocess
import time
from itertools import chain

from bireme.errors import BadInputError, BiremeError
from bireme.resources.cache import cache_folder, keep
from bireme.ship import manifest
from bireme.ship.manifest import Entry, Manifest
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import NoReturn

    from bireme.job import JobSpec

WHERE = "--ship"
GIT = "git"
"""The value of the option for what git knows of the working tree, instead of a folder."""
_BLOCK = 1 << 20
_MANY = 16 << 20
"""Bytes from which on threads are worth their start."""
_DIRECT = 1 << 16
"""Bytes from which on the kernel is to send a file without this process reading it."""
_SETTLED = 1_000_000_000
"""Nanoseconds after its last change from which on a file's time stamp would show another change."""


class ChangedError(BiremeError):
    """A file is not what the manifest says any more."""


class SourceTree(Value):
    """A tree on this machine.

    Attributes:
        roots: the path of its folder, and others of the same folder that the user may have typed.
        manifest: what it holds.
        job: the id of a job that is started several times; "": it is not.
    """

    roots: tuple[str, ...]
    manifest: Manifest
    job: str = ""


class Contents:
    """The contents of files of a tree, one after the other.

    Args:
        tree: the tree.
        spans: the first place in its manifest, and the last one plus 1, of each span of files.
    """

    def __init__(self, tree: SourceTree, spans: Sequence[int]) -> None:
        self._root = tree.roots[0]
        places = chain.from_iterable(map(range, spans[::2], spans[1::2]))
        self._entries = (entry for entry in map(tree.manifest.entries.__getitem__, places) if entry.size)
        self._fd, self._entry, self._left = -1, Entry(kind="file", path=""), 0

    def direct(self, most: int) -> tuple[int, int]:
        """What comes next as a descriptor and a number of bytes; 0 bytes for small files, which are read better.

        Raises:
            ChangedError: a file was changed since the manifest was made.
        """
        if not self._left and not self._open_next():
            return -1, 0
        size = min(self._left, most) if self._left >= _DIRECT else 0
        self._left -= size
        return self._fd, size

    def read_into(self, buffer: memoryview) -> int:
        """Fill a buffer with what comes next; return the number of bytes, fewer than it holds only at the end.

        Raises:
            ChangedError: a file was changed since the manifest was made.
        """
        filled = 0
        while filled < len(buffer) and (self._left or self._open_next()):
            read = os.readv(self._fd, [buffer[filled : filled + self._left]])
            filled, self._left = filled + read, self._left - read
            if not read:
                raise self.changed()
        return filled

    def changed(self) -> ChangedError:
        """The error that the file that was read last has changed."""
        return ChangedError(f"{self._path} has changed since the job began", hint="start the job again")

    @property
    def _path(self) -> str:
        return os.path.join(self._root, self._entry.path)

    def _open_next(self) -> bool:
        self.close()
        entry = next(self._entries, None)
        if entry is None:
            return False
        self._entry = entry
        try:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise ChangedError(f"{self._path} has changed since the job began: {error.strerror}") from None
        self._left = entry.size
        return True

    def close(self) -> None:
        """Close the file that was read last."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def find(spec: JobSpec, environ: Mapping[str, str]) -> SourceTree:
    """Find the tree of a job, and what it holds.

    Raises:
        BadInputError: there is none, it is too large, or it cannot be read.
    """
    assert spec.ship is not None
    cwd = os.getcwd()
    root = _top_of_git(environ) if spec.ship == GIT else os.path.realpath(spec.ship)
    if not os.path.isdir(root):
        raise BadInputError(f"not a folder: {spec.ship}", where=WHERE)
    if root != "/" and cwd != root and not cwd.startswith(f"{root}/"):
        hint = f"cd {root}, or name a folder that holds the working directory"
        raise BadInputError(f"the working directory {cwd} is not inside {root}", hint=hint, where=WHERE)
    paths = _paths_of_git(root, environ) if spec.ship == GIT else _paths_below(root)
    found = _lstat_all(root, paths)
    _refuse_large(root, found, spec.ship_limit)
    roots = _names_of(root, cwd, environ.get("PWD", ""))
    made = manifest.make(os.path.basename(root) or "root", _entries(roots, found, environ))
    return SourceTree(roots, made, os.urandom(6).hex() if spec.restarts or spec.elastic else "")


def _names_of(root: str, cwd: str, typed: str) -> tuple[str, ...]:
    """The path of the tree, and the one that the shell shows where it came through a symbolic link."""
    below = cwd[len(root.rstrip("/")) :]
    if typed != cwd and typed.endswith(below) and os.path.isabs(typed):
        alias = typed[: len(typed) - len(below)]
        if alias and os.path.realpath(alias) == root:
            return root, alias
    return (root,)


# -- its files -----------------------------------------------------------------------------------


def _top_of_git(environ: Mapping[str, str]) -> str:
    said = _git(["rev-parse", "--show-toplevel"], None, environ)
    return os.path.realpath(os.fsdecode(said.rstrip(b"\n")))


def _git(words: Sequence[str], folder: str | None, environ: Mapping[str, str]) -> bytes:
    hint = "type --ship=. to send the working directory as it is"
    try:
        done = subprocess.run(
            ["git", *words], cwd=folder, env=dict(environ), stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
    except OSError as error:
        raise BadInputError(f"cannot run git: {error.strerror}", hint=hint, where=WHERE) from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
        if "not a git repository" in said[0]:
            raise BadInputError("the working directory is not in a git repository", hint=hint, where=WHERE)
        raise BadInputError(f"git {words[0]}: {said[0]}", hint=hint, where=WHERE)
    return done.stdout


def _paths_of_git(root: str, environ: Mapping[str, str]) -> Iterator[str]:
    """What git tracks below a folder, and what it neither tracks nor ignores; also in repositories inside it."""
    own = {name: value for name, value in environ.items() if not name.startswith("GIT_")}
    said = _git(["ls-files", "-z", "--cached", "--others", "--exclude-standard"], root, own)
    for path in dict.fromkeys(os.fsdecode(name) for name in said.split(b"\0") if name):
        inner = os.path.join(root, path)
        if os.path.isdir(inner) and not os.path.islink(inner):
            path = path.rstrip("/")
            yield path
            if os.path.exists(os.path.join(inner, ".git")):
                yield from (f"{path}/{below}" for below in _paths_of_git(inner, own))
        else:
            yield path


def _paths_below(root: str) -> Iterator[str]:
    """Everything in a folder but the data of git."""
    for folder, folders, files in os.walk(root, onerror=_refuse_unreadable):
        below = "" if folder == root else f"{os.path.relpath(folder, root)}/"
        folders[:] = [name for name in folders if name != ".git"]
        yield from (f"{below}{name}" for name in (*folders, *files) if name != ".git")


def _refuse_unreadable(error: OSError) -> NoReturn:
    raise BadInputError(f"cannot read {error.filename}: {error.strerror}", where=WHERE)


def _lstat_all(root: str, paths: Iterator[str]) -> dict[str, os.stat_result]:
    """The files, links and folders that exist, without those to which this process writes its own output.

    Git also names files that were removed. One's own output is another at each start, and grows.
    """
    found, own = {}, list(_outputs())
    for path in paths:
        try:
            there = os.lstat(f"{root}/{path}")
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            _refuse_unreadable(error)
        if any(os.path.samestat(there, other) for other in own):
            continue
        if stat.S_ISREG(there.st_mode) or stat.S_ISLNK(there.st_mode) or stat.S_ISDIR(there.st_mode):
            found[path] = there
    return found


def _outputs() -> Iterator[os.stat_result]:
    """The files to which this process writes its output and its messages."""
    for fd in (1, 2):
        try:
            there = os.fstat(fd)
        except OSError:
            continue
        if stat.S_ISREG(there.st_mode):
            yield there


def _refuse_large(root: str, found: Mapping[str, os.stat_result], limit: int) -> None:
    total = sum(there.st_size for there in found.values() if stat.S_ISREG(there.st_mode))
    if total <= limit:
        return
    parts: dict[str, int] = {}
    for path, there in found.items():
        top = path.partition("/")[0]
        parts[top] = parts.get(top, 0) + there.st_size
    largest = max(parts, key=lambda name: parts[name])
    what = f"{root} holds {as_text(total)} in {len(found):,} files, more than the limit of {as_text(limit)}"
    hint = f"the largest part is {largest} ({as_text(parts[largest])}); to send all, add --ship_limit {_enough(total)}"
    raise BadInputError(what, hint=hint, where=WHERE)


def as_text(size: int) -> str:
    """A number of bytes for people."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:.4g} {unit}"
    return f"{size} bytes"


def _enough(size: int) -> str:
    """A round limit that allows this size."""
    mebibytes = -(-size >> 20) if size % (1 << 20) == 0 else (size >> 20) + 1
    return f"{mebibytes}M" if mebibytes < 1024 else f"{-(-mebibytes // 1024)}G"


# -- digests -------------------------------------------------------------------------------------


def _entries(roots: Sequence[str], found: Mapping[str, os.stat_result], environ: Mapping[str, str]) -> Iterator[Entry]:
    """The entries of the manifest; digests come from the cache where the file is as it was."""
    root = roots[0]
    store = os.path.join(cache_folder(environ), "digests", f"{hashlib.sha256(os.fsencode(root)).hexdigest()[:32]}.json")
    known, now = _load(store), time.time_ns()
    files = {path: there for path, there in found.items() if stat.S_ISREG(there.st_mode)}
    stamps = {path: [at.st_size, at.st_mtime_ns, at.st_ctime_ns, at.st_ino] for path, at in files.items()}
    digests = {path: str(known[path][4]) for path in files if path in known and known[path][:4] == stamps[path]}
    fresh = {path: (f"{root}/{path}", stamps[path][0]) for path in files if path not in digests}
    digests.update(zip(fresh, _hashed_all(tuple(fresh.values())), strict=True))
    kept = {
        path: [*stamps[path], digests[path]]
        for path, there in files.items()
        if max(there.st_mtime_ns, there.st_ctime_ns) < now - _SETTLED
    }
    if fresh or len(kept) != len(known):
        keep(store, json.dumps(kept, separators=(",", ":")).encode())
    parents = {path.rpartition("/")[0] for path in found}
    for path, there in found.items():
        if path in files:
            mode = there.st_mode & 0o777
            yield Entry(kind="file", path=path, mode=mode, size=there.st_size, content=digests[path])
        elif stat.S_ISLNK(there.st_mode):
            yield Entry(kind="link", path=path, content=_target(roots, path))
        elif path not in parents:
            yield Entry(kind="folder", path=path)


def _target(roots: Sequence[str], path: str) -> str:
    """The target of a link, such that it leads to the same place in a copy: relative if that is in the tree."""
    folder = os.path.dirname(f"{roots[0]}/{path}")
    try:
        target = os.readlink(f"{roots[0]}/{path}")
    except OSError as error:
        raise BadInputError(f"cannot read {roots[0]}/{path}: {error.strerror}", where=WHERE) from None
    place = os.path.normpath(os.path.join(folder, target))
    inside = [root for root in roots if f"{place}/".startswith(f"{root.rstrip('/')}/")]
    if os.path.isabs(target) and inside:
        return os.path.relpath(roots[0] + place[len(inside[0]) :], folder)
    return target if os.path.isabs(target) or inside else place


def _hashed_all(files: Sequence[tuple[str, int]]) -> list[str]:
    """The SHA-256 of so many bytes of each of these files: of many bytes, by several threads."""
    if sum(size for _, size in files) < _MANY:
        return list(map(_hashed, files))
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        return list(threads.map(_hashed, files))


def _hashed(file: tuple[str, int]) -> str:
    """The SHA-256 of the first bytes of a file, of which there may be more by now."""
    (path, left), digest = file, hashlib.sha256()
    try:
        with open(path, "rb", buffering=0) as opened:
            while block := opened.read(min(left, _BLOCK)):
                digest.update(block)
                left -= len(block)
    except OSError as error:
        raise BadInputError(f"cannot read {path}: {error.strerror}", where=WHERE) from None
    return digest.hexdigest()


def _load(store: str) -> dict[str, list[object]]:
    try:
        with open(store, "rb") as file:
            known = json.load(file)
    except (OSError, ValueError, RecursionError):
        return {}
    well = isinstance(known, dict) and all(isinstance(row, list) and len(row) == 5 for row in known.values())
    return known if well else {}
