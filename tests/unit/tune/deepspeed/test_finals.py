"""The best configurations again: who takes part, when it is enough, and what is answered."""

from __future__ import annotations

import json
import math
import random
import re

import pytest

from tests.unit.tune.deepspeed.machine import MICRO, Machine, Tuning, names, play, play_in_parallel, summary

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
        figures = {**result.metrics, "throughput": 0.92 * result.metrics["throughput"]}
        return result.replace(samples=0.92 * result.samples, metrics=figures), info


class Forward(Clocked):
    """A machine that measures the time of the forward pass."""

    def run(self, trial):
        result, info = super().run(trial)
        return result.replace(metrics={**result.metrics, "fwd": 1e6 / result.metrics["throughput"]}), info


@pytest.fixture
def tuning(space):
    def tuning(earlier=(), confidence=0.95, side_by_side=1, seconds=None, confirm=None, **data):
        bounds = {"confidence": confidence, "side_by_side": side_by_side, "seconds": seconds, "confirm": confirm}
        return Tuning(space(2, **{**GRID, **data}), 2, earlier=earlier, **bounds)

    return tuning


def repeated(past) -> list[str]:
    return [name for name in names(past) if "@" in name]


def best(study) -> str:
    return study.space.name(study.study.answer.best)


def said(study) -> str:
    return summary(study, study.over)


def test_a_figure_that_is_far_off_does_not_win(tuning):
    """DeepSpeed's figure of one run was 2,603 samples/s where the clock said 865."""
    study = tuning()
    play(study, Clocked(praised="z2_gas2_tmbspg16", tolls=(0.0, 0.3, 0.4, 0.5)))
    assert best(study) == "z0_gas1_tmbspg32"
    assert "\nDeepSpeed's figure of one run preferred z2_gas2_tmbspg16\n" in said(study)


@pytest.mark.parametrize("seed", range(5))
def test_the_best_is_found_though_its_only_run_was_a_poor_one(tuning, seed):
    study = tuning()
    machine = Unlucky(unlucky="z0_gas1_tmbspg32", tolls=(0.0, 0.15, 0.3, 0.5), half=6.0, jitter=0.02, seed=seed)
    play(study, machine)
    assert best(study) == "z0_gas1_tmbspg32"


def test_the_rounds_are_paired_and_bounded(tuning):
    """They, and what runs again before them, take at most as long as the search."""
    study = tuning()
    past = play(study, Clocked(tolls=FLAT, half=2.0, noise=0.05, jitter=0.05, seed=1))
    again = [each.trial for each in past if each.trial.phase == "confirm"]
    assert [trial.round for trial in again] == sorted(trial.round for trial in again)
    assert {trial.block for trial in again} == {f"round-{trial.round}" for trial in again}
    assert max(trial.round for trial in again) >= 2
    assert all(sum(trial.round == number for trial in again) >= 2 for number in {trial.round for trial in again})
    seconds = [sum(each.result.seconds for each in past if ("@" in each.trial.name) == so) for so in (True, False)]
    assert seconds[0] <= 1.25 * seconds[1]


def test_what_cannot_be_told_apart_is_said(tuning):
    for seed in range(8):
        study = tuning(**{MICRO: [16, 32]}, zero_optimization={"stage": [0, 1]})
        play(study, Clocked(tolls=(0.0, 0.0, 0.0, 0.0), half=0.01, noise=0.1, jitter=0.03, seed=seed))
        if study.study.answer.ties:
            assert re.search(r"\nbest: \S+  .* by the clock, .*\nnot distinguishable from it: z", said(study))
            return
    raise AssertionError("no study of eight has ties")


def test_an_interval_that_says_nothing_is_not_printed_as_if_it_did(tuning):
    """Such as 0.021 to 137."""
    study = tuning(**{MICRO: [16, 32]}, zero_optimization={"stage": [0, 1]})
    play(study, Clocked(tolls=(0.0, 0.0, 0.0, 0.0), half=0.01, noise=0.3, jitter=0.3))
    assert study.study.answer.compared
    assert all(float(high) <= 4 * float(low) for low, high in re.findall(r"([\d.]+) to ([\d.]+)", said(study)))


