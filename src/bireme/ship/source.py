"""The tree that ``--ship`` sends: finds its files, makes its manifest, and sends their contents to the agents.

A file that has not changed since the last time is not read for the manifest: its digest is kept in the user's cache.
Nothing outside of the tree is read: each folder on the way to a file is opened by itself, and none through a link.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import subprocess
import time
from errno import ELOOP, ENOENT, ENOTDIR

from bireme import drafts
from bireme.errors import BadInputError, ProtocolError
from bireme.regular_file import open_regular
from bireme.resources.ownership import cache_folder, keep, reason_to_pass_over
from bireme.resources.pool import listed
from bireme.ship import inside, manifest
from bireme.ship.conversation import WINDOW, Outgoing
from bireme.ship.inside import Descriptor
from bireme.ship.manifest import prefixes, shown
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Any, Protocol

    from bireme.control.channel import Channel
    from bireme.control.messages import Message, Taken
    from bireme.job import JobSpec
    from bireme.ship.conversation import Need
    from bireme.ship.manifest import Entry, Manifest

    class Receiver(Protocol):
        """An agent."""

        channel: Channel | None

        @property
        def name(self) -> str:
            """Of its node."""

        def send(self, message: Message) -> None:
            """Send it a message."""

        def __hash__(self) -> int: ...


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
_TIMELESS = ("tmpfs", "ramfs", "hugetlbfs", "overlay")
"""File systems that may never do that (overlay: upon one of these): a mapped file has no times that count."""
_PATIENCE = 300.0
"""Seconds that git may take."""
_CLOSED = r"(?m)^warning: could not open directory '(.*/)': Permission denied$"
"""What git says of a folder that is not tracked."""
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

    def contents(self, places: Iterable[int], buffer: memoryview) -> Iterator[int | OSError]:
        """The contents of the files in these places, as `inside.contents`."""
        try:
            with Descriptor(os.open(self.roots[0], inside.FOLDER)) as top:
                yield from inside.contents(top, (self.manifest.entries[place] for place in places), buffer)
        except OSError as error:
            yield error


def find(spec: JobSpec, environ: Mapping[str, str]) -> SourceTree:
    """Find the tree of a job, and what it holds."""
    assert spec.ship is not None
    cwd = os.getcwd()
    root = _top_of_git(environ) if spec.ship == GIT else os.path.realpath(spec.ship)
    if not os.path.isdir(root):
        raise BadInputError(f"not a folder: {spec.ship}", where=WHERE)
    start = manifest.below((root,), cwd)
    if start is None:
        hint = f"cd {root}, or name a folder that holds the working directory"
        raise BadInputError(f"the working directory {cwd} is not inside {root}", hint=hint, where=WHERE)
    left: dict[str, str] = {}
    with Descriptor(os.open(root, inside.FOLDER)) as top:
        also = [_also(root, path) for path in spec.ship_also]
        found, stats = _look(top, environ if spec.ship == GIT else None, also, left)
        _refuse_large(root, found, spec.ship_limit)
        roots = _names_of(root, start, environ.get("PWD", ""))
        folder = start.strip("/")
        if folder and not any(f"{path}/".startswith(f"{folder}/") for path in found):
            found[folder] = Entry(kind="folder", path=folder)  # it may hold nothing, but the ranks start there
        digests = _digests(top, root, found, stats, environ)
    holding = {path.rpartition("/")[0] for path in found}
    entries = [
        entry.replace(
            mtime=0, content=_target(roots, path, entry.content) if entry.kind == "link" else digests.get(path, "")
        )
        for path, entry in found.items()
        if digests.get(path) != "" and (entry.kind != "folder" or path not in holding)
    ]
    name = os.path.basename(root).lstrip(".") or "root"  # ".lock" beside the tree is ours
    reasons = {why: [path for path in sorted(left) if left[path] == why] for why in dict.fromkeys(left.values())}
    notes = tuple(f"{_named(paths)} not sent: {why}" for why, paths in reasons.items())
    return SourceTree(roots, manifest.make(name, entries), os.urandom(6).hex(), notes)


def _names_of(root: str, start: str, typed: str) -> tuple[str, ...]:
    """The path of the tree, and the one that the shell shows where it came through a symbolic link.

    Args:
        start: what follows the path of the tree in that of the working directory.
        typed: the shell's path of that.
    """
    alias = typed.removesuffix(start)
    known = os.path.isabs(alias) and alias != root and os.path.realpath(alias) == root
    return (root, alias) if known else (root,)


def _target(roots: Sequence[str], path: str, target: str) -> str:
    """Where a link is to lead from a copy: to the same place, or to the one in the copy that corresponds to it."""
    folder = os.path.dirname(os.path.join(roots[0], path))
    place = os.path.normpath(os.path.join(folder, target))
    within = manifest.below(roots, place)
    if os.path.isabs(target) and within is not None:
        return os.path.relpath(roots[0] + within, folder)
    return target if os.path.isabs(target) or within is not None else place


# -- its files -----------------------------------------------------------------------------------


def _top_of_git(environ: Mapping[str, str]) -> str:
    said, _ = _git(["rev-parse", "--show-toplevel"], environ)
    return os.path.realpath(os.fsdecode(said.rstrip(b"\n")))


def _git(
    words: Sequence[str], environ: Mapping[str, str], folder: int | None = None, place: str = ""
) -> tuple[bytes, str]:
    """What git prints, and what it warns of. The configuration of a repository names programs: none of them is run.

    Args:
        folder: the open folder of a work tree, wherever the configuration has one; ``None``: the working directory.
        place: where that is, for errors.
    """
    hint = "type --ship=. to send the working directory as it is"
    own = {**environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1", "LC_ALL": "C"}
    quiet = ("core.fsmonitor=false", f"core.hooksPath={os.devnull}", "protocol.allow=never")
    here = () if folder is None else ("--work-tree=.",)
    command = ["git", *(word for setting in quiet for word in ("-c", setting)), *here, *words]
    enter = None if folder is None else lambda: os.fchdir(folder)
    try:
        null = subprocess.DEVNULL
        done = subprocess.run(command, env=own, stdin=null, capture_output=True, preexec_fn=enter, timeout=_PATIENCE)
    except OSError as error:
        raise BadInputError(f"cannot run git: {error.strerror}", hint=hint, where=WHERE) from None
    except subprocess.TimeoutExpired:  # as where .gitignore is a FIFO
        what = f"git {words[0]}{place} did not finish within {_PATIENCE:g} s"
        raise BadInputError(what, hint=hint, where=WHERE) from None
    warned = done.stderr.decode(errors="surrogateescape")
    if done.returncode:
        said = warned.strip().splitlines() or [f"exit code {done.returncode}"]
        if "not a git repository" in said[0]:
            raise BadInputError("the working directory is not in a git repository", hint=hint, where=WHERE)
        raise BadInputError(f"git {words[0]}{place}: {shown(said[0])}", hint=hint, where=WHERE)
    return done.stdout, warned


def _of_git(top: int, below: str, environ: Mapping[str, str], left: dict[str, str]) -> list[str]:
    """What git tracks in a folder, and what it neither tracks nor ignores; nothing if it is no repository.

    Args:
        below: the path of a repository inside; "": of the tree itself.
        left: gets what is not sent, by path, and why.
    """
    own = {name: value for name, value in environ.items() if not name.startswith("GIT_")}
    try:
        with inside.open_folder(top, below) as folder:
            if below:
                os.stat(".git", dir_fd=folder)
            words = ("ls-files", "-z", "--cached", "--others", "--exclude-standard")
            said, warned = _git(words, own, folder, below and f" in {shown(below)}")
    except OSError as error:
        _refuse(below, error)
        return []
    above = f"{below}/" if below else ""
    left |= dict.fromkeys((above + path for path in re.findall(_CLOSED, warned)), "it cannot be read")
    return [above + os.fsdecode(name).rstrip("/") for name in said.split(b"\0") if name]


def _look(
    top: int, environ: Mapping[str, str] | None, also: Iterable[str], left: dict[str, str]
) -> tuple[dict[str, Entry], dict[str, os.stat_result]]:
    """What is in the tree but the data of git, by path, and what the system says of it.

    One's own output is another at each start, and grows: it is left out.

    Args:
        environ: the environment of git, if it says what belongs to the tree; what it cannot track, such as FIFOs beside
            these files, is named too. ``None``: everything belongs to it.
        also: what belongs to it whatever git says.
        left: gets what is not sent, by path, and why.
    """
    wanted, folders = set[str](), set[str]()
    found: dict[str, Entry] = {}
    stats: dict[str, os.stat_result] = {}
    own = [(there.st_dev, there.st_ino) for there in map(os.fstat, (1, 2))]

    def add(paths: Iterable[str]) -> None:
        for path in paths:
            wanted.add(path)
            folders.update(prefixes(path)[:-1])

    def enters(path: str) -> bool:
        if environ is not None and path in wanted:  # it may be a repository
            add(_of_git(top, path, environ, left))
        return path.rpartition("/")[2] != ".git" and (environ is None or path in folders)

    add(also)
    if environ is not None:
        add(_of_git(top, "", environ, left))
    for item in inside.walk(top, enters=enters, on_error=_refuse):
        path, _, name, there = item
        mode = there.st_mode
        if name == ".git" or (there.st_dev, there.st_ino) in own:
            continue
        if stat.S_ISLNK(mode) and path in folders:
            left[f"{path}/"] = "a link has replaced it"
        if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode) or stat.S_ISDIR(mode)):
            left[path] = "only files, folders and links are"
        elif environ is None or path in wanted:
            try:
                found[path] = inside.entry_of(item)
                stats[path] = there
            except OSError as error:
                _refuse(path, error)
    return found, stats


def _also(root: str, path: str) -> str:
    """The path in the tree of a file of ``--ship_also``."""
    place = os.path.join(os.path.realpath(os.path.dirname(os.path.abspath(path))), os.path.basename(path))
    if not os.path.isfile(place) or not place.startswith(f"{root.rstrip('/')}/"):
        raise BadInputError(f"{path!r} is not a file in {root}", where="--ship_also")
    return os.path.relpath(place, root)


def _refuse(path: str, error: OSError) -> None:
    """Refuse what cannot be read, unless it was removed, or replaced by something else."""
    if error.errno not in (ENOENT, ENOTDIR, ELOOP):
        raise BadInputError(f"cannot read {shown(path or '.')}: {error.strerror}", where=WHERE)


def _named(paths: Sequence[str]) -> str:
    """The first of these paths, and how many there are, as the subject of a sentence."""
    return f"{listed(map(shown, paths), _NAMED)} {'is' if len(paths) == 1 else 'are'}"


def _refuse_large(root: str, found: Mapping[str, Entry], limit: int) -> None:
    parts: dict[str, int] = {}
    for path, entry in found.items():
        top = path.partition("/")[0]
        parts[top] = parts.get(top, 0) + entry.data
    total = sum(parts.values())
    if total > limit:
        largest = max(parts, key=lambda name: parts[name])
        what = f"{root} holds {as_text(total)} in {len(found):,} files, more than the limit of {as_text(limit)}"
        enough = f"{-(-total >> 20)}M" if total < 1023 << 20 else f"{-(-total >> 30)}G"
        hint = (
            f"the largest part is {shown(largest)} ({as_text(parts[largest])}); to send all, add --ship_limit {enough}"
        )
        raise BadInputError(what, hint=hint, where=WHERE)


def as_text(size: int) -> str:
    """A number of bytes for people."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:.4g} {unit}"
    return f"{size} bytes"


