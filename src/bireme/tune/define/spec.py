"""Reads how sure an answer must be and which difference matters, in percent as a user writes them: ``95`` or ``2%``.

Bounds are in percent. Those of the effect refuse a fraction (``0.05`` for 5 %): such a study would take 10,000 times as
many rounds.
"""

from __future__ import annotations

from bireme.errors import BadInputError

_BOUNDS = {"confidence": (50, 99.99), "effect": (0.1, 100)}


def share_of(text: str, name: str, where: str) -> float:
    """A share such as 0.95 from ``confidence`` or ``effect`` in percent.

    Raises:
        BadInputError: it is not a number, or out of bounds.
    """
    if wrong := wrong_percent(text.strip().removesuffix("%"), name):
        raise BadInputError(f"{text!r} {wrong}", where=where)
    return float(text.strip().removesuffix("%")) / 100


def wrong_percent(value: object, name: str) -> str:
    """Why ``value`` is no percentage for ``confidence`` or ``effect``; "" if it is one."""
    least, most = _BOUNDS[name]
    try:
        number = float("nan" if isinstance(value, bool) else value)  # type: ignore[arg-type]  # the error says it
    except (TypeError, ValueError):
        number = float("nan")
    return "" if least <= number <= most else f"is not a number of percent from {least:g} to {most:g}"
