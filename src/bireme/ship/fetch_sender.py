"""The node's side of ``--fetch``: which files below the ranks' working directory match, and how they are sent."""

from __future__ import annotations

import os
import stat
from fnmatch import fnmatchcase

from bireme.errors import BadInputError, ProtocolError
from bireme.ship import inside
from bireme.ship.conversation import AT_ONCE, MOST, Digests, Found, Outgoing, Skipped, in_steps
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import TypeAlias

    from bireme.control.channel import Channel
    from bireme.control.messages import Fetch, Want
    from bireme.loop import Loop
    from bireme.ship.inside import Item
    from bireme.ship.manifest import Entry

    Rests: TypeAlias = frozenset[tuple[str, ...]]

WHERE = "--fetch"
_PROBLEMS = 20
_MOST_PARTS = 1024
"""Numbers of `Entry.parts` from which on a file is sent with its holes."""


class Wanted(Value):
    """One value of ``--fetch``.

    Attributes:
        parts: the pattern, one part for each folder and the last for files. What a whole pattern matches is wanted with
            all that is in it.
        folder: where the files go; "": to the same place below the working directory.
    """

    parts: tuple[str, ...]
    folder: str = ""

    @property
    def pattern(self) -> str:
        """The pattern as text."""
        return "/".join(self.parts)


def parse(text: str) -> Wanted:
    """Read a value of ``--fetch``, ``PATTERN`` or ``PATTERN:DIR``; the last colon separates the two."""
    before, colon, after = text.rpartition(":")
    pattern, folder = (before, after) if colon else (text, "")
    if not pattern:
        raise BadInputError("no pattern", hint="type one, such as 'out/**'", where=WHERE)
    if os.path.isabs(pattern):
        below = os.path.relpath(pattern, os.getcwd())
        hint = f"type '{below}'" if not below.startswith("..") else "let the script write to a relative path"
        raise BadInputError(f"{pattern!r} is not below the ranks' working directory", hint=hint, where=WHERE)
    if ".." in pattern.split("/"):
        hint = "type a pattern without '..', such as 'out/**'"
        raise BadInputError(f"{pattern!r} leads out of the ranks' working directory", hint=hint, where=WHERE)
    if "\0" in text:
        raise BadInputError("a null character in the pattern", where=WHERE)
    parts = tuple(part for part in pattern.split("/") if part not in ("", "."))
    return Wanted(parts or ("**",), os.path.expanduser(folder))


def rests(parts: tuple[str, ...], path: str) -> Rests:
    """What is left of a pattern for what is in the folder of this path; ``()``: the whole pattern matches the path."""
    left: Rests = frozenset((parts,))
    for name in path.split("/"):
        found = set()
        for rest in left:
            if not rest:
                found.add(rest)
            while rest and rest[0] == "**":
                found.add(rest)
                rest = rest[1:]
                if not rest:
                    found.add(rest)
            if rest and fnmatchcase(name, rest[0]):
                found.add(rest[1:])
        left = frozenset(found)
    return left


def first_match(wanted: Iterable[Wanted], path: str) -> Wanted | None:
    """The first of these that a path matches."""
    return next((each for each in wanted if () in rests(each.parts, path)), None)


def _is_folder(item: Item) -> bool:
    try:
        return stat.S_ISDIR(os.stat(item[2], dir_fd=item[1]).st_mode)
    except OSError:
        return False


class FetchSender:
    """Answers what the runner asks about files below one folder.

    Args:
        sent: what ``--ship`` has sent there, by path. A file that is still the same is not found.
    """

    def __init__(self, loop: Loop, channel: Channel, folder: str, sent: Mapping[str, Entry]) -> None:
        self._loop, self._channel, self._sent = loop, channel, sent
        self._folder = os.path.realpath(folder)  # links on the way to it are the user's own
        self._top = -1
        self._files: list[Entry] = []
        self._told = 0
        self._problems: list[str] = []
        self._special = ""
        self._out = Outgoing(channel, self._skip)

    def close(self) -> None:
        """Send nothing more."""
        self._out.end()
        if self._top >= 0:
            os.close(self._top)
            self._top = -1

    def find(self, fetch: Fetch) -> None:
        """Look for the files that match."""
        in_steps(self._loop, self._look(fetch))

    def want(self, want: Want) -> None:
        """Send what is wanted of the files in these places."""
        if any(not 0 <= place < len(self._files) for place in want.places):
            raise ProtocolError("it wants files that were not found")
        wanted = [self._files[place] for place in want.places]
        if want.digests:
            in_steps(self._loop, self._hash(wanted))
        else:
            self._out.send(lambda buffer: inside.contents(self._top, wanted, buffer))

    def grant(self, size: int) -> None:
        """Let this many more bytes be sent."""
        self._out.grant(size)

    def _skip(self, error: OSError) -> bool:
        self._channel.send(Skipped(why=error.strerror or ""))
        return True

    def _look(self, fetch: Fetch) -> Iterator[None]:
        shared = bool(fetch.mark) and os.path.lexists(os.path.join(self._folder, fetch.mark))
        patterns = [tuple(pattern.split("/")) for pattern in fetch.patterns]

        def left(path: str) -> Rests:
            return frozenset().union(*(rests(parts, path) for parts in patterns))

        try:
            self._top = os.open(self._folder, inside.FOLDER)
            enters = lambda path: bool(left(path))  # noqa: E731
            for item in inside.walk(self._top, enters=enters, on_error=self._complain):
                yield
                path, _, _, there = item
                if () in left(path):
                    yield from self._note(item)
                elif stat.S_ISLNK(there.st_mode) and left(path) - left(os.path.dirname(path)) and _is_folder(item):
                    self._complain(path, OSError(0, "it is a link, which is not followed"))
                if len(self._files) >= MOST:
                    self._complain("", OSError(0, f"more than {MOST:,} files match, and the rest are left there"))
                    break
                if len(self._files) - self._told >= AT_ONCE:
                    self._tell(Found(files=()))
        except OSError as error:
            self._complain("", error)
        self._tell(Found(files=(), last=True, problems=tuple(self._problems), special=self._special, shared=shared))

    def _tell(self, found: Found) -> None:
        new = tuple(self._files[self._told :])
        self._told += len(new)
        self._channel.send(found.replace(files=new))

    def _note(self, item: Item) -> Iterator[None]:
        path = item[0]
        try:
            if path in self._sent and (yield from inside.is_same(self._sent[path], item)):
                return
            entry = inside.entry_of(item)
        except OSError as error:
            self._complain(path, error)
            return
        if entry.kind == "folder" and not stat.S_ISDIR(item[3].st_mode):
            self._special = path
        elif entry.kind != "folder":
            self._files.append(entry if len(entry.parts) < _MOST_PARTS else entry.replace(parts=()))

    def _complain(self, path: str, error: OSError) -> None:
        if len(self._problems) < _PROBLEMS:
            self._problems.append(f"{path or self._folder}: {error.strerror}")

    def _hash(self, wanted: list[Entry]) -> Iterator[None]:
        digests: list[str] = []
        for place, entry in enumerate(wanted, 1):
            try:
                with inside.open_file(self._top, entry.path) as fd:
                    digests.append((yield from inside.digest_of(fd, entry)))
            except OSError:
                digests.append("")
            if len(digests) == AT_ONCE or place == len(wanted):
                self._channel.send(Digests(digests=tuple(digests)))
                digests.clear()
