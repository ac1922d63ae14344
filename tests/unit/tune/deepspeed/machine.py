"""A simulated machine: how fast each configuration is, and what fits. An input of the pure core, not a mock."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping

from bireme.tune.deepspeed.deepspeed_study import in_common_words, make_study, spaces
from bireme.tune.deepspeed.results import ModelInfo, with_goal
from bireme.tune.deepspeed.space import TuningSpace
from bireme.tune.deepspeed.stages import Stages
from bireme.tune.report import text
from bireme.tune.report.view import view
from bireme.tune.store.records import StudyRecords
from bireme.tune.study.trial import FinishedTrial, Trial, TrialResult
from bireme.value import Value

STAGE = "zero_optimization.stage"
MICRO = "train_micro_batch_size_per_gpu"
OFFLOAD = "zero_optimization.offload_optimizer"
CPU, NONE = {"device": "cpu"}, {"device": "none"}


class Tuning:
    """A study of a DeepSpeed configuration, and its sampler. Where nobody names a ``tuner_type`` it is a grid."""

    def __init__(self, space: TuningSpace, world: int, *, capacity=None, earlier=(), confidence=None, **bounds) -> None:
        self.space, self.section = space, space.config.autotuning
        kind = self.section.tuner_type or "gridsearch"
        self.stages = Stages(space, world, capacity=capacity, kind=kind)
        given = {"side_by_side": 100, "clock": lambda: 0.0, **bounds}
        self.study = make_study(self.stages, confidence=confidence, **given)
        self.ask, self.drop, self.give_up = self.study.ask, self.study.drop, self.study.give_up
        for each in earlier:
            self.study.restore(each.trial, each.result)

    def tell(self, name: str, result: TrialResult, info: ModelInfo | None = None) -> FinishedTrial:
        trial = self.study._pending[name]
        if trial.phase == "profile":
            found = info.as_metrics() if info else {}
            self.study.tell(name, result.replace(metrics={**result.metrics, **found}))
        else:
            self.study.tell(name, with_goal(result, self.section.metric, self.space.batch_of(trial.point)))
        return self.study.finished.runs[-1]

    @property
    def given_up(self) -> tuple[str, ...]:
        return tuple(each.trial.name for each in self.study.finished.runs if each.result.cause == "infrastructure")

    @property
    def over(self) -> str:
        return "" if self.given_up else self.study.over

    @property
    def completed(self) -> list[FinishedTrial]:
        return [each for each in self.study.finished.searched if each.result.cause != "infrastructure"]

    @property
    def best(self) -> FinishedTrial | None:
        score = self.study.finished.score
        return max(
            (each for each in self.completed if each.values), key=lambda each: score(0, each.values[0]), default=None
        )

    @property
    def skipped(self) -> tuple[str, ...]:
        return self.stages.skipped(self.study.finished)

    @property
    def left(self) -> int | None:
        return self.stages.left(self.study.finished, list(self.study._pending.values()))


class Machine(Value):
    """Throughput rises with the micro-batch and saturates: half of the most at ``half``; a stage costs its ``tolls``.

    ``limits``: the largest micro-batch that fits, by stage; offloading lets four times as many fit, and costs a tenth.
    ``slump``: beyond this micro-batch it is slower again. ``noise``: standard deviation, as a part. ``info``: what the
    profiling run finds; None: it fails.
    """

    half: float = 8.0
    tolls: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3)
    limits: tuple[int, ...] = (10**9,) * 4
    slump: int = 10**9
    noise: float = 0.0
    seed: int = 0
    info: ModelInfo | None = None
    failing: Mapping[str, str] = {}

    def fits(self, trial: Trial) -> bool:
        limit = self.limits[trial.point[STAGE]]
        return trial.point[MICRO] <= (4 * limit if trial.point.get(OFFLOAD) == CPU else limit)

    def speed(self, trial: Trial) -> float:
        """Samples per second, without noise."""
        stage, micro = trial.point[STAGE], trial.point[MICRO]
        speed = 1000 * micro / (micro + self.half) / (1 + self.tolls[stage])
        for name, value in trial.point.items():
            if name == OFFLOAD and value == CPU:
                speed *= 0.9
            elif name.endswith("overlap_comm") and value:
                speed *= 1.1
        return speed * (0.8 if micro > self.slump else 1.0)

    def run(self, trial: Trial) -> tuple[TrialResult, ModelInfo | None]:
        if trial.name in self.failing:
            return TrialResult(self.failing[trial.name], "so it is"), None
        if trial.phase == "profile":
            return (
                (TrialResult("ok", seconds=5), self.info)
                if self.info
                else (TrialResult("failed", "RuntimeError: no"), None)
            )
        if not self.fits(trial):
            return TrialResult("out of memory", "CUDA out of memory", seconds=5), None
        noise = random.Random(f"{self.seed} {trial.name}").gauss(0, self.noise)
        speed = self.speed(trial) * math.exp(noise)
        steps = int(trial.name.split("_")[1].removeprefix("gas"))
        figures = {"throughput": speed, "latency": 1e6 * trial.point[MICRO] * steps / speed}
        return TrialResult("ok", seconds=10 + trial.point[STAGE], metrics=figures, samples=0.9 * speed), None


def play(tuning: Tuning, machine: Machine, most: int = 500) -> list[FinishedTrial]:
    """One trial after the other, until nothing more comes or so many have ended."""
    past: list[FinishedTrial] = []
    while len(past) < most and (trial := tuning.ask()) is not None:
        result, info = machine.run(trial)
        past.append(tuning.tell(trial.name, result, info))
    assert len(past) < 500
    return past


def play_in_parallel(
    tuning: Tuning,
    machine: Machine,
    slots: int,
    seed: int,
    faults: float = 0.0,
    look: Callable[[], object] = lambda: None,
) -> list[FinishedTrial]:
    """On several slots, with ends in any order; some come to nothing and are asked for again, some are given up.

    ``look``: called after each event.
    """
    luck, running, rows, seen = random.Random(seed), [], [], set()
    while True:
        while len(running) < slots and (trial := tuning.ask()) is not None:
            assert trial.name not in seen, f"{trial.name} was measured already"
            assert trial.name not in [other.name for other in running]
            running.append(trial)
            look()
        look()
        if not running:
            return rows
        assert not tuning.over
        trial = running.pop(luck.randrange(len(running)))
        if luck.random() < faults:
            if luck.random() < 0.5:
                tuning.drop(trial.name)
            else:
                tuning.give_up(trial.name)
                seen.add(trial.name)
            continue
        seen.add(trial.name)
        rows.append(tuning.tell(trial.name, *machine.run(trial)))


def names(past: list[FinishedTrial]) -> list[str]:
    return [each.trial.name for each in past]


def summary(tuning: Tuning, why: str, seconds: float = 1.0) -> str:
    """The summary of a study that ended now, after so many seconds."""
    known = StudyRecords([{"study": {"config": dict(tuning.space.config.data), "args": [], "nodes": 1, "slots": 2}}])
    ended = [each for each in tuning.study.finished.runs if each.result.counts]
    for place, done in enumerate(ended):
        times = {"time": seconds, "ending": done.result.as_dict()}
        known.take({"start": done.trial.name, "on": "localhost:0", "time": 0.0 if place == 0 else seconds})
        known.take({"end": done.trial.name, **times, **done.trial.as_dict()})
    known.take({"over": why, "why": why, "skipped": list(tuning.skipped), "given up": list(tuning.given_up)})
    answer = tuning.study.answer
    return text.summary(view("", in_common_words(known), answer, running=False)[0], spaces(tuning.study, tuning.stages))