def test_nothing_is_repeated_where_one_is_alone_or_nobody_wants_it(tuning):
    alone = tuning(**{MICRO: 32}, zero_optimization={"stage": 0})
    assert "@round" not in " ".join(names(play(alone, Clocked())))
    assert not repeated(play(tuning(confidence=None), Clocked()))


def test_of_configurations_that_are_the_same_none_is_confirmed(tuning):
    """At a confidence of 95 %, in two of forty studies."""
    wrong = 0
    for seed in range(40):
        study = tuning(**{MICRO: [16, 32]}, zero_optimization={"stage": [0, 1]})
        play(study, Clocked(tolls=(0.0,) * 4, half=0.0, noise=0.05, jitter=0.05, seed=seed))
        wrong += study.study.answer.confirmed
    assert wrong <= 2


@pytest.mark.parametrize("metric", ["throughput", "latency", "forward"])
@pytest.mark.parametrize("part", [0.3, 0.7, 0.9])
def test_an_interrupted_one_goes_on_as_it_would_have(tuning, metric, part):
    """In the search and in what runs again before the rounds; a round that was cut is not completed."""
    machine = Clocked(tolls=FLAT, half=2.0, noise=0.03, info=None)
    data = {"autotuning": {"metric": metric}}
    if metric == "forward":
        machine = Forward(tolls=FLAT, half=2.0, noise=0.03)
    whole_study = tuning(**data)
    whole = play(whole_study, machine)
    assert repeated(whole)
    before = [each for each in whole if each.trial.phase != "confirm"]
    cut = round(part * len(before))
    kept = [each.replace(trial=each.trial.replace(point=json.loads(json.dumps(each.trial.point)))) for each in whole]
    resumed = tuning(earlier=kept[:cut], **data)
    assert names(whole[:cut]) + names(play(resumed, machine)) == names(whole)
    assert best(resumed) == best(whole_study)


def test_a_repeated_run_that_fails_does_not_win(tuning):
    first = tuning()
    play(first, Clocked(tolls=(0.0, 0.1, 0.1, 0.3)))
    winner = best(first)
    study = tuning()
    play(study, Clocked(tolls=(0.0, 0.1, 0.1, 0.3), failing={f"{winner}@round2": "failed"}))
    assert best(study) != winner or f"{winner}@round2" not in names(study.completed)


def test_confirm_bounds_the_rounds(tuning):
    """``off`` has none; ``sure`` goes on where the default part of the time is spent."""
    counts = {}
    for confirm in ("off", None, "sure"):
        study = tuning(confirm=confirm)
        rows = play(study, Clocked(tolls=(0.0, 0.02, 0.3, 0.3), half=2.0, noise=0.1, jitter=0.1))
        counts[confirm] = sum(row.trial.phase == "confirm" for row in rows)
    assert counts["off"] == 0 < counts[None] < counts["sure"]


def test_a_budget_in_seconds_bounds_all_of_it(space):
    now = [0.0]
    study = Tuning(space(2, **GRID), 2, confidence=0.95, side_by_side=1, seconds=100.0, clock=lambda: now[0])
    while (trial := study.ask()) is not None:
        result, info = Clocked(tolls=FLAT, half=2.0, noise=0.05, jitter=0.05).run(trial)
        now[0] += result.seconds
        study.tell(trial.name, result, info)
    assert 40 <= now[0] <= 125 and "budget" in study.over


@pytest.mark.parametrize("seed", range(10))
def test_rounds_side_by_side_in_any_order(tuning, seed):
    """No name twice, and an end in any case, also where runs come to nothing or are given up."""
    study = tuning(side_by_side=2)
    rows = play_in_parallel(study, Clocked(tolls=FLAT, half=2.0, noise=0.05, jitter=0.05), 5, seed, faults=0.2)
    assert any(row.trial.phase in ("screen", "confirm") for row in rows)
    assert bool(study.over) == (not study.given_up)
    assert study.study.answer.best is not None and said(study)
