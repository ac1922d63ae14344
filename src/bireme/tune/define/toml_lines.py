"""Reads TOML, and finds the line of each key: the library does not keep them."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping

from bireme.errors import BadInputError
from bireme.resources.hostfile import read_text
from bireme.tune import requirements
from bireme.value import Value

_PART = r"""(?:[A-Za-z0-9_-]+|"(?:\\.|[^"\\\n])*"|'[^'\n]*')"""
_KEY = rf"{_PART}(?:[ \t]*\.[ \t]*{_PART})*"
_HEADER = re.compile(rf"[ \t]*\[\[?[ \t]*({_KEY})[ \t]*\]")
_ENTRY = re.compile(rf"[ \t]*({_KEY})[ \t]*=")
_TOKEN = re.compile(
    r'''"""(?:\\.|[^\\])*?"""|"(?:\\.|[^"\\\n])*"|#[^\n]*|[\[\]{}\n]''' r"|'''.*?'''|'[^'\n]*'", re.DOTALL
)


class TomlFile(Value):
    """A file. ``lines``: the line of each key by its path; texts in a list count as keys ``0``, ``1``, …"""

    path: str
    data: Mapping[str, object]
    lines: Mapping[tuple[str, ...], int]

    def where(self, *keys: str) -> str:
        """``file:line`` of this key, or of the nearest enclosing one whose line is known."""
        while keys and keys not in self.lines:
            keys = keys[:-1]
        return f"{self.path}:{self.lines.get(keys, 1)}"


def read(path: str) -> TomlFile:
    """Read a file."""
    text = read_text(path).replace("\r\n", "\n")
    requirements.check("a study file", "tomlkit", where=path)
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        data = tomlkit.parse(text).unwrap()
    except (TOMLKitError, RecursionError) as error:
        line = getattr(error, "line", None) or _first_line(text, type(error))
        said = re.sub(r" at line \d+ col \d+$", "", str(error)).rstrip(".")
        what = f"invalid TOML: {said[:1].lower()}{said[1:]}"
        raise BadInputError(what, where=f"{path}:{line}") from None
    return TomlFile(path, data, key_lines(text))


def _first_line(text: str, kind: type[Exception]) -> int:
    """The line up to which the text must be read for this error, for errors that do not name one."""
    import tomlkit

    lines = text.split("\n")

    def fails(count: int) -> bool:
        try:
            tomlkit.parse("\n".join(lines[:count]))
        except Exception as error:  # of another kind, because the text is cut off
            return type(error) is kind
        return False

    return bisect_left(range(len(lines)), True, key=fails)


def key_lines(text: str) -> dict[tuple[str, ...], int]:
    """The line of each key in a text that is valid TOML."""
    lines: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    at = 0
    while at < len(text):
        line = text.count("\n", 0, at) + 1
        if header := _HEADER.match(text, at):
            table = _parts(header[1])
            _note(lines, table, line)
            at = header.end()
        elif entry := _ENTRY.match(text, at):
            keys = (*table, *_parts(entry[1]))
            _note(lines, keys, line)
            at = _after_value(text, entry.end(), keys, lines)
            continue
        at = text.find("\n", at) + 1 or len(text)
    return lines


def _parts(key: str) -> tuple[str, ...]:
    return tuple(part.strip("\"'") for part in re.findall(_PART, key))


def _note(lines: dict[tuple[str, ...], int], keys: tuple[str, ...], line: int) -> None:
    for length in range(1, len(keys) + 1):
        lines.setdefault(keys[:length], line)


def _after_value(text: str, at: int, keys: tuple[str, ...], lines: dict[tuple[str, ...], int]) -> int:
    """Where the line after a value begins. Notes the lines of texts in a list."""
    depth = count = 0
    for token in _TOKEN.finditer(text, at):
        word = token[0]
        if word in "[{":
            depth += 1
        elif word in "]}":
            depth -= 1
        elif word == "\n" and depth == 0:
            return token.end()
        elif word[0] in "\"'" and depth == 1:
            element = (*keys, str(count))
            lines[element] = text.count("\n", 0, token.start()) + 1
            count += 1
    return len(text)
