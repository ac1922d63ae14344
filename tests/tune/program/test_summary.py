"""What the end of a study says: the answer's own words, and no more than is certain."""

from __future__ import annotations

from bireme.tune.define.declarations import declare
from bireme.tune.program.summary import answer_lines
from bireme.tune.study.study import Answer

BATCHES = declare(params=["batch=8,16,32"], args=["{batch}"])
SURE = Answer(best={"batch": 32}, baseline={"batch": 8}, confirmed=True, ratio=1.5, low=1.4, high=1.6, rounds=4)


def test_a_confirmed_answer() -> None:
    text = answer_lines(SURE.replace(noise=0.008, promising={"batch": 32}), 0.95, BATCHES)
    assert text.splitlines() == [
        "noise of a run: 0.8 % (standard deviation, by what ran several times)",
        "best: batch=32    1.5 x the default (95 %: 1.4 to 1.6, 4 paired rounds)",
    ]


def test_a_bound_just_above_one_is_told_from_one() -> None:
    text = answer_lines(SURE.replace(ratio=1.02, low=1.0003, high=1.04), 0.95, BATCHES)
    assert text == "best: batch=32    1.02 x the default (95 %: 1.0003 to 1.04, 4 paired rounds)\n"


def test_of_many_that_cannot_be_told_apart_the_first_are_named() -> None:
    known = declare(params=["batch=1..24"], args=["{batch}"])
    answer = SURE.replace(ties=tuple({"batch": number} for number in range(1, 24)))
    lines = answer_lines(answer, 0.95, known).splitlines()[1:]
    assert lines[0] == "not distinguishable from it: batch=1"
    assert lines[11:] == ["not distinguishable from it: batch=12", "(and 11 more: bireme tune report)"]


def test_where_the_default_fails_the_baseline_is_named() -> None:
    text = answer_lines(SURE.replace(baseline={"batch": 16}, default_failed="exit code 1"), 0.95, BATCHES)
    assert text.splitlines() == [
        "best: batch=32    1.5 x (batch=16) (95 %: 1.4 to 1.6, 4 paired rounds)",
        "the default itself failed: exit code 1",
    ]


def test_what_is_promising_is_shown_if_nothing_is_certain() -> None:
    open_ = Answer(best={"batch": 8}, baseline={"batch": 8}, promising={"batch": 16}, text="no point is better")
    lines = ["best: batch=8", "no point is better", "promising, but not confirmed: batch=16"]
    assert answer_lines(open_, 0.95, BATCHES).splitlines() == lines
    assert answer_lines(open_.replace(promising={"batch": 8}), 0.95, BATCHES).splitlines() == lines[:2]
    front = answer_lines(open_.replace(front=({"batch": 8},)), 0.95, BATCHES)
    assert front.splitlines() == [*lines[:2], "on the front: batch=8"], (
        "of two goals, promising is about the first alone"
    )
