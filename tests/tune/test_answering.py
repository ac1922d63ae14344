"""The answer of a study, by what its paired rounds have shown."""

from __future__ import annotations

import pytest

from bireme.tune.space.points import Point, key_of
from bireme.tune.study.answer import answer
from bireme.tune.study.confirmation import Confirmation
from bireme.tune.study.observations import Measurements
from bireme.tune.study.trial import Objective, Trial, TrialResult

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
