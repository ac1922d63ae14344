"""A study as a whole: what it runs, what it says in the end, and that it goes on where it was interrupted."""

from __future__ import annotations

import random

import pytest

import bireme.tune
from bireme.errors import BadInputError
from bireme.tune.study import Measurement, Study, Trial

CHOICES = {"batch": [8, 16, 32], "threads": [1, 2, 4], "compile": ["off", "on"]}


def speed(point, noise: float, trial: str) -> float:
    best = 1.2 if point["compile"] == "on" else 1.0
    return best * point["batch"] ** 0.3 * (1 + random.Random(f"{point} {trial}").gauss(0, noise))


def run(study: Study, noise: float = 0.01, count: int = 10**6) -> list[tuple[Trial, Measurement]]:
    """Runs trials, at most ``count``, and returns them in order."""
    trials = []
    while len(trials) < count and (trial := study.ask()):
        measurement = Measurement(figures={"speed": speed(trial.point, noise, trial.name)}, seconds=1.0)
        study.tell(trial.name, measurement)
        trials.append((trial, measurement))
    return trials


def make(**options) -> Study:
    return Study(CHOICES, maximize="speed", clock=lambda: 0.0, **options)


def test_finds_the_best_and_is_sure_of_it():
    study = make()
    trials = run(study)
    assert study.over
    answer = study.answer
    assert answer.confirmed and answer.best["compile"] == "on" and answer.best["batch"] == 32
    assert answer.low <= 1.2 * 4**0.3 <= answer.high
    assert [trial.phase for trial, _ in trials[:2]] == ["noise", "noise"]
    assert 0.001 < answer.noise < 0.1


@pytest.mark.parametrize("cut", [1, 5, 12, -3])
def test_goes_on_where_it_was_interrupted(cut):
    whole = run(make(seed=4))
    resumed = make(seed=4)
    for trial, measurement in whole[:cut]:
        resumed.restore(trial, measurement)
    assert run(resumed) == whole[cut:]


def test_a_python_loop():
    study = bireme.tune.Study({"batch": [8, 16, 32]}, maximize="speed")
    while trial := study.ask():
        if trial.point["batch"] == 32:
            study.tell(trial.name, failed="out of memory")
        else:
            study.tell(trial.name, speed=float(trial.point["batch"]))
    assert study.answer.best == {"batch": 16} and study.answer.ratio == pytest.approx(2)


def test_what_is_told_must_be_pending_and_complete():
    study = make()
    with pytest.raises(BadInputError, match="no trial 'x' is pending"):
        study.tell("x", speed=1.0)
    with pytest.raises(BadInputError, match="has no figure 'speed'"):
        study.tell(study.ask().name, sped=1.0)
