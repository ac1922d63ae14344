"""Paired rounds: who is run again, for how long, and how often a winner is claimed where there is none."""

from __future__ import annotations

import math
import random

import pytest

from bireme.tune.space.points import key_of
from bireme.tune.study.confirmation import Confirmation

POINTS = [{"x": number} for number in range(4)]


def run(
    effects: list[float], noise: float, seed: int, *, freedom: int = 0, patient: bool = True
) -> tuple[Confirmation, int]:
    """Rounds until everything is decided.

    Args:
        effects: by how much each point is better, the baseline first.
        freedom: of the noise that the search has measured.
    """
    draw = random.Random(seed)
    points = POINTS[: len(effects)]
    known = (noise if freedom else None, freedom)
    score = lambda goal, figure: math.log(figure)  # noqa: E731
    rounds = Confirmation(points[0], points[1:], 1, score, seed=seed, noise=known, patient=patient)
    number = runs = 0
    while planned := rounds.plan(number + 1):
        number += 1
        runs += len(planned)
        for point in planned:
            drift = 0.1 * math.sin(number)  # of the machine: the same for all in a round
            rounds.tell(number, point, [math.exp(effects[points.index(point)] + drift + draw.gauss(0, noise))])
    return rounds, runs


def test_equal_points_do_not_win():
    """With the usual t-interval, looked at after each round, every fourth study or so would claim a winner."""
    claims = [rounds.versus(rounds.leader).low > 0 for rounds, _ in (run([0, 0, 0, 0], 0.03, n) for n in range(150))]
    assert sum(claims) <= 0.05 * 150


def test_each_finalist_takes_its_part_of_the_error():
    """With the same figures, one of eight is as sure as one alone of which an eighth of the error is allowed."""
    points, score = [{"x": number} for number in range(9)], lambda goal, figure: math.log(figure)
    many = Confirmation(points[0], points[1:], 1, score, confidence=0.92)
    strict = Confirmation(points[0], points[1:2], 1, score, confidence=0.99)
    two_goals = Confirmation(points[0], points[1:2], 2, score, confidence=0.98)
    for number in range(1, 13):
        for place, point in enumerate(points):
            figure = 1.0 + 0.1 * (place == 1) + 0.01 * ((7 * number + place) % 4)
            for each in (many, strict, two_goals):
                each.tell(number, point, [figure, figure])
    low = strict.versus(points[1]).low
    assert math.isfinite(low) and many.versus(points[1]).low == pytest.approx(low)
    assert two_goals.versus(points[1]).low == pytest.approx(strict.versus(points[1]).low)


@pytest.mark.parametrize("ahead", [0.0, 0.05, 1.0])
def test_the_search_divides_the_error_and_the_rounds_do_not(ahead):
    """All shares together are at most 1, and what is far ahead is certain as soon as if it were alone."""
    points, draw = [{"x": number} for number in range(9)], random.Random(1)
    searched = {key_of(point): [draw.gauss(0, 0.03) + ahead * (point["x"] == 3) for _ in range(3)] for point in points}
    rounds = Confirmation(
        points[0],
        points[1:],
        1,
        lambda goal, figure: math.log(figure),
        searched=lambda point: searched[key_of(point)],
        noise=(0.03, 18),
    )
    rounds.weigh()
    shares = list(rounds.shares)
    assert 0.99 < sum(shares) <= 1 and min(shares) >= 0.2 / 8 - 1e-4
    assert (shares[2] > 0.8) == (ahead == 1.0)
    for number in range(1, 6):
        assert not rounds.certain(points[3])
        rounds.tell(number, points[0], [1.0])
        rounds.tell(number, points[3], [2.5 + 0.01 * number])
    assert rounds.certain(points[3]) == (ahead == 1.0) and rounds.shares == shares


def test_twice_the_effect_is_found():
    found = [rounds.versus(POINTS[2]).low > 0 for rounds, _ in (run([0, 0, 0.04], 0.02, n) for n in range(60))]
    assert sum(found) >= 0.9 * 60


