"""The best configurations again, in paired rounds: who takes part, when it is enough, and what is answered."""

from __future__ import annotations

import json
import math
import random
import re

import pytest

from bireme.tune.deepspeed.finals import Care
from bireme.tune.deepspeed.tuning import Tuning
from tests.tune.deepspeed.machine import MICRO, Machine, names, play, play_in_parallel, summary

GRID = {MICRO: [4, 8, 16, 32], "zero_optimization": {"stage": [0, 1, 2]}}
FLAT = (0.0, 0.01, 0.3, 0.3)


class Clocked(Machine):
    """A machine whose clock is right but for ``jitter``, and whose DeepSpeed praises one configuration too much."""

    praised: str = ""
    jitter: float = 0.01

    def run(self, trial):
        result, info = super().run(trial)
        if not result.metrics:
            return result, info
        luck = random.Random(f"{self.seed} {trial.name} clock")
        samples = self.speed(trial) * math.exp(luck.gauss(0, self.jitter))
        figures = dict(result.metrics)
        if trial.name == self.praised:
            figures["throughput"] *= 3
        return result.replace(samples=samples, metrics=figures), info


class Unlucky(Clocked):
    """A machine that hiccups in the first run of one configuration, so both of its figures are poor."""

    unlucky: str = ""

    def run(self, trial):
        result, info = super().run(trial)
        if trial.name != self.unlucky or result.samples is None:
            return result, info
        figures = {**result.metrics, "throughput": 0.77 * result.metrics["throughput"]}
        return result.replace(samples=0.77 * result.samples, metrics=figures), info


@pytest.fixture
def tuning(space):
    def tuning(earlier=(), care=Care(), **data):  # noqa: B008  # it never changes
        return Tuning(space(2, **{**GRID, **data}), 2, earlier=earlier, care=care)

    return tuning


def repeated(past) -> list[str]:
    return [name for name in names(past) if "@" in name]


def test_a_figure_that_is_far_off_does_not_win(tuning):
    """DeepSpeed's figure of one run was 2,603 samples/s where the clock said 865."""
    study = tuning()
    play(study, Clocked(praised="z2_gas2_tmbspg16", tolls=(0.0, 0.3, 0.4, 0.5)))
    assert study.best.trial.name == "z2_gas2_tmbspg16"
    assert study.winner.trial.name == "z0_gas1_tmbspg32"
    text = summary(study, study.over, 1.0)
    assert "\nDeepSpeed's figure of one run preferred z2_gas2_tmbspg16\n" in text


@pytest.mark.parametrize("seed", range(5))
def test_the_best_is_found_though_its_only_run_was_a_poor_one(tuning, seed):
    """All finalists take part in the first round, those too that look worse by the search."""
    machine = {"tolls": (0.0, 0.15, 0.3, 0.5), "half": 6.0, "noise": 0.02, "jitter": 0.02, "seed": seed}
    study = tuning()
    again = repeated(play(study, Unlucky(unlucky="z0_gas1_tmbspg32", **machine)))
    assert study.best.trial.name != "z0_gas1_tmbspg32" == study.winner.trial.name
    assert sum(name.endswith("@round1") for name in again) == 4 and len(again) <= 4 + 2 + 2


def test_the_rounds_are_paired_and_bounded(tuning):
    study = tuning()
    past = play(study, Clocked(tolls=FLAT, half=2.0, noise=0.05, jitter=0.05))
    again = [each.trial for each in past if each.trial.phase == "confirm"]
    assert [trial.round for trial in again] == sorted(trial.round for trial in again)
    assert {trial.block for trial in again} == {f"round {trial.round}" for trial in again}
    assert max(trial.round for trial in again) >= 3
    assert all(sum(trial.round == number for trial in again) >= 2 for number in {trial.round for trial in again})
    seconds = [sum(each.result.seconds for each in past if ("@" in each.trial.name) == so) for so in (True, False)]
    assert seconds[0] <= 0.75 * seconds[1]
    assert study.over == "every configuration was measured"


def test_what_cannot_be_told_apart_is_said(tuning):
    study = tuning(**{MICRO: [16, 32]}, zero_optimization={"stage": [0, 1]})
    play(study, Clocked(tolls=(0.0, 0.0, 0.0, 0.0), half=0.01, noise=0.1, jitter=0.03))
    text = summary(study, study.over, 1.0)
    assert study.finals.ties
    assert re.search(r"\nbest: \S+ .*, which DeepSpeed's figure prefers\nnot distinguishable from it: \S+ ", text)


