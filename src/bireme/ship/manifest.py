"""The manifest of a tree of files: what it holds, as bytes whose SHA-256 names the tree. Pure.

Both sides have it, so they name its files by their places in it.
"""

from __future__ import annotations

import hashlib
import json
import os

from bireme.errors import BiremeError
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Literal, TypeAlias

    Kind: TypeAlias = Literal["file", "link", "folder"]


CHOICES = {"Kind": ("file", "link", "folder")}
_OUTSIDE = frozenset(("", ".", ".."))
_LARGEST = 1 << 62
"""Bytes of the largest file."""
_LONGEST = 4097
"""Bytes of the longest path, and 1."""


class ManifestError(BiremeError):
    """A manifest is malformed."""


class Entry(Value):
    """One file, symbolic link or empty folder.

    Attributes:
        path: relative to the tree, with ``/``.
        mode: the permissions of a file.
        size: bytes of a file, with its holes.
        content: the digest of a file (`new_digest`; "": unknown), or the target of a link.
        parts: where the data of a file with holes begins and ends, in ascending order; empty: it has no holes.
        mtime: when a file that comes home was changed, in nanoseconds since the epoch.
    """

    kind: Kind
    path: str
    mode: int = 0
    size: int = 0
    content: str = ""
    parts: tuple[int, ...] = ()
    mtime: int = 0

    @property
    def folder(self) -> str:
        """The folder that it is, or that it is in."""
        return self.path if self.kind == "folder" else self.path.rpartition("/")[0]

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """Where the data of a file is."""
        if not self.parts:
            return ((0, self.size),) if self.size else ()
        return tuple((begin, end) for begin, end in zip(self.parts[::2], self.parts[1::2], strict=True) if begin < end)

    @property
    def data(self) -> int:
        """Bytes of a file that are sent."""
        return sum(end - begin for begin, end in self.spans) if self.parts else self.size

    def new_digest(self) -> hashlib._Hash:
        """A SHA-256 to which the data of a file is to be added. It knows the holes, so that it names the content."""
        return hashlib.sha256(repr((self.size, self.parts)).encode() if self.parts else b"")


class Manifest(Value):
    """A tree.

    Attributes:
        name: of its root folder, which its copies have too.
        entries: what it holds, by path.
        text: its encoded form.
        digest: the SHA-256 of that.
    """

    name: str
    entries: tuple[Entry, ...]
    text: bytes
    digest: str


def make(name: str, entries: Iterable[Entry]) -> Manifest:
    """The manifest of these entries."""
    ordered = tuple(sorted(entries, key=lambda entry: entry.path))
    rows = [[entry.kind, entry.path, entry.mode, entry.size, entry.content, *entry.parts] for entry in ordered]
    text = json.dumps({"name": name, "entries": rows}, separators=(",", ":")).encode()
    return Manifest(name, ordered, text, hashlib.sha256(text).hexdigest())


def read(text: bytes) -> Manifest:
    """Read an encoded manifest."""
    try:
        plain = json.loads(text)
        name, rows = plain["name"], plain["entries"]
        entries = tuple(
            Entry(kind=kind, path=path, mode=mode, size=size, content=content, parts=tuple(parts))
            for kind, path, mode, size, content, *parts in rows
        )
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ManifestError("it is not a manifest") from None
    if not isinstance(name, str) or "/" in name or not _is_inside(name):
        raise ManifestError("it names no folder")
    for entry in entries:
        if not is_valid(entry):
            raise ManifestError(f"it has an invalid entry: {entry.path!r:.80}")
    closed = {entry.path for entry in entries if entry.kind != "folder"}
    for folder in {entry.path.rpartition("/")[0] for entry in entries}:
        if not closed.isdisjoint(prefixes(folder)):
            raise ManifestError(f"it has something inside a file or link: {folder!r:.80}")
    if len({entry.path for entry in entries}) < len(entries):
        raise ManifestError("it has one path twice")
    return Manifest(name, entries, text, hashlib.sha256(text).hexdigest())


def is_valid(entry: Entry) -> bool:
    """Whether the values of an entry are possible, and its path is inside."""
    for number in (entry.mode, entry.size, *entry.parts):
        if type(number) is not int or number < 0:
            return False
    edges = [*entry.parts, entry.size, _LARGEST]
    if entry.mode > 0o777 or len(entry.parts) % 2 or edges != sorted(edges):
        return False
    for text in (entry.path, entry.content):
        if not isinstance(text, str) or not is_path(text):
            return False
    if entry.kind == "file" and not f"0{entry.content}".isalnum():  # it becomes a part of a name
        return False
    return entry.kind in CHOICES["Kind"] and _is_inside(entry.path)


def is_path(text: str) -> bool:
    """Whether a text may be a path here, or the target of a link."""
    try:
        return len(os.fsencode(text)) < _LONGEST and "\0" not in text
    except UnicodeError:
        return False


def _is_inside(path: str) -> bool:
    return _OUTSIDE.isdisjoint(path.split("/"))


def prefixes(path: str) -> list[str]:
    """The folders on the way to a path, and itself."""
    parts = path.split("/")
    return ["/".join(parts[:number]) for number in range(1, len(parts) + 1)]


def below(roots: Iterable[str], path: str) -> str | None:
    """What follows the path of a folder in a path; ``None``: that is elsewhere.

    Args:
        roots: all paths of the folder.
    """
    for root in roots:
        if f"{path}/".startswith(f"{root.rstrip('/')}/"):
            return path[len(root.rstrip("/")) :]
    return None


def shown(text: str) -> str:
    """A text from elsewhere, on one line."""
    return "".join(char if char.isprintable() else f"\\x{ord(char) & 0xFF:02x}" for char in text)
