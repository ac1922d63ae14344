"""The model-based search: Optuna proposes where to go, and a Gaussian process decides when to stop.

Every ``ask`` builds an Optuna study from the results and the pending points, and asks a new sampler: the answer depends
only on those and the seed, so a study can be resumed without saving a sampler. Optuna does not know that our spaces are
finite and that no point is worth measuring twice: a proposal is replaced by the nearest open point from which a
`Surrogate` still expects an improvement. If it expects none from any point, the search is over.
"""

from __future__ import annotations

import hashlib
import math
import random
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from bireme.tune.search import Direction, Search, Told, shuffled
from bireme.tune.space import Dimension, Point, Points, key_of

if TYPE_CHECKING:
    import optuna

SCANNED = 1024
"""In a larger space, only this many random points are considered as candidates."""

NEGLIGIBLE = 0.01
"""A point is not worth a run if it is expected to improve the best by less than this fraction."""

SHORT = 3
"""On an axis with this many values or fewer, all values count as neighbours."""


class ModelBased(Search):
    """Optuna's tree-structured Parzen estimator (Bergstra et al., NeurIPS 2011), with constraints.

    The first points are spread over the space. Out of memory, like any other failure, counts as a violated constraint,
    so that the model learns to avoid such points.

    Args:
        space: the points.
        direction: ``maximise`` or ``minimise`` the value.
        seed: any number; the same seed and results give the same points.
    """

    def __init__(self, space: Points, direction: Direction = "maximise", seed: int = 0) -> None:
        super().__init__(space, direction, seed)
        self._axes = tuple(_Axis(dimension) for dimension in space.dimensions if len(dimension.choices) > 1)
        self._spread = min(8, 2 + len(self._axes))

    def _candidates(self) -> Iterator[dict[str, object]]:
        known = [*(told.point for told in self.told.values()), *self.pending.values()]
        if not self._axes:
            yield from self.space.points()
        elif len(known) < self._spread:
            yield from self._farthest(known)
        else:
            gains = self._gains()
            nearest = self._nearest(self._propose())
            yield from sorted(nearest, key=lambda point: gains.get(key_of(point), 1.0) < NEGLIGIBLE)

    @property
    def promising(self) -> bool:
        """Whether any open point is expected to improve the best by more than `NEGLIGIBLE`.

        Points beside the best one always count: a model is easily wrong about a stage of which it has seen only slow
        points.
        """
        if not self._axes or len(self.told) + len(self.pending) < self._spread or self.best is None:
            return True
        return any(gain >= NEGLIGIBLE for gain in self._gains().values())

    # -- the first points ----------------------------------------------------------------------------

    def _farthest(self, known: list[dict[str, object]]) -> list[dict[str, object]]:
        """The open points, those with the most untried values first, and among them the farthest from known points.

        The very first point is at an end of every axis.
        """
        places = [self._place(point) for point in known] or [tuple(0.5 for _ in self._axes)]

        def telling(point: dict[str, object]) -> tuple[int, float]:
            here = self._place(point)
            unseen = sum(all(place[axis] != at for place in places) for axis, at in enumerate(here))
            return unseen if known else 0, min(_distance(here, place) for place in places)

        return sorted(self._scan(), key=telling, reverse=True)

    # -- the model -----------------------------------------------------------------------------------

    def _propose(self) -> tuple[float, ...]:
        """The coordinates that the sampler proposes next."""
        direction = "maximize" if self.direction == "maximise" else "minimize"
        study = _optuna().create_study(direction=direction, sampler=_sampler(self._seed_now()))
        distributions = {axis.name: axis.distribution() for axis in self._axes}
        study.add_trials(self._trial(told, distributions) for told in self.told.values())
        study.add_trials(self._running(point, distributions) for point in self.pending.values())
        params = study.ask(distributions).params
        return tuple(axis.place_of_index(params[axis.name]) for axis in self._axes)

    def _trial(self, told: Told, distributions: dict[str, Any]) -> Any:
        violated = max(told.violated, 0.0) if told.value is not None else max(told.violated, 1.0)
        return _optuna().trial.create_trial(
            value=told.value if told.value is not None else self._worst(),
            params={axis.name: axis.index(told.point) for axis in self._axes},
            distributions=distributions,
            constraints={"violated": violated},
        )

    def _running(self, point: Point, distributions: dict[str, Any]) -> Any:
        optuna = _optuna()
        return optuna.trial.create_trial(
            state=optuna.trial.TrialState.RUNNING,
            params={axis.name: axis.index(point) for axis in self._axes},
            distributions=distributions,
        )

    def _worst(self) -> float:
        values = [told.value for told in self.told.values() if told.value is not None]
        return max(values, key=self.cost, default=0.0)

    def _seed_now(self) -> int:
        """A seed that depends on the given seed and all known points, whatever their order."""
        known = "\n".join((str(self.seed), *sorted((*self.told, *self.pending))))
        return int.from_bytes(hashlib.sha256(known.encode()).digest()[:4], "big")

    # -- expected improvement -------------------------------------------------------------------------

    def _gains(self) -> dict[str, float]:
        """The expected improvement at each open point (in a large space: each of a sample); empty without results."""
        from bireme.tune.surrogate import Surrogate

        points = self._scan()
        counting = [told for told in self.told.values() if told.counts]
        if not points or not counting:
            return {}
        places = [self._place(told.point) for told in counting]
        values = _logarithms([-self.cost(told.value or 0.0) for told in counting])
        surrogate = Surrogate(places, values)
        if self.pending:
            # Assume the expected results for pending points, so that the next point tells something else.
            pending = [self._place(point) for point in self.pending.values()]
            surrogate = Surrogate([*places, *pending], [*values, *surrogate.expected(pending)])
        open_places = [self._place(point) for point in points]
        gains = surrogate.gains(open_places)
        best = max(counting, key=lambda told: -self.cost(told.value or 0.0)).point
        return {
            key_of(point): max(gain, 2 * NEGLIGIBLE * self._beside(point, best)) * self._chance(place)
            for point, place, gain in zip(points, open_places, gains, strict=True)
        }

    def _beside(self, point: Point, best: Point) -> bool:
        """Whether a point differs from the best on one axis only, by one step or on a `SHORT` axis."""
        apart = [axis for axis in self._axes if axis.index(point) != axis.index(best)]
        if len(apart) != 1:
            return False
        steps = abs(apart[0].index(point) - apart[0].index(best))
        return steps == 1 or apart[0].size <= SHORT

    def _chance(self, place: tuple[float, ...]) -> float:
        """The probability that a point at these coordinates works at all.

        An average of all results weighted by inverse distance (Shepard, 1968): halfway between a point that worked and
        one that failed it is one half.
        """
        results = [(_distance(self._place(told.point), place), told.counts) for told in self.told.values()]
        weights = [(1 / max(apart, 1e-9) ** 4, counts) for apart, counts in results]
        return sum(weight for weight, counts in weights if counts) / sum(weight for weight, _ in weights)

    # -- from a proposal to a point ------------------------------------------------------------------

    def _nearest(self, place: tuple[float, ...]) -> list[dict[str, object]]:
        return sorted(self._scan(), key=lambda point: _distance(self._place(point), place))

    def _scan(self) -> list[dict[str, object]]:
        """The open points, or a sample of them, in random order, so that ties are broken at random too."""
        if self.space.size <= SCANNED:
            points = [point for point in self.space.points() if self.open(point)]
            random.Random(self._seed_now()).shuffle(points)
            return points
        found = []
        for index in shuffled(self.space.size, self._seed_now()):
            point = self.space.point(index)
            if self.open(point):
                found.append(point)
                if len(found) == SCANNED:
                    break
        return found

    def _place(self, point: Point) -> tuple[float, ...]:
        return tuple(axis.place_of_index(axis.index(point)) for axis in self._axes)


