"""The tree that ``--ship`` sends: finds its files, makes its manifest, and reads their contents.

A file that has not changed since the last time is not read for the manifest: its digest is kept in the user's cache.
Nothing outside of the tree is read: each folder on the way to a file is opened by itself, and none through a link.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import subprocess
import time
from errno import ELOOP
from itertools import chain, groupby

from bireme.errors import BadInputError
from bireme.resources.cache import cache_folder, keep
from bireme.ship import inside, manifest
from bireme.ship.contents import Contents
from bireme.ship.manifest import Entry, Manifest
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Any, NoReturn

    from bireme.job import JobSpec

WHERE = "--ship"
GIT = "git"
"""The value of the option for what git knows of the working tree, instead of a folder."""
_MANY = 16 << 20
"""Bytes from which on threads are worth their start."""
_SETTLED = 120 * 10**9
"""Nanoseconds after its last change from which on a file's times would show another change.

A program that has mapped a file changes its times with the first write only, until the kernel has written the page to
the disk, half a minute later.
"""
_TIMELESS = ("tmpfs", "ramfs", "hugetlbfs")
"""File systems that never do that: a mapped file has no times that count."""
_INLINE = 1 << 16
"""Bytes of a file that a file system may keep without a block."""
_NAMED = 5
"""How many files of a kind a message names."""


class SourceTree(Value):
    """A tree on this machine.

    Attributes:
        roots: the path of its folder, and others of the same folder that the user may have typed.
        manifest: what it holds.
        job: the id of the job, whose nodes, attempts and epochs share their copies.
        notes: what the user is to know.
    """

    roots: tuple[str, ...]
    manifest: Manifest
    job: str = ""
    notes: tuple[str, ...] = ()

    def contents(self, spans: Sequence[int]) -> Contents:
        """The contents of these files (`Need.spans`)."""
        entries = self.manifest.entries
        places = chain.from_iterable(map(range, spans[::2], spans[1::2]))
        return Contents(self.roots[0], map(entries.__getitem__, places))


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
    top = os.open(root, inside.FOLDER)
    try:
        paths = _paths_of_git(top, environ) if spec.ship == GIT else _paths_below(top)
        found, links, notes = _look_at(top, root, chain(paths, (_also(root, path) for path in spec.ship_also)))
        _refuse_large(root, found, spec.ship_limit)
        roots = _names_of(root, cwd, environ.get("PWD", ""))
        below = cwd[len(root.rstrip("/")) + 1 :]
        if below and not any(f"{path}/".startswith(f"{below}/") for path in found):
            found[below] = os.stat(cwd)  # it may hold nothing else, but the ranks start there
        made = manifest.make(os.path.basename(root) or "root", _entries(top, roots, found, links, environ))
    finally:
        os.close(top)
    return SourceTree(roots, made, os.urandom(6).hex(), notes)


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


def _git(words: Sequence[str], folder: int | None, environ: Mapping[str, str]) -> bytes:
    """What git prints. The configuration of a repository names programs: none of them is run."""
    hint = "type --ship=. to send the working directory as it is"
    own = {**environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1"}
    quiet = ("core.fsmonitor=false", f"core.hooksPath={os.devnull}", "protocol.allow=never")
    command = ["git", *(word for setting in quiet for word in ("-c", setting)), *words]
    enter = None if folder is None else lambda: os.fchdir(folder)
    try:
        done = subprocess.run(command, env=own, stdin=subprocess.DEVNULL, capture_output=True, preexec_fn=enter)
    except OSError as error:
        raise BadInputError(f"cannot run git: {error.strerror}", hint=hint, where=WHERE) from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
        if "not a git repository" in said[0]:
            raise BadInputError("the working directory is not in a git repository", hint=hint, where=WHERE)
        raise BadInputError(f"git {words[0]}: {said[0]}", hint=hint, where=WHERE)
    return done.stdout


def _paths_of_git(top: int, environ: Mapping[str, str]) -> Iterator[str]:
    """What git tracks below a folder, and what it neither tracks nor ignores; also in repositories inside it."""
    own = {name: value for name, value in environ.items() if not name.startswith("GIT_")}
    said = _git(["ls-files", "-z", "--cached", "--others", "--exclude-standard"], top, own)
    paths = dict.fromkeys(os.fsdecode(name).rstrip("/") for name in said.split(b"\0") if name)
    paths = {path: None for path in paths if not {"", ".", "..", ".git"} & {*path.split("/")}}
    yield from _special_beside(top, paths)
    for path in paths:
        yield path
        try:
            inner = inside.open_folder(top, path)
        except OSError:
            continue
        try:
            os.stat(".git", dir_fd=inner)
            yield from (f"{path}/{below}" for below in _paths_of_git(inner, own))
        except FileNotFoundError:
            pass
        finally:
            os.close(inner)


def _special_beside(top: int, paths: Iterable[str]) -> Iterator[str]:
    """FIFOs, sockets and devices in the folders of these files: git does not name what it cannot track."""
    for folder in dict.fromkeys(path.rpartition("/")[0] for path in paths):
        try:
            fd = inside.open_folder(top, folder)
        except OSError:  # removed, or replaced by a link
            continue
        try:
            with os.scandir(fd) as entries:
                names = [each.name for each in entries if not (each.is_symlink() or each.is_dir() or each.is_file())]
        finally:
            os.close(fd)
        yield from (f"{folder}/{name}" if folder else name for name in names)


def _paths_below(top: int, below: str = "") -> Iterator[str]:
    """Everything in a folder but the data of git."""
    try:
        inside.refuse_deep(below)
        for entry in os.scandir(top):
            if entry.name == ".git":
                continue
            path = f"{below}{entry.name}"
            yield path
            if entry.is_dir(follow_symlinks=False):
                inner = inside.open_folder(top, entry.name)
                try:
                    yield from _paths_below(inner, f"{path}/")
                finally:
                    os.close(inner)
    except OSError as error:
        _refuse_unreadable(f"{below or '.'}", error)


def _also(root: str, path: str) -> str:
    """The path in the tree of a file of ``--ship_also``."""
    place = os.path.join(os.path.realpath(os.path.dirname(os.path.abspath(path))), os.path.basename(path))
    if not os.path.isfile(place) or not place.startswith(f"{root.rstrip('/')}/"):
        raise BadInputError(f"{path!r} is not a file in {root}", where="--ship_also")
    return os.path.relpath(place, root)


def _refuse_unreadable(path: str, error: OSError) -> NoReturn:
    raise BadInputError(f"cannot read {path}: {error.strerror}", where=WHERE)


def _look_at(
    top: int, root: str, paths: Iterator[str]
) -> tuple[dict[str, os.stat_result], dict[str, str], tuple[str, ...]]:
    """The files, links and folders that exist, where the links lead, and notes.

    Git also names files that were removed. One's own output is another at each start, and grows: it is left out.
    """
    found: dict[str, os.stat_result] = {}
    links: dict[str, str] = {}
    replaced: dict[str, None] = {}
    special: dict[str, None] = {}
    own = list(_outputs())
    for folder, group in groupby(paths, lambda path: path.rpartition("/")[0]):
        try:
            holder = inside.open_folder(top, folder)
        except OSError as error:  # git names files whose folder was removed, or replaced by a link
            if not isinstance(error, (FileNotFoundError, NotADirectoryError)) and error.errno != ELOOP:
                _refuse_unreadable(folder, error)
            replaced |= dict.fromkeys(filter(os.path.islink, (f"{root}/{part}" for part in inside.prefixes(folder))))
            continue
        for path in group:
            name = path.rpartition("/")[2]
            try:
                there = os.stat(name, dir_fd=holder, follow_symlinks=False)
                if stat.S_ISLNK(there.st_mode):
                    links[path] = os.readlink(name, dir_fd=holder)
            except FileNotFoundError:
                continue
            except OSError as error:
                _refuse_unreadable(f"{root}/{path}", error)
            if any(os.path.samestat(there, other) for other in own):
                continue
            if stat.S_ISREG(there.st_mode) or stat.S_ISLNK(there.st_mode) or stat.S_ISDIR(there.st_mode):
                found[path] = there
            else:
                special[path] = None
        os.close(holder)
    notes = [f"{_named(list(special))} not sent: only files, folders and links are"] if special else []
    notes += [f"what git tracks below {_named(list(replaced))} not sent: a link has replaced it"] if replaced else []
    return found, links, tuple(notes)


def _named(paths: Sequence[str]) -> str:
    """The first of these paths, and how many there are, as the subject of a sentence."""
    names = ", ".join(path if path.isprintable() else ascii(path)[1:-1] for path in paths[:_NAMED])
    if len(paths) == 1:
        return f"{names} is"
    return f"{names} are" if len(paths) <= _NAMED else f"{names} and {len(paths) - _NAMED} more are"


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
    total = sum(map(_held, found.values()))
    if total <= limit:
        return
    parts: dict[str, int] = {}
    for path, there in found.items():
        top = path.partition("/")[0]
        parts[top] = parts.get(top, 0) + _held(there)
    largest = max(parts, key=lambda name: parts[name])
    what = f"{root} holds {as_text(total)} in {len(found):,} files, more than the limit of {as_text(limit)}"
    hint = f"the largest part is {largest} ({as_text(parts[largest])}); to send all, add --ship_limit {_enough(total)}"
    raise BadInputError(what, hint=hint, where=WHERE)


def _held(there: os.stat_result) -> int:
    """Bytes of a file that are sent: without its holes."""
    if not stat.S_ISREG(there.st_mode) or there.st_size <= _INLINE:
        return there.st_size if stat.S_ISREG(there.st_mode) else 0
    return min(there.st_size, there.st_blocks * 512)


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


def _entries(
    top: int,
    roots: Sequence[str],
    found: Mapping[str, os.stat_result],
    links: Mapping[str, str],
    environ: Mapping[str, str],
) -> Iterator[Entry]:
    """The entries of the manifest; digests come from the cache where the file is as it was."""
    store, now = _store(roots[0], environ), time.time_ns()
    known, timeless = _load(store), _timeless_devices()
    files = {path: there for path, there in found.items() if stat.S_ISREG(there.st_mode)}
    rows = {path: known[path] for path in files if path in known and known[path][:4] == [*inside.stamp_of(files[path])]}
    fresh = [path for path in files if path not in rows]
    for path, hashed in zip(fresh, _hashed_all(top, [(path, files[path]) for path in fresh]), strict=True):
        rows[path] = [*inside.stamp_of(files[path]), *hashed]
    kept = {
        path: rows[path]
        for path, there in files.items()
        if max(there.st_mtime_ns, there.st_ctime_ns) < now - _SETTLED and there.st_dev not in timeless
    }
    if kept != known:
        keep(store, json.dumps(kept, separators=(",", ":")).encode())
    parents = {path.rpartition("/")[0] for path in found}
    for path, there in found.items():
        if path in files:
            size, _, _, _, digest, *parts = rows[path]
            mode = there.st_mode & 0o777
            yield Entry(kind="file", path=path, mode=mode, size=size, content=digest, parts=tuple(parts))
        elif path in links:
            yield Entry(kind="link", path=path, content=_target(roots, path, links[path]))
        elif path not in parents:
            yield Entry(kind="folder", path=path)


def forget(tree: SourceTree, place: int, environ: Mapping[str, str]) -> None:
    """Forget the digest of a file that was sent with another content."""
    store = _store(tree.roots[0], environ)
    known = _load(store)
    known.pop(tree.manifest.entries[place].path, None)
    keep(store, json.dumps(known, separators=(",", ":")).encode())


def _timeless_devices() -> set[int]:
    """The devices of `_TIMELESS`."""
    try:
        with open("/proc/self/mountinfo", "rb") as file:
            lines = [line.partition(b" - ") for line in file]
    except OSError:
        return set()
    numbers = [left.split()[2].split(b":") for left, _, right in lines if right.split()[0].decode() in _TIMELESS]
    return {os.makedev(int(major), int(minor)) for major, minor in numbers}


def _target(roots: Sequence[str], path: str, target: str) -> str:
    """Where a link is to lead from a copy: to the same place, or to the one in the copy that corresponds to it."""
    folder = os.path.dirname(os.path.join(roots[0], path))
    place = os.path.normpath(os.path.join(folder, target))
    within = [root for root in roots if f"{place}/".startswith(f"{root.rstrip('/')}/")]
    if os.path.isabs(target) and within:
        return os.path.relpath(roots[0] + place[len(within[0]) :], folder)
    return target if os.path.isabs(target) or within else place


def _hashed_all(top: int, files: Sequence[tuple[str, os.stat_result]]) -> list[list[Any]]:
    """The SHA-256 and the parts (`Entry.parts`) of each of these files: of many bytes, by several threads."""

    def hashed(file: tuple[str, os.stat_result]) -> list[Any]:
        return _hashed(top, *file)

    if sum(_held(there) for _, there in files) < _MANY:
        return list(map(hashed, files))
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        return list(threads.map(hashed, files))


def _hashed(top: int, path: str, there: os.stat_result) -> list[Any]:
    """The SHA-256 of what a file had at first, of which there may be more by now; and its parts."""
    digest = hashlib.sha256()
    try:
        fd = inside.open_file(top, path)
        try:
            entry = Entry(kind="file", path=path, size=there.st_size, parts=inside.parts_of(fd, there))
            for block in inside.blocks(fd, entry.spans):
                digest.update(block)
            return [digest.hexdigest(), *entry.parts]
        finally:
            os.close(fd)
    except OSError as error:
        _refuse_unreadable(path, error)


def _store(root: str, environ: Mapping[str, str]) -> str:
    name = hashlib.sha256(os.fsencode(root)).hexdigest()[:32]
    return os.path.join(cache_folder(environ), "digests", f"{name}.json")


def _load(store: str) -> dict[str, list[Any]]:
    try:
        with open(store, "rb") as file:
            known = json.load(file)
    except (OSError, ValueError, RecursionError):
        return {}
    well = isinstance(known, dict) and all(
        isinstance(row, list) and len(row) >= 5 and [type(each) for each in row[4:]] == [str] + [int] * (len(row) - 5)
        for row in known.values()
    )
    return known if well else {}
