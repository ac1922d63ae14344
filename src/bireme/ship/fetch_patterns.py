"""The patterns of ``--fetch``: which files below the ranks' working directory are brought home, and to where. Pure."""

from __future__ import annotations

import os
from fnmatch import fnmatchcase

from bireme.errors import BadInputError
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TypeAlias

    Rests: TypeAlias = frozenset[tuple[str, ...]]

WHERE = "--fetch"


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
    """Read a value of ``--fetch``, ``PATTERN`` or ``PATTERN:DIR``; the last colon separates the two.

    Raises:
        BadInputError: the pattern is empty, or leads out of the ranks' working directory.
    """
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


def below(rests: Rests, name: str) -> Rests:
    """What is left of patterns for what is in a folder of this name; ``()``: the whole pattern has matched."""
    found = set()
    for rest in rests:
        if not rest:
            found.add(rest)
        while rest and rest[0] == "**":
            found.add(rest)
            rest = rest[1:]
            if not rest:
                found.add(rest)
        if rest and fnmatchcase(name, rest[0]):
            found.add(rest[1:])
    return frozenset(found)


def first_match(wanted: Iterable[Wanted], path: str) -> Wanted | None:
    """The first of these that a path matches."""
    for each in wanted:
        rests: Rests = frozenset((each.parts,))
        for name in path.split("/"):
            rests = below(rests, name)
        if () in rests:
            return each
    return None
