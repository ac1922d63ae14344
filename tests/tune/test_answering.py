"""The answer of a study, by what its paired rounds have shown."""

from __future__ import annotations

from bireme.tune.answering import answer
from bireme.tune.confirmation import Confirmation
from bireme.tune.measurements import Measurements
from bireme.tune.study_results import Measurement, Objective, Trial

DEFAULT, SURE, NEW = {"x": 0}, {"x": 1}, {"x": 2}


def test_what_is_confirmed_is_the_answer_though_another_looks_better():
    """A point that joined the rounds later has a better mean, of which little is certain yet."""
    measured = Measurements([Objective("speed")])
    for number, point in enumerate((DEFAULT, DEFAULT, SURE, NEW)):
        measured.add(Trial(name=f"trial-{number}", point=point), Measurement(figures={"speed": 100.0 + number}))
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
