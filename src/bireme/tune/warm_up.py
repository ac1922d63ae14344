"""Finds where the steady part of a series of readings begins."""

from __future__ import annotations

from collections.abc import Sequence

from bireme.value import Value


class SteadyPart(Value):
    """The steady part of a series.

    Attributes:
        left_out: how many readings at the beginning are left out.
        mean: of the others.
        settled: whether the series had become steady.
    """

    left_out: int
    mean: float
    settled: bool = True


def steady_part(values: Sequence[float]) -> SteadyPart:
    """Find the steady part of a series of at least one reading."""
    count = len(values)
    best, fewest = float("inf"), 0
    total = squares = 0.0
    shift = values[-1]
    for start in range(count - 1, -1, -1):
        off = values[start] - shift
        total, squares = total + off, squares + off * off
        kept = count - start
        if start <= count // 2:
            error = max(0.0, squares - total * total / kept) / kept**2
            if error <= best:
                best, fewest = error, start
    kept_values = values[fewest:]
    return SteadyPart(fewest, sum(kept_values) / len(kept_values), True)
