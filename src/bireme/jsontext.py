"""Reads untrusted JSON: any text is either read, or refused with a ValueError.

Python's own reader raises RecursionError on deep nesting, and returns numbers too large for arithmetic. This reader
limits the nesting to 100 levels and whole numbers to 100 digits: these, and products of two, fit into a float.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_MOST_DEEP = 100
_MOST_DIGITS = 100
_TOO_DEEP = f"nested more than {_MOST_DEEP} deep"
_TOO_LONG = f"a whole number of more than {_MOST_DIGITS} digits"
_TOKEN = rf'"(?:\\.|[^"\\])*"|[{{}}\[\]]|\d{{{_MOST_DIGITS + 1},}}'


def loads(text: str | bytes, *, finite: bool = False) -> Any:
    """Parse a JSON text.

    Args:
        text: JSON; bytes are UTF-8.
        finite: refuse NaN and infinite numbers, which are not JSON.

    Raises:
        ValueError: the text is not JSON, or exceeds a limit; a ``json.JSONDecodeError`` if the line and column are
            known.
    """
    import json

    if isinstance(text, bytes):
        text = text.decode()
    try:
        value = json.loads(text, parse_constant=_refuse if finite else None)
    except (RecursionError, MemoryError):
        raise _error(_TOO_DEEP, text) from None
    except json.JSONDecodeError:
        raise
    except ValueError as error:  # Python's own limit of digits, or ours
        raise error if str(error).endswith(_NO_VALUE) else _error(_TOO_LONG, text) from None
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
                return f"{each}{_NO_VALUE}"
            elif isinstance(each, int) and abs(each) >= 10**_MOST_DIGITS:
                return _TOO_LONG
        level = inner
    return ""


_INFINITE = float("inf")
_NO_VALUE = " is not a JSON value"


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word}{_NO_VALUE}")


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