@pytest.mark.parametrize(("noise", "cheap"), [(0.01, True), (0.1, False)])
def test_what_may_be_chosen_runs_for_a_claim_where_that_is_cheap(noise: float, cheap: bool):
    """Without a bound, a study whose best may be chosen does not run on for a claim that takes many more rounds."""
    claims, took = {}, {}
    for patient in (True, False):
        found = [run([0, 0.04, 0], noise, seed, patient=patient, freedom=20) for seed in range(5)]
        claims[patient] = sum(any(map(rounds.certain, rounds.working)) for rounds, _ in found)
        took[patient] = sum(runs for _, runs in found)
        assert all(rounds.leading[1] for rounds, _ in found)
    assert claims[True] >= 4 and (claims[False] == 5 if cheap else claims[False] < 3)
    assert took[True] == took[False] if cheap else took[True] > 1.5 * took[False]


def test_a_round_of_the_fewest_runs_has_the_baseline_and_the_leader():
    rounds, _ = run([0, 0.3, -0.3], 0.01, 1)
    assert not rounds.plan(rounds.last + 1) and not rounds.plan(rounds.last + 1, fewest=True)
    assert len(rounds.plan(1)) == 3
    assert {key_of(each) for each in rounds.plan(1, fewest=True)} == {key_of(each) for each in POINTS[:2]}


def test_what_is_far_behind_is_run_a_few_times():
    rounds, runs = run([0, 0.3, -0.3], 0.01, 1)
    assert rounds.leader == POINTS[1] and rounds.versus(POINTS[2]).count <= 3
    assert runs <= 8 * 2 + 3


def test_it_ends():
    """Even where the difference is nearly the one that matters, and the noise greater."""
    assert all(run([0, 0.015], 0.05, seed)[1] < 2_000 for seed in range(5))


def test_how_many_more_runs_it_takes():
    """The middle of what is expected halfway: roughly, a third to three times as many as it then takes."""
    asked = []
    for seed in range(20):
        rounds, runs = run([0, 0.04, 0.05], 0.06, seed)
        half = Confirmation(POINTS[0], POINTS[1:3], 1, lambda goal, figure: math.log(figure), seed=seed)
        done = 0
        for number in range(1, rounds.last // 2 + 1):
            for key, figures in rounds.told(number).items():
                half.tell(number, next(point for point in POINTS if key_of(point) == key), figures)
                done += 1
        expected = half.expected_runs()
        asked.append(expected[len(expected) // 2] / (runs - done))
    assert rounds.expected_runs() == [0.0] and 1 / 3 < sorted(asked)[10] < 3


@pytest.mark.parametrize("seed", range(4))
def test_what_runs_for_a_claim_is_expected_to_take_the_rounds_of_a_claim(seed: int):
    """It may be chosen already, so without a bound nothing else is left to run for."""
    found, runs = run([0, 0.04, 0], 0.01, seed, freedom=20, patient=False)
    half = Confirmation(
        POINTS[0], POINTS[1:3], 1, lambda goal, figure: math.log(figure), noise=(0.01, 20), seed=seed, patient=False
    )
    for point in POINTS[:3]:
        half.tell(1, point, found.told(1)[key_of(point)])
    assert half.leading[0] in half.posterior.good and not half.leading[1]
    expected = half.expected_runs()
    assert (runs - 3) / 2 < expected[len(expected) // 2] < 2 * (runs - 3)


def test_what_fails_once_is_out():
    rounds = Confirmation(POINTS[0], POINTS[1:3], 1, lambda goal, figure: figure)
    rounds.tell(1, POINTS[1], None)
    assert rounds.failed(POINTS[1]) and rounds.leader == POINTS[2]
    assert POINTS[1] not in rounds.plan(2)


def test_a_round_is_planned_by_the_rounds_before_it():
    """So that a study which goes on in the middle of a round runs what is missing of the same round."""
    rounds, _ = run([0, 0.3, -0.3], 0.01, 1)
    for number in range(1, rounds.last + 1):
        assert {key_of(point) for point in rounds.plan(number)} == set(rounds.told(number))
