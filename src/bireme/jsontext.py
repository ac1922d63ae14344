"""Reads and writes JSON without the package ``json``, and reads untrusted JSON: it is either read, or refused.

Importing ``json`` brings ``re``, ``enum``, ``functools`` and ``collections`` along, which would be a quarter of the CPU
time of an agent. Its parts in C need none of them. They are used by themselves where they are as expected; ``json``
does the work elsewhere, and words the errors.

`loads` is for untrusted texts. Python's own reader raises RecursionError on deep nesting, and returns numbers too large
for arithmetic. `loads` limits the nesting to 100 levels and whole numbers to 100 digits: these, and products of two,
fit into a float.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

_INFINITE = float("inf")
_CONSTANTS = {"NaN": _INFINITE - _INFINITE, "Infinity": _INFINITE, "-Infinity": -_INFINITE}
_BLANKS = " \t\n\r"


class _Reading:
    """What the scanner in C wants to know: what Python makes of each kind of value."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float, parse_int = float, int

    def __init__(self, parse_constant: Callable[[str], Any]) -> None:
        self.parse_constant = parse_constant


def _unknown(value: object) -> NoReturn:
    raise TypeError(f"{type(value).__name__} has no form in JSON")


_scan: Callable[[str, int], tuple[Any, int]] | None
_encode: Callable[[object, int], tuple[str, ...]] | None
try:
    from _json import encode_basestring_ascii, make_encoder, make_scanner

    _scan = make_scanner(_Reading(_CONSTANTS.__getitem__))  # type: ignore[arg-type]
    _encode = make_encoder(None, _unknown, encode_basestring_ascii, None, ":", ",", False, False, True)
except (ImportError, AttributeError, TypeError):  # another Python than CPython 3.10 to 3.14
    _scan = _encode = None


def dumps(value: object) -> str:
    """The JSON text of a plain value, in ASCII and without blanks.

    Raises:
        TypeError: it has no form in JSON.
    """
    if _encode is not None:
        return "".join(_encode(value, 0))
    import json

    return json.dumps(value, separators=(",", ":"))


def parse(text: str) -> Any:
    """Parse a JSON text, as ``json.loads`` does.

    Raises:
        json.JSONDecodeError: the text is not JSON.
        ValueError: it has a whole number of too many digits.
        RecursionError: it is nested too deep.
    """
    if _scan is not None:
        try:
            value, end = _scan(text, len(text) - len(text.lstrip(_BLANKS)))
            if end == len(text.rstrip(_BLANKS)):
                return value
        except (StopIteration, ValueError, SystemError):  # the last: an error while ``json`` is not imported
            pass
    import json

    return json.loads(text)  # it says what is wrong


_MOST_DEEP = 100
_MOST_DIGITS = 100
_TOO_DEEP = f"nested more than {_MOST_DEEP} deep"
_TOO_LONG = f"a whole number of more than {_MOST_DIGITS} digits"
_TOKEN = rf'"(?:\\.|[^"\\])*"|[{{}}\[\]]|\d{{{_MOST_DIGITS + 1},}}'


def loads(text: str | bytes, *, finite: bool = False) -> Any:
    """Parse a JSON text.

    Args:
        finite: refuse NaN and infinite numbers, which are not JSON.

    Raises:
        ValueError: the text is not JSON, or exceeds a limit; a ``json.JSONDecodeError`` if the line and column are
            known.
    """
    if isinstance(text, bytes):
        text = text.decode()
    try:
        value = parse(text)
    except (RecursionError, MemoryError):
        raise _error(_TOO_DEEP, text) from None
    except ValueError as error:
        from json import JSONDecodeError

        raise error if isinstance(error, JSONDecodeError) else _error(_TOO_LONG, text) from None
    if wrong := what_is_wrong(value, finite=finite):
        raise _error(wrong, text)
    return value


def what_is_wrong(value: object, *, finite: bool = False) -> str:
    """The limit that a parsed value exceeds, for an error message; "" if none."""
    level = [value]
    for depth in range(_MOST_DEEP + 1):
        inner: list[object] = []
        for each in level:
            if isinstance(each, (dict, list)):
                if depth == _MOST_DEEP:
                    return _TOO_DEEP
                inner += each.values() if isinstance(each, dict) else each
            elif isinstance(each, float) and finite and not -_INFINITE < each < _INFINITE:
                return f"{dumps(each)} is not a JSON value"
            elif isinstance(each, int) and abs(each) >= 10**_MOST_DIGITS:
                return _TOO_LONG
        level = inner
    return ""


def _error(what: str, text: str) -> ValueError:
    """The error for a text that exceeds a limit, with the position if it can be found."""
    import json
    import re

    depth = 0
    for token in re.finditer(_TOKEN, text):
        word = token[0]
        depth += (word in "{[") - (word in "}]")
        if (what == _TOO_DEEP and depth > _MOST_DEEP) or (what == _TOO_LONG and word.isdecimal()):
            return json.JSONDecodeError(what, text, token.start())
    return ValueError(what)
