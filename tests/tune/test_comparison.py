"""The interval of a paired comparison: it holds at every look, and is short enough to be of use."""

from __future__ import annotations

import math
import random

import pytest

from bireme.tune.study.comparison import Interval, interval, quantile

LOOKS = 60


def excluded(alpha: float, seed: int, mean: float = 0.0) -> int:
    """The first number of rounds after which 0 is excluded; 0: never."""
    draw = random.Random(seed)
    differences: list[float] = []
    for count in range(1, LOOKS + 1):
        differences.append(draw.gauss(mean, 0.03))
        found = interval(differences, alpha)
        if found.low > 0 or found.high < 0:
            return count
    return 0


def test_it_holds_at_all_looks_together():
    """A t-interval of a fixed number of rounds, looked at each time, excludes the truth in one of three."""
    wrong = sum(bool(excluded(0.05, seed)) for seed in range(400))
    assert wrong <= 0.05 * 400


def test_a_difference_is_found():
    rounds = [excluded(0.05, seed, mean=0.04) for seed in range(100)]
    assert all(rounds) and sorted(rounds)[50] <= 15


def test_the_closed_form_is_that_of_the_e_process():
    """At both ends of the interval, the e-process of Wang and Ramdas is 1 / alpha."""
    differences = [0.03, 0.05, 0.01, 0.04, 0.06, 0.02]
    found, count, prior = interval(differences, 0.05), len(differences), 0.1
    for end in (found.low, found.high):
        moved = [each - end for each in differences]
        total, squares = sum(moved), sum(each * each for each in moved)
        ratio = squares / (squares - total**2 / (count + prior))
        assert math.sqrt(prior / (count + prior)) * ratio ** (count / 2) == pytest.approx(20)


def test_too_few_rounds_say_nothing():
    assert interval([], 0.05).high == math.inf
    assert interval([0.5], 0.05).low == -math.inf
    assert interval([0.5, 0.5], 0.05).plausible(9.0)


def test_figures_without_noise_are_certain():
    found = interval([0.1] * 6, 0.05)
    assert found.low == pytest.approx(0.1) and found.high == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("normal", "freedom", "expected"),
    [(1.96, 2, 4.303), (1.96, 3, 3.182), (1.96, 10, 2.228), (1.96, 120, 1.980), (2.326, 2, 6.965), (2.326, 8, 2.896)],
)
def test_quantiles_are_those_of_the_tables(normal, freedom, expected):
    assert quantile(normal, freedom) == pytest.approx(expected, rel=0.03)


def test_the_other_way_round():
    found = interval([0.03, 0.05, 0.01, 0.04, 0.06, 0.02], 0.05)
    assert found.negated == Interval(
        mean=-found.mean, low=-found.high, high=-found.low, error=found.error, count=found.count
    )
