"""The search of a study: runs the default, twice to measure the noise, then the points that a sampler proposes."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from bireme.tune.samplers import make
from bireme.tune.samplers.sampler import Observation, Pending, best_of, observe
from bireme.tune.space.points import Point, Points, key_of
from bireme.tune.study.observations import Measurements
from bireme.tune.study.trial import FinishedTrial, Phase, Trial
from bireme.value import Value

_WEIGHTS = (0.2, 0.5, 0.8)
"""With two goals the search ends when it expects nothing better by any of these weights of the first."""

_NOISE_RUNS, _FEW_TRIALS = 2, 12
"""How often the default runs first; only once where the budget has few trials."""

_SMALL = 24
"""In a space with at most this many points, all are tried."""

Estimates = list[tuple[float, float, Point]]
"""(expected score, its standard deviation, point) of measured points."""


class Proposal(Value):
    """A trial that a sampler proposes; the fields are those of `Trial`."""

    point: Point
    phase: Phase = "search"
    round: int = 0
    block: str = ""


class Sampler(Protocol):
    """Proposes the trials of a study until it runs the best again. It may have stages, and names their phases.

    It has no state: what it proposes depends on the trials that have ended and those that are pending alone. What it
    keeps only saves time.
    """

    def propose(self, finished: Measurements, pending: Sequence[Trial]) -> Proposal | None:
        """The next trial; None: there is none now, or, if nothing is pending, ever."""

    def reason(self, finished: Measurements) -> str:
        """Why it proposes nothing more."""

    def best(self, finished: Measurements) -> Observation | None:
        """The best point so far; None if none has a figure yet."""

    def estimates(self, finished: Measurements) -> Estimates | None:
        """What it expects of the measured points; None: it has no model, or there are two goals."""


class PointSearch:
    """A sampler of points, to which the runs of a study are given as values of which more is better.

    With two goals it searches for the best by random weights, other ones after each run: Knowles, "ParEGO: a hybrid
    algorithm with on-line landscape approximation for expensive multiobjective optimization problems", IEEE
    Transactions on Evolutionary Computation 10(1), 2006. All weights together find the whole front.

    Args:
        kind: see `samplers.make`.
        space: the points.
        seed: any number.
        options: of a model: whether points run again, and which improvement is negligible.
        weights: with two goals those of the first by which a search must expect nothing better to be over.
    """

    def __init__(self, kind: str, space: Points, seed: int, options: Mapping[str, Any], *, goals: int = 1) -> None:
        self._space, self._seed = space, seed
        self._sampler = make(kind, seed, **(options if kind == "model_based" else {}))
        self._sampler.check(space)
        self._weights = _WEIGHTS if kind == "model_based" and goals > 1 else (None,)
        self._kept: tuple[object, dict[str, Observation]] = None, {}
        self._told = 0

    def _finished(self, measured: Measurements, weight: float | None = None) -> dict[str, Observation]:
        """What is known of each point; ``weight``: of the first of two goals; None: a random one."""
        runs = measured.searched
        if len(measured.goals) == 1:
            state: object = (id(measured), measured.scales, measured.superseded)
        elif weight is None:
            weight = random.Random(f"{self._seed} {len(runs)}").random()
            state = (id(measured), weight)
        else:
            return self._observed(measured, runs, {}, weight)
        if self._kept[0] != state:
            self._kept, self._told = (state, {}), 0
        self._observed(measured, runs[self._told :], self._kept[1], weight or 1.0)
        self._told = len(runs)
        return self._kept[1]

    def _observed(
        self, measured: Measurements, runs: list[FinishedTrial], finished: dict[str, Observation], weight: float
    ) -> dict[str, Observation]:
        """Add runs to what is known; with two goals by how near they are to the best of each."""
        bounds = [measured.worst_and_best(goal) for goal in range(len(measured.goals))]
        for run in runs:
            value, result = None, run.result
            if result.cause == "infrastructure" and key_of(run.trial.point) in finished:
                continue  # its earlier runs tell more
            if run.values:
                scores = [measured.score(goal, figure) for goal, figure in enumerate(run.values)]
                value = math.exp(scores[0])
                if len(scores) > 1:
                    near = [
                        (own - low) / ((high - low) or 1.0) for own, (low, high) in zip(scores, bounds, strict=True)
                    ]
                    value = math.exp(min(weight * near[0], (1 - weight) * near[1]) + 0.05 * sum(near))
            observe(finished, run.trial.point, value, result.cause, result.seconds)
        return finished

    def next_point(self, measured: Measurements, pending: Pending) -> Point | None:
        """The next point; None if there is nothing to try now."""
        return self._sampler.propose(self._space, self._finished(measured), pending)

    def open(self, measured: Measurements, point: Point, pending: Pending) -> bool:
        """Whether the point may still be tried."""
        return self._sampler.known(self._space, self._finished(measured), pending).open(point)

    def promising(self, measured: Measurements, pending: Pending) -> bool:
        """Whether an open point may be worth a run, as far as the sampler can tell."""
        return any(
            self._sampler.promising(self._space, self._finished(measured, weight), pending) for weight in self._weights
        )

    def best(self, measured: Measurements) -> Observation | None:
        """The best point so far; None if none has a figure yet."""
        return best_of(self._finished(measured))

    def estimates(self, measured: Measurements) -> Estimates | None:
        """What is expected of the measured points; None: unknown, or of two goals."""
        return None if len(measured.goals) > 1 else self._sampler.estimates(self._space, self._finished(measured))


class DefaultFirst(PointSearch):
    """The sampler of a study with a default: it runs that against itself, for the noise, and then searches.

    Args:
        trials: the budget in trials: with few of them the default runs only once.
    """

    def __init__(
        self, kind: str, space: Points, seed: int, options: Mapping[str, Any], *, goals: int, trials: int | None
    ) -> None:
        if space.size <= _SMALL:  # what may be the best of a few points runs again in any case
            options = {**options, "repeats": False}
        super().__init__(kind, space, seed, options, goals=goals)
        self._default: dict[str, object] = dict(space.default)
        self._spends = goals > 1 and trials is not None  # a model is asked about three points of a front only
        self._noise_runs = 1 if trials is not None and trials < _FEW_TRIALS else _NOISE_RUNS

    def propose(self, finished: Measurements, pending: Sequence[Trial]) -> Proposal | None:
        """The next trial; None if there is none now, or nothing better is expected."""
        if not any(each.phase == "noise" for each in pending):
            runs = finished.in_phase("noise")
            if len(runs) < self._noise_runs and all(run.values is not None for run in runs):
                return Proposal(point=self._default, phase="noise", round=len(runs) + 1, block="noise")
        trying = {key_of(each.point): each.point for each in pending if each.phase == "search"}
        small = self._space.size <= _SMALL and any(self.open(finished, each, trying) for each in self._space.points())
        goes_on = small or self._spends or self.promising(finished, trying)
        point = self.next_point(finished, trying) if goes_on else None
        return None if point is None else Proposal(point=point)

    def reason(self, finished: Measurements) -> str:
        """Why it proposes nothing more."""
        if not finished.working():
            return "nothing works"
        if self._space.size == 1:
            return "nothing varies: there is only one point"
        return "no other point is expected to be better"