class _Axis:
    """A dimension as the model sees it: numbers as their ranks, other values as categories."""

    def __init__(self, dimension: Dimension) -> None:
        self.name, self.ordered = dimension.name, dimension.ordered
        choices = list(dimension.choices)
        if self.ordered:
            choices.sort(key=lambda number: float(str(number)))
        self._index = {key_of({"": choice}): index for index, choice in enumerate(choices)}

    @property
    def size(self) -> int:
        """The number of values."""
        return len(self._index)

    def index(self, point: Point) -> int:
        """The point's rank or category on this axis; 0 if it lacks the dimension or has an unknown value."""
        return self._index.get(key_of({"": point.get(self.name)}), 0)

    def distribution(self) -> optuna.distributions.BaseDistribution:
        from optuna.distributions import CategoricalDistribution, IntDistribution

        if self.ordered:
            return IntDistribution(0, len(self._index) - 1)
        return CategoricalDistribution(tuple(range(len(self._index))))

    def place_of_index(self, index: int) -> float:
        """Numbers lie between 0 and 1; categories so far apart that `_distance` counts any two as 1 apart."""
        return index / (len(self._index) - 1) if self.ordered else 10.0 * index


def _distance(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    """The sum of distances along the axes; categories are equal (0) or different (1)."""
    return sum(min(abs(a - b), 1.0) for a, b in zip(one, other, strict=True))


def _logarithms(values: list[float]) -> list[float]:
    """Values of one sign as logarithms in the same order; others as fractions of the greatest absolute value."""
    if all(value > 0 for value in values):
        return [math.log(value) for value in values]
    if all(value < 0 for value in values):
        return [-math.log(-value) for value in values]
    greatest = max(map(abs, values)) or 1.0
    return [value / greatest for value in values]


def _sampler(seed: int) -> optuna.samplers.BaseSampler:
    from optuna.samplers import TPESampler

    with warnings.catch_warnings():
        # "multivariate is experimental" is of no use to the user.
        warnings.simplefilter("ignore")
        return TPESampler(seed=seed, n_startup_trials=0, multivariate=True, constant_liar=True, n_ei_candidates=64)


def _optuna() -> Any:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