# -- digests -------------------------------------------------------------------------------------


def _digests(
    top: int, root: str, found: Mapping[str, Entry], stats: Mapping[str, os.stat_result], environ: Mapping[str, str]
) -> dict[str, str]:
    """The digests of files by path, from the cache where a file is as it was; of many bytes, by several threads."""
    store, now, timeless = _store(root, environ), time.time_ns(), _timeless_devices()
    known = _load(store)
    rows = {path: [*inside.stamp_of(there)] for path, there in stats.items() if stat.S_ISREG(there.st_mode)}
    digests = {path: known[path][-1] for path, stamp in rows.items() if known.get(path, [])[:-1] == stamp}
    fresh = [found[path] for path in rows if path not in digests]
    hashed: Callable[[Entry], str] = lambda entry: _hashed(top, entry)  # noqa: E731
    if sum(entry.data for entry in fresh) < _MANY:
        digests |= {entry.path: hashed(entry) for entry in fresh}
    else:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
            digests |= zip((entry.path for entry in fresh), threads.map(hashed, fresh), strict=True)
    kept = {
        path: [*stamp, digests[path]]
        for path, stamp in rows.items()
        if digests[path] and max(stamp[1:3]) < now - _SETTLED and stats[path].st_dev not in timeless
    }
    if kept != known:
        keep(store, json.dumps(kept, separators=(",", ":")).encode())
    return digests


