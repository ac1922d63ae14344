"""The interval of a paired comparison: it holds at every look, and is short enough to be of use."""

from __future__ import annotations

import math
import random

import pytest

from bireme.tune.study.comparison import Interval, certain, interval, least_rounds, quantile

LOOKS = 60


def excluded(alpha: float, seed: int, mean: float = 0.0) -> int:
    """The first number of rounds after which 0 is excluded; 0: never."""
    draw = random.Random(seed)
    differences: list[float] = []
    for count in range(1, LOOKS + 1):
        differences.append(draw.gauss(mean, 0.03))
        if certain(differences, alpha) or certain([-each for each in differences], alpha / 4):
            return count
    return 0


def test_it_holds_at_all_looks_together():
    """A t-interval of a fixed number of rounds, looked at each time, excludes the truth in one of three."""
    wrong = sum(bool(excluded(0.05, seed)) for seed in range(400))
    assert wrong <= 0.05 * 400


def test_a_difference_is_found():
    rounds = [excluded(0.05, seed, mean=0.04) for seed in range(100)]
    assert all(rounds) and sorted(rounds)[50] <= 15


def test_it_is_that_of_the_e_process():
    """Refuted are the means by which the mixture of the products of 2 / (1 + exp(-2 k x / spread)) is 1 / alpha."""
    differences = [0.03, 0.05, 0.01, 0.04, 0.06, 0.02, 0.03, 0.05]
    spreads = [0.04]
    for count in range(1, len(differences)):
        before = differences[:count]
        around = sum((each - sum(before) / count) ** 2 for each in before)
        spreads.append(math.sqrt((around + 0.04**2) / count))
    found = interval(differences, 0.05, 0.04)
    for end, sign, part in ((found.low, 1, 0.8), (found.high, -1, 0.2)):
        products = [
            math.prod(
                2 / (1 + math.exp(-2 * rate * sign * (each - end) / spread))
                for each, spread in zip(differences, spreads, strict=True)
            )
            for rate in (4, 2, 1, 0.5, 0.25, 0.125)
        ]
        assert sum(products) / len(products) == pytest.approx(1 / (0.05 * part), rel=1e-6)
    assert certain(differences, 0.05, 0.04) == (found.low > 0)


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.999])
def test_a_few_differences_of_one_sign_are_not_certain(confidence):
    """By chance, n of them have this sign in one of 2^n cases, however great they are."""
    alpha = 1 - confidence
    few = least_rounds(alpha) - 1
    assert 2**few < 1 / (0.8 * alpha) <= 2 ** (few + 1)
    assert not certain([50.0] * few, alpha) and interval([50.0] * few, alpha).low == -math.inf
    assert certain([50.0] * (few + 3), alpha)
    assert least_rounds(0.05) >= 5


@pytest.mark.parametrize("kind", ["normal", "two states", "heavy tails", "skewed", "every second", "drift"])
def test_it_holds_for_any_noise_in_random_order(kind):
    """Two runs of a round differ by the noise of their places alone: which is whose is chance."""
    wrong = missed = 0
    for seed in range(150):
        draw = random.Random(f"{kind} {seed}")
        differences: list[float] = []
        for count in range(LOOKS):
            noise = {
                "normal": lambda place, draw=draw: draw.gauss(0, 0.05),
                "two states": lambda place, draw=draw: 0.2 * (draw.random() < 0.3),
                "heavy tails": lambda place, draw=draw: 0.02 * draw.gauss(0, 1) / math.sqrt(draw.expovariate(1)),
                "skewed": lambda place, draw=draw: -draw.expovariate(20),
                "every second": lambda place, draw=draw: 0.08 * (place % 2) + draw.gauss(0, 0.01),
                "drift": lambda place, draw=draw: 0.01 * place + draw.gauss(0, 0.01),
            }[kind]
            places = [2 * count, 2 * count + 1]
            draw.shuffle(places)
            differences.append(noise(places[0]) - noise(places[1]))
            if certain(differences, 0.05):
                wrong += 1
                break
        found = interval(differences, 0.05)
        missed += not found.low <= 0 <= found.high
    assert wrong <= 0.05 * 150 and missed <= 0.07 * 150


def test_too_few_rounds_say_nothing():
    assert interval([], 0.05).high == math.inf
    assert interval([0.5], 0.05).low == -math.inf
    assert interval([0.5, 0.5], 0.05).plausible(9.0)


def test_figures_without_noise_are_certain():
    found = interval([0.1] * 12, 0.05)
    assert found.low == pytest.approx(0.1, abs=0.01) and found.high == pytest.approx(0.1, abs=0.02)


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
