"""Proposes the trials of DeepSpeed's autotuning, in stages; a sampler of `bireme.tune.study.study.Study`.

What a stage decides depends only on its own trials and those of earlier stages, so a resumed study continues exactly as
it would have. They are named by the phase of their trials:

1. **profile**, if micro-batches are to be searched: a short run finds the number of parameters and the activation
   memory.
2. **limits**, in the same case: for each memory group the micro-batches worth trying (`MemoryLimits`). Each run also
   measures.
3. **search**: the listed configurations, in the order of ``tuner_type``.
4. **rest**, if ``fast`` is false: the default choices of each ZeRO stage, the fastest first, unless it cannot win.

``gridsearch`` measures everything that the configuration lists, as DeepSpeed does with lists of micro-batches, unless
the section sets a bound. ``random``, and any search among the default choices of a ZeRO stage, obeys
``tuner_num_trials`` and ``tuner_early_stopping``. ``model_based`` obeys ``tuner_num_trials``, and
``tuner_early_stopping`` only if the section sets it: otherwise it stops when no remaining configuration is expected to
be better by one percent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from bireme.tune.deepspeed.config import SECTION
from bireme.tune.deepspeed.limits import MemoryLimits
from bireme.tune.deepspeed.memory import MemoryGroups
from bireme.tune.deepspeed.results import PROFILE, ModelInfo, model_info
from bireme.tune.deepspeed.space import TuningSpace
from bireme.tune.samplers import make
from bireme.tune.samplers.model_based import NEGLIGIBLE
from bireme.tune.samplers.sampler import Observation, Pending, Sampler, best_of, observe
from bireme.tune.space.points import Point, Points, Union, key_of
from bireme.tune.study.observations import Measurements
from bireme.tune.study.search import Estimates, Proposal
from bireme.tune.study.trial import FinishedTrial, Phase, Trial
from bireme.value import Value

_MANY = 10_000
"""A grid search of more configurations than this begins with a warning."""

_COUNTED = 5000
"""In larger spaces the remaining points are not counted."""


class _Stage(Value):
    """A search among points.

    Attributes:
        before: the phases whose trials it takes into account: its own, and those before it.
    """

    phase: Phase
    points: Points
    before: tuple[Phase, ...]
    sampler: Sampler


class Stages:
    """The sampler of a DeepSpeed study.

    Args:
        world: ranks of each experiment.
        capacity: memory of a GPU in bytes; None if unknown.
        kind: the ``tuner_type``; None: that of the section, or the model where it names none.
    """

    def __init__(self, space: TuningSpace, world: int, *, capacity: int | None = None, kind: str | None = None) -> None:
        self.space, self.section = space, space.config.autotuning
        self.kind = kind or self.section.tuner_type or "model_based"
        self._capacity, self._groups = capacity, MemoryGroups(space, world)
        self._given_info = _known(model_info(dict(self.section.model_info or {})))
        asked = (self.section.model_info or {}).get("profile") is True
        self.profiles = (space.micro is None or asked) and self._given_info is None
        self._made: dict[str, _Stage] = {}
        self._kept: tuple[tuple[int, int], MemoryLimits] | None = None

    # -- the next trial --------------------------------------------------------------------------------

    def propose(self, finished: Measurements, pending: Sequence[Trial]) -> Proposal | None:
        """The next trial; None: there is none now, or, if nothing is pending, ever."""
        if self.profiles and not finished.in_phase("profile"):
            return None if pending else Proposal(point={}, phase="profile")
        limits = self.limits(finished)
        if self.space.micro is None:
            running = [each.point for each in pending if each.phase == "limits"]
            point = limits.propose(running)
            if point is not None and not any(each.phase != "limits" for each in pending):
                return Proposal(point=point, phase="limits")
            if running:
                return None  # their results decide what is searched
        for stage in self._stages(finished, limits):
            trying = {key_of(each.point): each.point for each in pending if each.phase == stage.phase}
            if not self._enough(stage, finished, trying):
                point = stage.sampler.propose(stage.points, self._observed(stage, finished), trying)
                if point is not None:
                    return Proposal(point=point, phase=stage.phase)
            if pending:
                return None  # their results decide what is tried in the next stage
        return None

    def _stages(self, finished: Measurements, limits: MemoryLimits) -> Iterator[_Stage]:
        """The searches, one after the other."""
        if self.space.micro is None:
            parts = [self._groups.part(number, sizes, listed=True) for number, sizes in limits.in_reach()]
        else:
            parts = [self._groups.listed(stage, self.space.micro) for stage in self.space.stages]
        yield self._stage("search", Union(tuple(parts)), ("limits", "search"))
        for number, sizes in limits.in_reach() if not self.section.fast else ():
            if self._groups.has_defaults(number):
                yield self._stage("rest", self._groups.part(number, sizes), ("limits", "search", "rest"))

    def _stage(self, phase: Phase, points: Points, before: tuple[Phase, ...]) -> _Stage:
        """A stage, the same one for the same points: samplers go on in them where they were."""
        key = f"{phase} {[(each.name, each.choices) for each in points.parameters]}"
        if key not in self._made:
            self._made[key] = _Stage(phase, points, before, make(self.kind, excluded=self._excluded))
        return self._made[key]

    def _excluded(self, point: Point) -> bool:
        assert self._kept is not None
        return bool(self.space.impossible(point)) or self._kept[1].rules_out(point)

    def limits(self, finished: Measurements) -> MemoryLimits:
        """What is known of the memory limits; the last one is kept, because it is asked for several times."""
        state = (id(finished), len(finished.runs))
        if self._kept is None or self._kept[0] != state:
            profile = finished.in_phase("profile")
            info = self._given_info or (_known(model_info(dict(profile[-1].result.metrics))) if profile else None)
            searched = [run for run in finished.searched if run.trial.phase in ("limits", "search", "rest")]
            limits = MemoryLimits(
                self.space, self._groups, self._capacity, info, [*profile, *searched], lambda run: _speed(finished, run)
            )
            self._kept = state, limits
        return self._kept[1]

    # -- how much --------------------------------------------------------------------------------------

    def _runs(self, stage: _Stage, finished: Measurements) -> list[FinishedTrial]:
        return [run for run in finished.searched if run.trial.phase in stage.before and run.trial.point in stage.points]

    def _observed(self, stage: _Stage, finished: Measurements) -> dict[str, Observation]:
        observed: dict[str, Observation] = {}
        for run in self._runs(stage, finished):
            observe(observed, run.trial.point, _speed(finished, run), run.result.cause, run.result.seconds)
        return observed

    def _enough(self, stage: _Stage, finished: Measurements, trying: Pending) -> str:
        """Why nothing more is tried in a stage, although points may be left; "" if the section allows more."""
        runs, (trials, patience) = self._runs(stage, finished), self._bounds(stage)
        own = [_speed(finished, run) for run in runs if run.trial.phase == stage.phase]
        if trials is not None and len(own) + len(trying) + self._spent(stage, finished) >= trials:
            return f"the limit of {trials} trials is reached (tuner_num_trials)"
        before = (_speed(finished, run) or 0.0 for run in runs if run.trial.phase != stage.phase)
        if patience and (since := without_improvement(own, max(before, default=0.0))) >= patience:
            return f"no improvement in the last {since} trials (tuner_early_stopping)"
        if self._stops_itself:
            observed = self._observed(stage, finished)
            if not stage.sampler.promising(stage.points, observed, trying):
                return f"no remaining configuration is expected to be better by {NEGLIGIBLE:.0%} (model_based)"
        return ""

    def _spent(self, stage: _Stage, finished: Measurements) -> int:
        """How many trials of other stages count against ``tuner_num_trials``."""
        counting = [run.trial for run in finished.searched if run.trial.phase in stage.before]
        counting = [trial for trial in counting if trial.phase in ("search", "rest")]
        return sum(trial.phase != stage.phase or trial.point not in stage.points for trial in counting)

    @property
    def _given(self) -> Mapping[str, object]:
        """The keys that the ``autotuning`` section sets."""
        given = self.space.config.data.get(SECTION)
        return given if isinstance(given, Mapping) else {}

    @property
    def _stops_itself(self) -> bool:
        return self.kind == "model_based" and "tuner_early_stopping" not in self._given

    def _bounds(self, stage: _Stage) -> tuple[int | None, int | None]:
        """How many trials there may be, in all and in a row without an improvement; None: any number."""
        section, given = self.section, self._given
        whole = self.kind == "gridsearch" and stage.phase == "search"
        endless = (whole and "tuner_early_stopping" not in given) or self._stops_itself
        trials = None if whole and "tuner_num_trials" not in given else section.tuner_num_trials
        return trials, None if endless else section.tuner_early_stopping

    def left(self, finished: Measurements, pending: Sequence[Trial]) -> int | None:
        """How many trials of the search may still end at most, pending ones included; None if not known yet.

        It never grows: what ends and what is ruled out only takes away. A search that has waited for an improvement
        long enough is over when nothing runs any more: what runs may be the improvement.
        """
        limits = self.limits(finished)
        found = self.space.micro is not None or not (
            limits.propose(()) or any(each.phase in ("profile", "limits") for each in pending)
        )
        if not self.section.fast or not found or (self.profiles and not finished.in_phase("profile")):
            return None
        stage = next(self._stages(finished, limits))
        trying = {key_of(each.point): each.point for each in pending if each.phase == stage.phase}
        if not trying and self._enough(stage, finished, trying):
            return 0
        trials, _ = self._bounds(stage)
        own = sum(run.trial.phase == stage.phase for run in self._runs(stage, finished))
        most = None if trials is None else max(0, trials - own - self._spent(stage, finished) - len(trying))
        if stage.points.size <= _COUNTED:
            known = stage.sampler.known(stage.points, self._observed(stage, finished), trying)
            points = sum(map(known.open, stage.points.points()))
            most = points if most is None else min(points, most)
        return None if most is None else most + len(trying)

    # -- what is known ---------------------------------------------------------------------------------

    def best(self, finished: Measurements) -> Observation | None:
        """The best point so far; None if none has a figure yet."""
        observed: dict[str, Observation] = {}
        for run in finished.searched:
            observe(observed, run.trial.point, _speed(finished, run), run.result.cause, run.result.seconds)
        return best_of(observed)

    def estimates(self, finished: Measurements) -> Estimates | None:
        """None: each point stands for itself."""
        return None

    def reason(self, finished: Measurements) -> str:
        """Why nothing more is proposed."""
        causes = {run.result.cause for run in finished.searched}
        if "ok" in causes:
            *_, last = self._stages(finished, self.limits(finished))
            return self._enough(last, finished, {}) or "every configuration was measured"
        if causes <= {"out of memory"} and (causes or self.limits(finished).skipped):
            return "no configuration fits in memory"
        return "no configuration worked" if causes else "there is nothing to try"

    def skipped(self, finished: Measurements) -> tuple[str, ...]:
        """What was not tried, and why, one line each."""
        notes = []
        for run in finished.in_phase("profile"):
            if run.result.cause != "out of memory" and _known(info := model_info(dict(run.result.metrics))) is None:
                reason = run.result.reason or info.reason
                notes.append(f"{PROFILE}: {reason}; the memory that each stage needs was not estimated")
        return (*self.space.batch.dropped, *notes, *self.limits(finished).skipped)

    @property
    def warning(self) -> str:
        """A warning before a grid search of very many configurations; "" if there is none."""
        if self.kind != "gridsearch" or "tuner_num_trials" in self._given:
            return ""
        micro = self.space.micro or range(1, self.section.num_tuning_micro_batch_sizes + 1)
        size = sum(self._groups.listed(stage, tuple(micro)).size for stage in self.space.stages)
        if size <= _MANY:
            return ""
        return (
            f"warning: gridsearch will try up to {size:,} configurations; "
            "to try fewer, set autotuning.tuner_type to model_based, or autotuning.tuner_num_trials"
        )


def without_improvement(speeds: Sequence[float | None], best: float = 0.0) -> int:
    """How many trials in a row were not better than any before; 0 as long as none has worked.

    Args:
        speeds: of the trials, in the order of their ends; None: it failed.
        best: the best speed before them; 0.0: there is none.
    """
    since = 0
    for speed in speeds:
        since = 0 if (speed or 0.0) > best else since + 1
        best = max(best, speed or 0.0)
    return since if best else 0


def _known(info: ModelInfo) -> ModelInfo | None:
    return info if info.params else None


def _speed(finished: Measurements, run: FinishedTrial) -> float | None:
    """What a trial has measured, as a number of which more is better."""
    return None if run.values is None else math.exp(finished.score(0, run.values[0]))
