"""The search of a study: gives the sampler each point as one value of which more is better, whatever the goals are."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Any

from bireme.tune.samplers.by_name import make
from bireme.tune.samplers.sampler import Observation, Pending, best_of, observe
from bireme.tune.space.points import Point, Points, key_of
from bireme.tune.study.observations import Measurements, Run

_WEIGHTS = (0.2, 0.5, 0.8)
"""With two goals the search ends when it expects nothing better by any of these weights of the first."""


class StudySearch:
    """A sampler, and the runs of a study as it sees them. Has no state of its own.

    With two goals it searches for the best by random weights, other ones after each run: Knowles, "ParEGO: a hybrid
    algorithm with on-line landscape approximation for expensive multiobjective optimization problems", IEEE
    Transactions on Evolutionary Computation 10(1), 2006. All weights together find the whole front.

    Args:
        kind: see `by_name.make`.
        space: the points.
        seed: any number.
        negligible: a model expects nothing better if it expects less than this fraction.
        measured: the runs of the study.
    """

    def __init__(self, kind: str, space: Points, seed: int, negligible: float, measured: Measurements) -> None:
        self._space, self._seed, self._measured = space, seed, measured
        options: Mapping[str, Any] = {"repeats": True, "negligible": negligible} if kind == "model_based" else {}
        self._sampler = make(kind, seed, **options)
        self._weights = _WEIGHTS if kind == "model_based" and len(measured.goals) > 1 else (None,)
        self._kept: tuple[object, dict[str, Observation]] = None, {}
        self._told = 0

    def _finished(self, weight: float | None = None) -> dict[str, Observation]:
        """What is known of each point; ``weight``: of the first of two goals; None: a random one."""
        runs = self._measured.searched
        if len(self._measured.goals) == 1:
            state: object = self._measured.scales
        elif weight is None:
            weight = random.Random(f"{self._seed} {len(runs)}").random()
            state = weight
        else:
            return self._observed(runs, {}, weight)
        if self._kept[0] != state:
            self._kept, self._told = (state, {}), 0
        self._observed(runs[self._told :], self._kept[1], weight or 1.0)
        self._told = len(runs)
        return self._kept[1]

    def _observed(self, runs: list[Run], finished: dict[str, Observation], weight: float) -> dict[str, Observation]:
        """Add runs to what is known; with two goals by how near they are to the best of each."""
        bounds = [self._measured.worst_and_best(goal) for goal in range(len(self._measured.goals))]
        for run in runs:
            value, measurement = None, run.measurement
            if measurement.cause == "infrastructure" and key_of(run.trial.point) in finished:
                continue  # its earlier runs tell more
            if run.figures:
                scores = [self._measured.score(goal, figure) for goal, figure in enumerate(run.figures)]
                value = math.exp(scores[0])
                if len(scores) > 1:
                    near = [
                        (own - low) / ((high - low) or 1.0) for own, (low, high) in zip(scores, bounds, strict=True)
                    ]
                    value = math.exp(min(weight * near[0], (1 - weight) * near[1]) + 0.05 * sum(near))
            observe(finished, run.trial.point, value, measurement.cause, measurement.seconds)
        return finished

    def propose(self, pending: Pending) -> Point | None:
        """The next point; None if there is nothing to try now."""
        return self._sampler.propose(self._space, self._finished(), pending)

    def open(self, point: Point, pending: Pending) -> bool:
        """Whether the point may still be tried."""
        return self._sampler.known(self._space, self._finished(), pending).open(point)

    def promising(self, pending: Pending) -> bool:
        """Whether an open point may be worth a run, as far as the sampler can tell."""
        return any(self._sampler.promising(self._space, self._finished(weight), pending) for weight in self._weights)

    @property
    def best(self) -> Observation | None:
        """The best point so far; None if none has a figure yet."""
        return best_of(self._finished())

    def estimates(self) -> list[tuple[float, float, Point]] | None:
        """(expected score, its standard deviation, point) of the measured points; None: unknown, or of two goals."""
        return None if len(self._measured.goals) > 1 else self._sampler.estimates(self._space, self._finished())
