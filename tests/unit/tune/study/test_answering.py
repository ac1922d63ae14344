"""The answer of a study, by what its paired rounds have shown."""

from __future__ import annotations

import itertools

import pytest

from bireme.tune.samplers.sampler import Direction
from bireme.tune.space.points import Point, key_of
from bireme.tune.study import confirmation
from bireme.tune.study.answer import answer
from bireme.tune.study.confirmation import Confirmation
from bireme.tune.study.observations import Measurements
from bireme.tune.study.trial import Forecast, Objective, Trial, TrialResult

DEFAULT, SURE, NEW = {"x": 0}, {"x": 1}, {"x": 2}
FAST, CHEAP = {"x": 3}, {"x": 4}


def test_what_is_confirmed_is_the_answer_though_another_looks_better():
    """A point that joined the rounds later has a better mean, of which little is certain yet."""
    measured = Measurements([Objective("speed")])
    for number, point in enumerate((DEFAULT, DEFAULT, SURE, NEW)):
        measured.add(Trial(name=f"trial-{number}", point=point), TrialResult(metrics={"speed": 100.0 + number}))
    rounds = Confirmation(DEFAULT, [SURE, NEW], 1, measured.score)
    for number in range(1, 9):
        rounds.tell(number, DEFAULT, (100 + number % 2,))
        rounds.tell(number, SURE, (110,))
        if number > 6:
            rounds.tell(number, NEW, (100 + 15 * (number - 6),))
    assert rounds.leader == NEW and rounds.versus(NEW).low <= 0
    known = answer(measured, DEFAULT, DEFAULT, SURE, rounds, 0.02)
    assert known.confirmed and known.best == known.promising == SURE and known.ties == (NEW,)
    assert next(each for each in known.compared if each.point == SURE).low == known.low > 1


@pytest.mark.parametrize(("less", "best"), [(1, CHEAP), (8, FAST)])
def test_the_cheaper_of_two_is_the_answer_only_where_it_seems_as_good(less: float, best: Point):
    """Its trials take half of the time. By few noisy rounds it cannot be distinguished from the fastest."""
    measured = Measurements([Objective("speed")])
    for number, (point, seconds) in enumerate(((DEFAULT, 10.0), (FAST, 10.0), (CHEAP, 5.0))):
        measured.add(Trial(name=f"trial-{number}", point=point), TrialResult(metrics={"speed": 100.0}, seconds=seconds))
    rounds = Confirmation(DEFAULT, [FAST, CHEAP], 1, measured.score)
    for number, noise in enumerate((-10, 10, 0, 10, -10, 10, -10), start=1):
        rounds.tell(number, DEFAULT, (100,))
        rounds.tell(number, FAST, (200,))
        rounds.tell(number, CHEAP, (200 - less + noise,))
    known = answer(measured, DEFAULT, DEFAULT, FAST, rounds, 0.02)
    assert (
        known.confirmed
        and known.best == best
        and {*map(key_of, (known.best, *known.ties))} == {*map(key_of, (FAST, CHEAP))}
    )


@pytest.mark.parametrize(("speed", "first"), [(100.0, DEFAULT), (104.0, CHEAP)])
def test_of_points_that_may_be_chosen_the_default_or_the_cheapest_is_first(speed: float, first: Point):
    """And ties are told in the order of their costs. A run has 4 % of noise, so a claim would take too many rounds."""
    measured, costs = Measurements([Objective("speed")]), {0: 10.0, 3: 10.0, 4: 2.0, 5: 5.0}
    for run, (x, seconds) in itertools.product(range(40), costs.items()):
        figure = (speed if x else 100.0) * (1.04 if run % 2 else 0.96)
        result = TrialResult(metrics={"speed": figure}, seconds=seconds)
        measured.add(Trial(name=f"trial-{x}-{run}", point={"x": x}), result)
    finalists: list[Point] = [{"x": x} for x in (3, 4, 5)]
    known = {"searched": measured.scores, "noise": measured.noise(), "patient": False}
    rounds = Confirmation(DEFAULT, finalists, 1, measured.score, **known)
    for point in (DEFAULT, *finalists):
        rounds.tell(1, point, (speed if point["x"] else 100.0,))
    said = answer(measured, DEFAULT, DEFAULT, FAST, rounds, 0.02)
    assert rounds.leading[1] and not said.confirmed and said.best == first
    assert [each["x"] for each in said.ties] == [x for x in (4, 5, 3) if x != first["x"]]


def told(speed: float) -> TrialResult:
    return TrialResult(metrics={"speed": speed})


def measured_as(figures: dict[int, list[float]]) -> Measurements:
    measured = Measurements([Objective("speed")])
    for x, values in figures.items():
        for value in values:
            told = TrialResult(cause="ok" if value else "over limit", metrics={"speed": value})
            measured.add(Trial(name=f"trial-{len(measured.runs)}", point={"x": x}), told)
    return measured