def _hashed(top: int, entry: Entry) -> str:
    """The digest of what a file had at first, of which there may be more by now; "": it is gone."""
    try:
        with inside.open_file(top, entry.path) as fd:
            digest = entry.new_digest()
            for at, size in inside.blocks(entry):
                digest.update(os.pread(fd, size, at))
            return digest.hexdigest()
    except OSError as error:
        _refuse(entry.path, error)
        return ""


def _timeless_devices() -> set[int]:
    """The devices of `_TIMELESS`."""
    try:
        with open("/proc/self/mountinfo", "rb") as file:
            lines = [line.partition(b" - ") for line in file]
    except OSError:
        return set()
    numbers = [left.split()[2].split(b":") for left, _, right in lines if right.split()[0].decode() in _TIMELESS]
    return {os.makedev(int(major), int(minor)) for major, minor in numbers}


def _store(root: str, environ: Mapping[str, str]) -> str:
    name = hashlib.sha256(os.fsencode(root)).hexdigest()[:32]
    return os.path.join(cache_folder(environ), "digests", f"{name}.json")


def _load(store: str) -> dict[str, list[Any]]:
    """The stamp and the digest of files, by path; nothing if others may have written it."""
    try:
        with open(open_regular(store, os.O_NOFOLLOW), "rb") as file:
            known = {} if reason_to_pass_over(store, file.fileno()) else json.load(file)
        return {path: row for path, row in known.items() if len(row) == 5 and isinstance(row[-1], str)}
    except (OSError, ValueError, RecursionError, AttributeError, TypeError):
        return {}


