"""The search of a study: tells it each run as one value of which more is better, whatever the goals are."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from bireme.tune.samplers.by_name import make
from bireme.tune.samplers.sampler import Observation, Search
from bireme.tune.space.points import Point, Points, key_of
from bireme.tune.study.observations import Measurements, Run

_WEIGHTS = (0.2, 0.5, 0.8)
"""With two goals the search ends when it expects nothing better by any of these weights of the first."""


class StudySearch:
    """A search, made anew when what was told before must be told in another way.

    With two goals it searches for the best by random weights, other ones after each run: Knowles, "ParEGO: a hybrid
    algorithm with on-line landscape approximation for expensive multiobjective optimization problems", IEEE
    Transactions on Evolutionary Computation 10(1), 2006. All weights together find the whole front.

    Args:
        kind: see `searches.make`.
        space: the points.
        seed: any number.
        negligible: a model expects nothing better if it expects less than this fraction.
        measured: the runs of the study.
    """

    def __init__(self, kind: str, space: Points, seed: int, negligible: float, measured: Measurements) -> None:
        self._kind, self._space, self._seed, self._measured = kind, space, seed, measured
        self._options = {"repeats": True, "negligible": negligible} if kind == "model_based" else {}
        self._pending: dict[str, dict[str, object]] = {}
        self._given_up: list[Point] = []
        self._current: Search | None = None
        self._scales = measured.scales
        self._promising: tuple[int, bool] = (-1, True)

    @property
    def _search(self) -> Search:
        if self._current is None:
            weight = random.Random(f"{self._seed} {len(self._measured.searched)}").random()
            self._current = self._make(weight)
        return self._current

    def _make(self, weight: float) -> Search:
        search = make(self._kind, self._space, "maximize", self._seed, **self._options)
        bounds = [self._measured.worst_and_best(goal) for goal in range(len(self._measured.goals))]
        for run in self._measured.searched:
            self._teach(search, run, weight, bounds)
        for point in self._given_up:
            self._rule_out(search, point)
        search.pending.update(self._pending)
        return search

    def _teach(self, search: Search, run: Run, weight: float = 1.0, bounds: Sequence[tuple[float, float]] = ()) -> None:
        """Tell the search of a run; with two goals, how near it is to the best of each, by the weight of the first."""
        if run.measurement.cause == "infrastructure":
            return
        value, measurement = None, run.measurement
        if run.figures:
            scores = [self._measured.score(goal, figure) for goal, figure in enumerate(run.figures)]
            value = math.exp(scores[0])
            if len(scores) > 1:
                near = [(own - low) / ((high - low) or 1.0) for own, (low, high) in zip(scores, bounds, strict=True)]
                value = math.exp(min(weight * near[0], (1 - weight) * near[1]) + 0.05 * sum(near))
        search.tell(run.trial.point, value, cause=measurement.cause, seconds=measurement.seconds)

    def note(self, run: Run) -> None:
        """A run has ended, which is measured already."""
        self._pending.pop(key_of(run.trial.point), None)
        if len(self._measured.goals) > 1 or self._measured.scales != self._scales or self._current is None:
            self._current, self._scales = None, self._measured.scales
        else:
            self._teach(self._current, run)

    def ask(self) -> Point | None:
        """The next point, which is then pending; None if there is nothing to try now."""
        point = self._search.ask()
        if point is not None:
            self.begin(point)
        return point

    def begin(self, point: Point) -> None:
        """A point is pending, asked for or not."""
        self._pending[key_of(point)] = self._search.pending[key_of(point)] = dict(point)

    def forget(self, point: Point) -> None:
        """A pending point was not measured: it may be asked for again."""
        self._pending.pop(key_of(point), None)
        self._search.forget(point)

    def give_up(self, point: Point) -> None:
        """A pending point cannot be measured: it is not asked for again."""
        self._pending.pop(key_of(point), None)
        self._given_up.append(point)
        self._rule_out(self._search, point)

    def _rule_out(self, search: Search, point: Point) -> None:
        search.pending.pop(key_of(point), None)
        search.rule_out(lambda other: other == point)

    def open(self, point: Point) -> bool:
        """Whether the point may still be asked for."""
        return self._search.open(point)

    @property
    def promising(self) -> bool:
        """Whether an open point may be worth a run, as far as the search can tell."""
        if len(self._measured.goals) == 1 or self._kind != "model_based":
            return self._search.promising
        count = len(self._measured.searched)
        if self._promising[0] != count:
            self._promising = count, any(self._make(weight).promising for weight in _WEIGHTS)
        return self._promising[1]

    @property
    def best(self) -> Observation | None:
        """The best point so far; None if none has a figure yet."""
        return self._search.best

    def estimates(self) -> list[tuple[float, float, Point]] | None:
        """(expected score, its standard deviation, point) of the measured points; None: unknown, or of two goals."""
        return None if len(self._measured.goals) > 1 else self._search.estimates()