@pytest.mark.parametrize(
    ("figures", "text", "promising"),
    [
        ({0: [100, 101]}, "only the default was measured", DEFAULT),
        ({0: [100, 101], 1: [0], 2: [0]}, "no other point works", DEFAULT),
        ({0: [100, 101], 1: [90, 0]}, "no point seems to be better than the default", DEFAULT),
        ({0: [100, 101], 1: [90]}, "no point seems to be better than the default", DEFAULT),
        ({0: [100, 101], 1: [101.5]}, "no point seems to be better than the default by 2 % or more", DEFAULT),
        (
            {0: [100, 101], 1: [150]},
            "about 1.49 x the default from 1 run and 2 of the default; not confirmed: this needs about",
            SURE,
        ),
        (
            {0: [100, 101], 1: [150, 151]},
            "about 1.5 x the default from 2 runs each; not confirmed: this needs about",
            SURE,
        ),
    ],
)
def test_without_rounds_the_answer_says_what_was_measured(figures: dict[int, list[float]], text: str, promising: Point):
    """What is not better by what matters is not promising either."""
    measured = measured_as(figures)
    best = max(measured.working(), key=lambda point: measured.scores(point)[0])
    known = answer(measured, DEFAULT, DEFAULT, best, None, 0.02)
    assert known.text.startswith(text) and known.best == known.promising == promising and not known.confirmed


def test_what_cannot_be_told_from_the_default_is_not_promising():
    """The rounds end with a finalist that is better by less than what matters: it is a tie, and nothing else."""
    measured = measured_as({0: [100, 101, 99, 100], 1: [105, 104, 106, 105]})
    rounds = Confirmation(
        DEFAULT, [SURE], 1, measured.score, effect=0.1, searched=measured.scores, noise=measured.noise()
    )
    for number in range(1, 5):  # too few for a claim
        rounds.tell(number, DEFAULT, (100 + number % 2,))
        rounds.tell(number, SURE, (105 + number % 3,))
    assert rounds.leading == (1, True) and not rounds.certain(SURE)
    known = answer(measured, DEFAULT, DEFAULT, SURE, rounds, 0.1)
    assert known.best == known.promising == DEFAULT and known.ties == (SURE,)


def test_what_may_be_chosen_is_named_though_it_is_not_confirmed(monkeypatch: pytest.MonkeyPatch):
    """Either of two points may be chosen, and the default may not: one is named, with a tie."""
    measured = measured_as({0: [100, 101, 99], 1: [110, 109, 111], 2: [110, 111, 109]})
    rounds = Confirmation(
        DEFAULT, [SURE, NEW], 1, measured.score, searched=measured.scores, noise=measured.noise(), patient=False
    )
    monkeypatch.setattr(confirmation, "_CHEAP", -100)  # no claim is
    for number in range(1, 4):
        rounds.tell(number, DEFAULT, (100 + number % 2,))
        rounds.tell(number, SURE, (110 + number % 2,))
        rounds.tell(number, NEW, (110 + number % 3,))
    assert rounds.leading[1] and not any(map(rounds.certain, rounds.working))
    known = answer(measured, DEFAULT, DEFAULT, SURE, rounds, 0.02)
    assert known.best == known.promising and not known.confirmed
    assert {*map(key_of, (known.best, *known.ties))} == {*map(key_of, (SURE, NEW))}
    assert known.text.startswith(
        "about 1.1 x the default from 3 runs each; within 2 % of the best, with 95 % confidence; not conf"
    )


@pytest.mark.parametrize(
    ("direction", "speeds", "ratio"), [("maximize", (110, 130), 1.2), ("minimize", (84, 76), 1.25)]
)
def test_what_is_not_confirmed_is_better_by_the_means_that_are_shown(
    direction: Direction, speeds: tuple[float, float], ratio: float
):
    """Not by an estimate of what is left of it if it was lucky: the reader sees the means beside it."""
    measured = Measurements([Objective("speed", direction)])
    for number, (x, speed) in enumerate(((0, 100.0), (0, 98.0), (1, speeds[0]))):
        measured.add(Trial(name=f"t{number}", point={"x": x}), told(speed))
    rounds = Confirmation(DEFAULT, [SURE], 1, measured.score, searched=measured.scores, noise=measured.noise())
    for point, speed in ((DEFAULT, 102.0), (SURE, speeds[1])):
        measured.add(Trial(name=f"r{point['x']}", point=point, phase="confirm", round=1), told(speed))
        rounds.tell(1, point, (speed,))
    known = answer(measured, DEFAULT, DEFAULT, SURE, rounds, 0.02)
    assert known.best == SURE and not known.confirmed and known.ratio == pytest.approx(ratio)
    assert f"about {ratio} x the default from 2 runs and 3 of the default" in known.text


def test_a_forecast_names_a_range_only_if_it_is_one():
    assert Forecast(7.7, 7.7, 7.7, 42.0).text == "about 7.7 s"
    assert Forecast(180.0, 60.0, 480.0, 180.0).text == "about 3 min 00 s (1 min 00 s to 8 min 00 s)"