def test_nothing_is_repeated_where_one_is_far_ahead_or_alone(tuning):
    ahead = tuning(**{MICRO: [1, 32]}, zero_optimization={"stage": 0})
    assert not repeated(play(ahead, Clocked(half=100.0)))
    assert "samples/s, by one run: no other came near\n" in summary(ahead, ahead.over, 1.0)
    alone = tuning(**{MICRO: 32}, zero_optimization={"stage": 0})
    assert not repeated(play(alone, Clocked()))
    assert not repeated(play(tuning(care=None), Clocked()))


def test_of_configurations_that_are_the_same_none_is_confirmed(tuning):
    """At a confidence of 95 %, in two of forty studies."""
    wrong = 0
    for seed in range(40):
        study = tuning(**{MICRO: [16, 32]}, zero_optimization={"stage": [0, 1]})
        play(study, Clocked(tolls=(0.0,) * 4, half=0.0, noise=0.05, jitter=0.05, seed=seed))
        wrong += study.finals.certain
    assert wrong <= 2


@pytest.mark.parametrize("metric", ["throughput", "latency", "forward"])
@pytest.mark.parametrize("cut", [11, 13, 14, 16])
def test_an_interrupted_one_goes_on_as_it_would_have(tuning, metric, cut):
    machine = Clocked(tolls=FLAT, half=2.0, noise=0.03, info=None)
    data = {"autotuning": {"metric": metric}}
    if metric == "forward":
        machine = Forward(tolls=FLAT, half=2.0, noise=0.03)
    whole_study = tuning(**data)
    whole = play(whole_study, machine)
    assert repeated(whole)
    interrupted = tuning(**data)
    told = play(interrupted, machine, cut)
    interrupted.ask()
    kept = [each.replace(trial=each.trial.replace(point=json.loads(json.dumps(each.trial.point)))) for each in told]
    resumed = tuning(earlier=kept, **data)
    assert names(told) + names(play(resumed, machine)) == names(whole)
    assert resumed.winner.trial.name == whole_study.winner.trial.name


class Forward(Clocked):
    """A machine that measures the time of the forward pass."""

    def run(self, trial):
        result, info = super().run(trial)
        return result.replace(metrics={**result.metrics, "fwd": 1e6 / result.metrics["throughput"]}), info


def test_a_repeated_run_measures_for_longer(tuning):
    study = tuning()
    machine = Clocked(tolls=FLAT, half=2.0)
    past = play(study, machine)
    first, again = past[0].trial, next(each.trial for each in past if each.trial.phase == "confirm")
    assert study.last_step(first) == 5 < study.last_step(again)
    section = study.ds_config(again, "metrics.json")["autotuning"]
    assert section["end_profile_step"] == study.last_step(again)
    assert "autotuning" not in study.ds_config(again)


def test_a_repeated_run_that_fails_does_not_win(tuning):
    best = "z0_gas1_tmbspg32"
    study = tuning()
    play(study, Clocked(tolls=(0.0, 0.1, 0.1, 0.3), failing={f"{best}@round2": "failed"}))
    assert study.winner.trial.name != best


def test_a_budget_bounds_the_rounds(tuning):
    machine = Clocked(tolls=FLAT, half=2.0, noise=0.05, jitter=0.05)
    search = sum(each.result.seconds for each in play(tuning(care=None), machine))
    assert not repeated(play(tuning(care=Care(seconds=search)), machine))
    assert len(repeated(play(tuning(care=Care(seconds=search + 30)), machine))) == 2


@pytest.mark.parametrize("seed", range(10))
def test_rounds_side_by_side_in_any_order(tuning, seed):
    """No name twice, and an end in any case, also where runs come to nothing or are given up."""
    study = tuning(care=Care(side_by_side=2))
    rows = play_in_parallel(study, Clocked(tolls=FLAT, half=2.0, noise=0.05, jitter=0.05), 5, seed, faults=0.2)
    assert any(row.trial.round for row in rows)
    assert bool(study.over) == (not study.given_up) and study.winner is not None
    assert summary(study, study.over, 1.0)
