"""Reads a length of time as a user writes it: ``90``, ``90s``, ``30m``, ``1.5h``, ``1h30m``, ``1d``."""

from __future__ import annotations

from bireme.errors import BadInputError

_SECONDS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


def seconds_of(text: str, where: str) -> float:
    """Seconds from a length of time, which may be 0; ``where`` is the option, for the error.

    Raises:
        BadInputError: it is none.
    """
    try:
        seconds = float(text)
    except ValueError:
        seconds = _with_units(text)
    if not 0 <= seconds < float("inf"):
        raise BadInputError(f"{text[:40]!r} is not a length of time (expected e.g. 90s, 30m or 2h)", where=where)
    return seconds


def _with_units(text: str) -> float:
    """Seconds from numbers with units; -1: it is something else."""
    import re  # takes milliseconds, which a plain number does not need

    parts = re.findall(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    whole = "".join(number + unit for number, unit in parts) == re.sub(r"\s", "", text.lower())
    if not parts or not whole or any(unit not in _SECONDS for _, unit in parts):
        return -1.0
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)
