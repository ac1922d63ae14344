"""Reads a configuration as JSON or HJSON, and reports errors with line and column.

JSON is tried first: it is stricter, and its errors point at the mistake. Text that is not JSON may be HJSON (comments,
no commas), which DeepSpeed reads too.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Callable, Iterator

from bireme import jsontext
from bireme.errors import BadInputError
from bireme.resources.hostfile import read_text
from bireme.tune import requirements
from bireme.value import Value

Path = tuple[str, ...]

ENCODED = "the configuration in base64"

TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|[{}\[\],:]')

BEGINNING = re.compile(r"(?:\s|#.*\n|//.*\n|/\*(?:[^*]|\*(?!/))*\*/)*\{")
"""The first brace, preceded only by comments."""

_HEAD = 65536
"""Characters of a file that are searched for it."""


class Document(Value):
    """A parsed file. ``lines``: the line of each key; empty for HJSON."""

    path: str
    data: dict[str, object]
    lines: dict[Path, int]

    def where(self, *path: str) -> str:
        """``file:line`` of this key, or of the nearest enclosing key whose line is known."""
        while path and path not in self.lines:
            path = path[:-1]
        return f"{self.path}:{self.lines[path]}" if path else self.path


def read_document(path: str) -> Document:
    """Read a configuration.

    Args:
        path: its file, or the whole configuration in base64, which ``deepspeed.initialize`` accepts too.

    Raises:
        BadInputError: it cannot be read, is empty, malformed (with line and column) or not an object, or has a
            duplicate key (with both lines).
    """
    text = decoded(path)
    if text is None:
        text = read_text(path).replace("\r\n", "\n")
    else:
        path = ENCODED
    if not text.strip():
        raise BadInputError("is empty", where=path)
    try:
        data = jsontext.loads(text, finite=True)
    except ValueError as error:
        _refuse_no_numbers(path, text, error)
        return _hjson(path, text, error)
    _must_be_object(path, data)
    return Document(path, data, _key_lines(path, text))


def decoded(word: str) -> str | None:
    """Decode a configuration in base64; None if the word is not one, or is the path of a file."""
    if os.path.exists(word):
        return None
    try:
        text = base64.b64decode(word.encode(), b"-_", validate=True).decode()
    except ValueError:
        return None
    return text if text.lstrip().startswith("{") else None


def looks_like_one(path: str) -> bool:
    """Whether the path is a file that begins like a configuration, whatever its name and even if it is malformed."""
    if not os.path.isfile(path):  # reading a pipe would take its content from the script
        return False
    try:
        with open(path, encoding="utf-8-sig") as file:
            return bool(BEGINNING.match(file.read(_HEAD)))
    except (OSError, UnicodeDecodeError):
        return False


def _must_be_object(path: str, data: object) -> None:
    if not isinstance(data, dict):
        raise BadInputError("not an object: a configuration is {...}", where=path)


# -- JSON --------------------------------------------------------------------------------------------


def _key_lines(path: str, text: str) -> dict[Path, int]:
    """The line of each key by its path; the path of a key in a list contains the element's number."""
    lines: dict[Path, int] = {}
    for keys, start in _keys(text):
        line = text.count("\n", 0, start) + 1
        if keys in lines:
            column = start - text.rfind("\n", 0, start)
            raise BadInputError(
                f"duplicate key: {'.'.join(keys)!r}",
                hint=f"it is first set on line {lines[keys]}: keep one of the two",
                where=f"{path}:{line}:{column}",
            )
        lines[keys] = line
    return lines


def _keys(text: str) -> Iterator[tuple[Path, int]]:
    """Yield (path, offset) of each key in a text that is valid JSON."""
    stack: list[str | int] = []
    in_object: list[bool] = []
    key_follows = False
    for token in TOKEN.finditer(text):
        word = token[0]
        if word in "{[":
            in_object.append(word == "{")
            stack.append("" if word == "{" else 0)
            key_follows = word == "{"
        elif word in "}]":
            in_object.pop()
            stack.pop()
            key_follows = False
        elif word == ",":
            key_follows = in_object[-1]
            last = stack[-1]
            stack[-1] = "" if isinstance(last, str) else last + 1
        elif key_follows and word != ":":
            stack[-1] = json.loads(word)
            yield tuple(map(str, stack)), token.start()
            key_follows = False


def _refuse_no_numbers(path: str, text: str, error: ValueError) -> None:
    """Raise BadInputError if the text contains NaN or Infinity, which Python writes, and HJSON takes for a string."""
    if hasattr(error, "lineno"):
        return
    for found in re.finditer(r'"(?:\\.|[^"\\])*"|(NaN|-?Infinity)', text):
        if found[1]:
            line, column = text.count("\n", 0, found.start()) + 1, found.start() - text.rfind("\n", 0, found.start())
            where = f"{path}:{line}:{column}"
            raise BadInputError(f"{found[1]} is not a number in JSON", hint="write a number, or null", where=where)


# -- HJSON -------------------------------------------------------------------------------------------


def _hjson(path: str, text: str, json_error: ValueError) -> Document:
    requirements.check("not JSON, and reading HJSON", "hjson", where=path)  # a scheduler of JSON files needs no hjson
    import hjson

    try:
        data = hjson.loads(text, object_pairs_hook=_once(path, text))
        if wrong := jsontext.what_is_wrong(data, finite=True):
            raise _broken(path, text, json_error, ValueError(wrong))
    except BadInputError:
        raise
    except (ValueError, ArithmeticError, RecursionError, MemoryError) as error:  # hjson's own error is a ValueError
        raise _broken(path, text, json_error, error) from None
    _must_be_object(path, data)
    return Document(path, data, {})


def _once(path: str, text: str) -> Callable[[list[tuple[str, object]]], dict[str, object]]:
    """An ``object_pairs_hook`` that refuses duplicate keys."""

    def check(pairs: list[tuple[str, object]]) -> dict[str, object]:
        seen: dict[str, object] = {}
        for key, value in pairs:
            if key in seen:
                raise BadInputError(f"duplicate key: {key!r}", where=_second(path, text, key))
            seen[key] = value
        return seen

    return check


def _second(path: str, text: str, key: str) -> str:
    """``file:line`` of the second occurrence of this key, as far as the text shows it."""
    found = [match.start() for match in re.finditer(rf"^[\s{{,]*[\"']?{re.escape(key)}[\"']?\s*:", text, re.MULTILINE)]
    return f"{path}:{text.count(chr(10), 0, found[-1]) + 1}" if len(found) > 1 else path


def _broken(path: str, text: str, json_error: ValueError, hjson_error: Exception) -> BadInputError:
    # A file with comments was meant as HJSON; for any other, JSON's error is nearer to the mistake.
    as_hjson = path.endswith(".hjson") or re.search(r"^\s*(#|//|/\*)", text, re.MULTILINE)
    error = hjson_error if as_hjson or not hasattr(json_error, "lineno") else json_error
    line, column = getattr(error, "lineno", 1), getattr(error, "colno", 1)
    said = getattr(error, "msg", str(error))
    return BadInputError(
        f"invalid {'HJSON' if as_hjson else 'JSON'}: {said[:1].lower()}{said[1:]}", where=f"{path}:{line}:{column}"
    )
