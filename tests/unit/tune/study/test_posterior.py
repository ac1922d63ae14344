"""What is likely of points by all their runs: whether probabilities are true, and what makes a few runs enough."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest

from bireme.tune.study import posterior
from bireme.tune.study.posterior import Posterior

EFFECT = 0.02


def known(
    scores: Sequence[float], runs: int, noise: float, seed: int, *, level: float = 0.0, alone: int = 3
) -> Posterior:
    """After runs alone and rounds of all points, whose levels differ by ``level``."""
    draw = random.Random(seed)
    searched = [[score + draw.gauss(0, math.hypot(noise, level)) for _ in range(alone)] for score in scores]
    rows = []
    for _ in range(runs):
        of_round = draw.gauss(0, level)
        rows.append([score + of_round + draw.gauss(0, noise) for score in scores])
    return Posterior(searched, rows, (math.hypot(noise, level), len(scores) * (alone - 1)), EFFECT)


def test_what_is_near_the_best_with_a_probability_is_near_it_as_often():
    """In every second study one of 24 points is ahead. Rare doubts about many points are doubts about the choice."""
    said, near = [], 0
    for seed in range(80):
        scores = [0.0] * 24
        scores[7] = 0.04 * (seed % 2)
        found = known(scores, 3 + seed % 12, 0.06, seed)
        leader = int(found.means.argmax())
        said.append(found.near[leader])
        near += max(scores) - scores[leader] <= EFFECT
    assert near >= sum(said) - 3.5


def test_points_that_are_better_by_the_same_amount_are_ties():
    """A quarter is 4 % better: that they are as good as each other is learnt from all of them."""
    found = known([0.0] * 18 + [0.04] * 6, 12, 0.03, 1)
    assert sorted(found.loss[18:])[4] < EFFECT / 6 < 0.03 < min(found.loss[:18])


@pytest.mark.parametrize(("level", "part"), [(0.0, 2 / 3), (0.3, 1 / 2)])
def test_rounds_on_the_same_level_tell_more_than_rounds_whose_levels_differ(level: float, part: float):
    """Each round runs two of three points. Where it has its own level, a run of each tells nothing but that."""
    draw, rows = random.Random(2), []
    for number in range(60):
        of_round = draw.gauss(0, level)
        rows.append([of_round + draw.gauss(0, 0.03) if place != number % 3 else math.nan for place in range(3)])
    found = Posterior([[], [], []], rows, (None, 0), EFFECT)
    assert found.counts == pytest.approx([40 * part] * 3, rel=0.05)
    assert found.noise == pytest.approx(0.03, rel=0.2)


def test_one_lucky_run_is_no_leader():
    """Three runs of 24 equal points with 10 % of noise: the best by chance is drawn back to the others."""
    found = known([0.0] * 24, 0, 0.1, 3)
    leader = int(found.means.argmax())
    assert found.means[leader] - sorted(found.means)[12] < 0.03 and not found.good


def test_the_doubt_is_divided_among_the_leader_and_who_may_be_better():
    """The leader has run rarely, so the doubt is its own; what is far behind has none."""
    draw = random.Random(4)
    alone = [[score + draw.gauss(0, 0.03) for _ in range(runs)] for score, runs in ((0, 60), (0.03, 60), (0.05, 2))]
    found = Posterior(alone, [], (0.03, 119), EFFECT)
    worth = found.worth(2)
    assert worth[2] > worth[1] > worth[0] >= 0
    assert worth.sum() == pytest.approx(found.loss[2] / (EFFECT / 4) + (1 - found.near[2]) / 0.05)


@pytest.mark.parametrize("runs", [8, 16, 30, 40])
def test_rare_doubts_about_many_points_are_all_drawn(monkeypatch: pytest.MonkeyPatch, runs: int):
    """Each of 24 points is rarely far ahead. So few draws of the kinds as to miss that would find the leader near."""
    alone = [[0.1 * (-1) ** number for number in range(runs)] for _ in range(24)]
    usual = Posterior(alone, [], (0.1, 24 * (runs - 1)), EFFECT)
    monkeypatch.setattr(posterior, "_MIXED", 4096)
    posterior._luck.cache_clear()
    exact = Posterior(alone, [], (0.1, 24 * (runs - 1)), EFFECT)
    posterior._luck.cache_clear()
    assert usual.near.max() == pytest.approx(exact.near.max(), abs=0.02)
    assert usual.counts == pytest.approx([runs * 23 / 24] * 24)
