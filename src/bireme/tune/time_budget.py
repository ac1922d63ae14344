"""Reads a length of time as a user writes it: ``90``, ``90s``, ``30m``, ``1.5h``, ``1h30m``, ``1d``."""

from __future__ import annotations

import re

from bireme.errors import BadInputError

_SECONDS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


def seconds_of(text: str, where: str) -> float:
    """Seconds from a length of time.

    Raises:
        BadInputError: it is none, or not above 0.
    """
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    whole = "".join(number + unit for number, unit in parts) == re.sub(r"\s", "", text.lower())
    if not parts or not whole or any(unit not in _SECONDS for _, unit in parts):
        raise BadInputError(f"{text!r} is not a length of time (expected e.g. 90s, 30m or 2h)", where=where)
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if seconds <= 0:
        raise BadInputError("must be above 0", where=where)
    return seconds