# -- to the agents -------------------------------------------------------------------------------


class Shipment:
    """Sends what agents need of one tree, over their channels and beside everything else.

    Args:
        on_failure: called with the reason when a file was changed meanwhile.
    """

    def __init__(self, tree: SourceTree, say: Callable[[str, str], None], on_failure: Callable[[str], None]) -> None:
        self._tree, self._say, self._on_failure = tree, say, on_failure
        self._streams: dict[Receiver, Outgoing] = {}
        self._asked: set[tuple[Receiver, bool]] = set()
        self._announced = False
        self.changed = False
        """Whether a file is not what the manifest says."""

    def send(self, member: Receiver, need: Need) -> None:
        """Begin to send an agent what it needs."""
        asked = (member, bool(need.places))
        if asked in self._asked or need.places[-1:] >= (len(self._tree.manifest.entries),):
            raise ProtocolError("it asked twice, or for files that are not in the tree")
        self._asked.add(asked)
        assert member.channel is not None
        stream = self._streams.get(member) or Outgoing(member.channel, self._failed)
        self._streams[member] = stream
        if not need.places:
            stream.send_text(self._tree.manifest.text)
            return
        stream.send(lambda buffer: self._tree.contents(need.places, buffer))
        if not self._announced:
            self._announced = True
            size = sum(self._tree.manifest.entries[place].data for place in need.places)
            note = f"sending {as_text(size)} of {self._tree.roots[0]} to {member.name} (and maybe other nodes)"
            self._say("info" if size > WINDOW else "debug", note)

    def taken(self, member: Receiver, taken: Taken) -> None:
        """Go on: an agent has taken so much."""
        if member not in self._streams:
            raise ProtocolError("it has taken more than was sent")
        self._streams[member].grant(taken.size)

    def forget(self, member: Receiver) -> None:
        """Send an agent nothing more."""
        if member in self._streams:
            self._streams.pop(member).end()

    def wrong(self, place: int) -> None:
        """A file was not what the manifest says: forget the digests, and end this try of the job."""
        entries = self._tree.manifest.entries
        if place >= len(entries):
            raise ProtocolError("it named a file that is not in the tree")
        drafts.remove(_store(self._tree.roots[0], os.environ))
        self._failed(OSError(0, "", entries[place].path))

    def _failed(self, error: OSError) -> bool:
        """End this try: a file has changed, or cannot be read, so that no copy can be what the manifest says."""
        path = shown(os.path.join(self._tree.roots[0], str(error.filename or "")))
        self.changed = True
        self._on_failure(f"{path} has changed since the job began{error.strerror and f': {error.strerror}'}")
        return False
