"""Reading JSON and HJSON so that whatever is wrong is told with its line and column.

JSON is tried first: it is stricter, and its errors are where the mistake is. What is no JSON may
still be HJSON (comments, no commas), which the engine reads too.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Callable, Iterator

from bireme import jsontext
from bireme.errors import BadInputError
from bireme.tune import requirements
from bireme.value import Value

Path = tuple[str, ...]

ENCODED = "the configuration in base64"

TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|[{}\[\],:]')

BEGINNING = re.compile(r"(?:\s|#.*\n|//.*\n|/\*(?:[^*]|\*(?!/))*\*/)*\{")
"""The first brace, before which there is nothing but comments."""

_HEAD = 65536
"""Characters of a file in which it is looked for."""


class Document(Value):
    """What a file says, and on which line each key stands (`lines`; empty for HJSON)."""

    path: str
    data: dict[str, object]
    lines: dict[Path, int]

    def where(self, *path: str) -> str:
        """``file:line`` of this key, or of the nearest one around it whose line is known."""
        while path and path not in self.lines:
            path = path[:-1]
        return f"{self.path}:{self.lines[path]}" if path else self.path


def read_document(path: str) -> Document:
    """Reads a configuration.

    Args:
        path: its file, or the whole configuration in base64, as ``deepspeed.initialize`` takes it too.

    Raises:
        BadInputError: it cannot be read, is empty or broken (with line and column), is no object, or has a key
            twice (with both lines).
    """
    text = decoded(path)
    if text is None:
        text = _text(path)
    else:
        path = ENCODED
    if not text.strip():
        raise BadInputError("is empty", where=path)
    try:
        data = jsontext.loads(text, finite=True)
    except ValueError as error:
        return _hjson(path, text, error)
    _must_be_object(path, data)
    return Document(path, data, _key_lines(path, text))


def decoded(word: str) -> str | None:
    """What a word says that is a configuration in base64; None: it is none, or the path of a file."""
    if os.path.exists(word):
        return None
    try:
        text = base64.b64decode(word.encode(), b"-_", validate=True).decode()
    except ValueError:
        return None
    return text if text.lstrip().startswith("{") else None


def looks_like_one(path: str) -> bool:
    """Whether there is a file that begins as a configuration does, whatever its name; broken or not, it is meant."""
    if not os.path.isfile(path):  # to read a pipe would take from it what the script is to find there
        return False
    try:
        with open(path, encoding="utf-8-sig") as file:
            return bool(BEGINNING.match(file.read(_HEAD)))
    except (OSError, UnicodeDecodeError):
        return False


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8-sig") as file:
            return file.read()
    except OSError as error:
        raise BadInputError(f"cannot be read: {error.strerror}", where=path) from None
    except UnicodeDecodeError as error:
        raise BadInputError(f"is not UTF-8 text (byte {error.start})", where=path) from None


def _must_be_object(path: str, data: object) -> None:
    if not isinstance(data, dict):
        raise BadInputError("a configuration is an object: {...}", where=path)


# -- JSON --------------------------------------------------------------------------------------------


def _key_lines(path: str, text: str) -> dict[Path, int]:
    """The line of each key, by its path; keys in lists of objects have the number of the element in theirs."""
    lines: dict[Path, int] = {}
    for keys, start in _keys(text):
        line = text.count("\n", 0, start) + 1
        if keys in lines:
            column = start - text.rfind("\n", 0, start)
            raise BadInputError(
                f"{'.'.join(keys)!r} stands here for the second time",
                hint=f"the first is on line {lines[keys]}: keep one",
                where=f"{path}:{line}:{column}",
            )
        lines[keys] = line
    return lines


def _keys(text: str) -> Iterator[tuple[Path, int]]:
    """(path, offset) of each key in a text that is known to be JSON."""
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
    """What hjson is to make objects with."""

    def check(pairs: list[tuple[str, object]]) -> dict[str, object]:
        seen: dict[str, object] = {}
        for key, value in pairs:
            if key in seen:
                raise BadInputError(f"{key!r} stands twice in one object", where=_second(path, text, key))
            seen[key] = value
        return seen

    return check


def _second(path: str, text: str, key: str) -> str:
    """``file:line`` of the second place where this key is written, as far as that can be told from the text."""
    found = [match.start() for match in re.finditer(rf"^[\s{{,]*[\"']?{re.escape(key)}[\"']?\s*:", text, re.MULTILINE)]
    return f"{path}:{text.count(chr(10), 0, found[-1]) + 1}" if len(found) > 1 else path


def _broken(path: str, text: str, json_error: ValueError, hjson_error: Exception) -> BadInputError:
    # A file with comments was meant as HJSON; of any other, JSON's error is nearer to the mistake.
    as_hjson = path.endswith(".hjson") or re.search(r"^\s*(#|//|/\*)", text, re.MULTILINE)
    error = hjson_error if as_hjson or not hasattr(json_error, "lineno") else json_error
    line, column = getattr(error, "lineno", 1), getattr(error, "colno", 1)
    said = getattr(error, "msg", str(error))
    return BadInputError(
        f"broken {'HJSON' if as_hjson else 'JSON'}: {said[:1].lower()}{said[1:]}", where=f"{path}:{line}:{column}"
    )
