"""Reads whole numbers, sizes and durations as a user writes them: ``3``, ``500M``, ``90``, ``30m``, ``1h30m``."""

from __future__ import annotations

import os

from bireme.errors import BadInputError

_BYTES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SECONDS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


def whole(text: str, where: str) -> int:
    """Read a whole number of fewer than ten digits; ``where`` is the option, for the error."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal()):
        raise BadInputError(f"{text[:40]!r} is not a whole number", hint=missing_value(text, where), where=where)
    if len(digits) >= 10:
        shown = text if len(text) <= 40 else f"{text[:12]}… ({len(digits)} digits)"
        raise BadInputError(f"{shown} is too large", hint="expected fewer than 10 digits", where=where)
    return int(text)


def missing_value(text: str, where: str, placeholder: str = "N") -> str:
    """The hint for a script in the place of a value, which was left out; "" for any other text."""
    is_script = text.endswith(".py") or (os.sep in text and os.path.isfile(text))
    return f"the value is missing: {where} {placeholder} {text}" if is_script else ""


def bytes_of(text: str, where: str) -> int:
    """Read a number of bytes: ``500M``, ``2GiB``, ``1000000``."""
    digits = text.upper().removesuffix("B").removesuffix("I")
    factor = _BYTES.get(digits[-1:], 1)
    digits = digits[:-1] if factor > 1 else digits
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 16 and int(digits)):
        raise BadInputError(f"{text[:40]!r} is not a size", hint="expected e.g. 500M or 2G", where=where)
    return int(digits) * factor


def seconds_of(text: str, where: str) -> float:
    """Seconds from a duration, which may be 0."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = _with_units(text)
    if not 0 <= seconds < float("inf"):
        raise BadInputError(f"{text[:40]!r} is not a duration (e.g. 90s, 30m or 2h)", where=where)
    return seconds


def _with_units(text: str) -> float:
    """Seconds from numbers with units; -1: it is something else."""
    import re  # takes milliseconds, which a plain number does not need

    parts = re.findall(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    whole = "".join(number + unit for number, unit in parts) == re.sub(r"\s", "", text.lower())
    if not parts or not whole or any(unit not in _SECONDS for _, unit in parts):
        return -1.0
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)
