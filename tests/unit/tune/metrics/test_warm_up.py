"""Where a series becomes steady: with and without a warm-up, with pauses, with drift."""

from __future__ import annotations

from collections.abc import Callable
from math import exp, sqrt
from random import Random

import pytest

from bireme.tune.metrics.warm_up import SteadyPart, steady_part

NOISE = 0.02
SERIES = 200

Shape = Callable[[int, int, Random], float]
"""What a reading is off by: its index, the number of readings."""

NO_WARM_UP: Shape = lambda index, count, random: 0.0  # noqa: E731
FIRST: Shape = lambda index, count, random: -0.6 * (index == 0)  # noqa: E731
STEP: Shape = lambda index, count, random: -0.3 * (index < count // 3)  # noqa: E731
SLOWLY: Shape = lambda index, count, random: -0.3 * exp(-index / (count / 15))  # noqa: E731
PAUSES: Shape = lambda index, count, random: -0.4 * (random.random() < 0.05) + 0.02  # noqa: E731


def parts(shape: Shape, count: int) -> list[SteadyPart]:
    random = Random(count)
    return [
        steady_part([1 + shape(index, count, random) + random.gauss(0, NOISE) for index in range(count)])
        for _ in range(SERIES)
    ]


def spread(found: list[SteadyPart]) -> float:
    """How far the means are from the truth, 1."""
    return sqrt(sum((part.mean - 1) ** 2 for part in found) / len(found))


@pytest.mark.parametrize("count", [3, 5, 10, 30, 100, 300])
@pytest.mark.parametrize("shape", [NO_WARM_UP, FIRST, STEP])
def test_the_mean_is_that_of_the_steady_part(shape: Shape, count: int) -> None:
    found = parts(shape, count)
    steady = sum(shape(index, count, Random(0)) == 0 for index in range(count))
    assert spread(found) < 1.35 * NOISE / sqrt(steady)
    assert sum(part.settled for part in found) >= 0.99 * SERIES


@pytest.mark.parametrize("count", [10, 30, 100, 300])
def test_a_warm_up_that_ends_slowly_is_mostly_left_out(count: int) -> None:
    found = parts(SLOWLY, count)
    assert spread(found) < 0.011  # of a bias of 0.02 where nothing is left out
    assert sum(part.settled for part in found) >= 0.97 * SERIES


def test_what_is_left_out_for_nothing() -> None:
    for count, share in ((3, 0.2), (10, 0.2), (30, 0.1), (100, 0.05), (300, 0.02)):
        assert sum(part.left_out for part in parts(NO_WARM_UP, count)) <= share * count * SERIES


def test_pauses_that_come_again_stay() -> None:
    found = parts(PAUSES, 100)
    assert sum(part.left_out for part in found) < 0.15 * 100 * SERIES
    assert abs(sum(part.mean for part in found) / SERIES - 1) < 0.01


def test_a_series_that_keeps_changing_is_said_to() -> None:
    drift: Shape = lambda index, count, random: 0.3 * index / count  # noqa: E731
    for count in (40, 100, 300):
        assert sum(part.settled for part in parts(drift, count)) <= 0.05 * SERIES


def test_series_too_short_to_judge() -> None:
    assert steady_part([5.0]) == SteadyPart(0, 5.0)
    assert steady_part([1.0, 5.0]) == SteadyPart(0, 3.0)
    assert steady_part([1.0, 5.0, 5.0]) == SteadyPart(1, 5.0)
    assert steady_part([5.0] * 40) == SteadyPart(0, 5.0)
    assert steady_part([1e12 + 1, 1e12 + 2] * 20) == SteadyPart(0, 1e12 + 1.5)  # nothing is lost by rounding
