"""Decides which point is tried next (grid, random or model-based search), and when a budget is spent.

``ask`` returns a point that was never asked for before, or None if there is nothing to try now; ``tell`` reports the
result of a point. A result may be told for a point that was not asked for, so an interrupted study is resumed by
telling its earlier results. The same seed and results give the same next point: there is no generator state to save.
"""

from __future__ import annotations

import hashlib
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Literal

from bireme.errors import BadInputError
from bireme.tune.space import Parameter, Point, Points, key_of
from bireme.value import Value

Direction = Literal["maximize", "minimize"]
Place = tuple[float, ...]
"""Coordinates of a point, one for each axis."""

KINDS = ("gridsearch", "random", "model_based")


NEGLIGIBLE = 0.01
"""The model stops when no point is expected to improve the best by more than this fraction."""

_SCANNED = 1024
"""In a larger space, the model considers this many random points, and those beside the best one."""

_SHORT = 3
"""On an axis with this many values or fewer, all values count as neighbours."""


class Observation(Value):
    """The result of a point: its figure; None if it failed or ran out of memory."""

    point: dict[str, object]
    value: float | None


class Search(ABC):
    """Base of all searches: keeps the results and pending points. A subclass defines the order, `_candidates`.

    Args:
        space: the points.
        direction: ``maximize`` or ``minimize`` the value.
        seed: any number; a grid search ignores it.
    """

    def __init__(self, space: Points, direction: Direction = "maximize", seed: int = 0) -> None:
        if direction not in ("maximize", "minimize"):
            raise BadInputError(f"unknown direction: {direction!r} (expected 'maximize' or 'minimize')")
        self.space, self.direction, self.seed = space, direction, seed
        self.observations: dict[str, Observation] = {}
        self.pending: dict[str, dict[str, object]] = {}
        self._rules: list[Callable[[Point], bool]] = []

    @abstractmethod
    def _candidates(self) -> Iterable[dict[str, object]]:
        """Points in order of preference. May include known and ruled-out points, which the caller skips."""

    def ask(self) -> dict[str, object] | None:
        """Return the next point, which is then pending; None if there is nothing to try now."""
        for point in self._candidates():
            if self.open(point):
                self.pending[key_of(point)] = point
                return dict(point)
        return None

    def tell(self, point: Point, value: float | None) -> None:
        """Report the result of a point, whether or not it was asked for; None: it failed or ran out of memory."""
        key = key_of(point)
        self.pending.pop(key, None)
        self.observations[key] = Observation(dict(point), value)

    def forget(self, point: Point) -> None:
        """Note that a pending point was not measured, for no reason of its own: it may be asked for again."""
        self.pending.pop(key_of(point), None)

    def rule_out(self, predicate: Callable[[Point], bool]) -> None:
        """Exclude the points for which the predicate is true, from now on."""
        self._rules.append(predicate)

    def ruled_out(self, point: Point) -> bool:
        """Whether a rule excludes the point."""
        return any(rule(point) for rule in self._rules)

    def open(self, point: Point) -> bool:
        """Whether the point may still be asked for."""
        key = key_of(point)
        return key not in self.observations and key not in self.pending and not self.ruled_out(point)

    @property
    def promising(self) -> bool:
        """Whether an open point may be worth a run, as far as the search can tell."""
        return True

    @property
    def best(self) -> Observation | None:
        """The best point so far, the earliest of equals; None if none has a figure yet."""
        measured = [each for each in self.observations.values() if each.value is not None]
        return min(measured, key=lambda each: self.cost(each.value or 0.0), default=None)

    def cost(self, value: float) -> float:
        """The value, negated if necessary so that less is better."""
        return -value if self.direction == "maximize" else value


class _Listed(Search):
    """Base of searches with a fixed order. Each ask continues the walk, so asking for all points takes linear time."""

    def __init__(self, space: Points, direction: Direction = "maximize", seed: int = 0) -> None:
        super().__init__(space, direction, seed)
        self._walk = self._order()
        self._again: list[dict[str, object]] = []

    @abstractmethod
    def _order(self) -> Iterator[dict[str, object]]:
        """Every point once."""

    def _candidates(self) -> Iterator[dict[str, object]]:
        # Not `yield from`: closing this generator half-way would close the walk too.
        return chain(self._forgotten(), self._walk)

    def _forgotten(self) -> Iterator[dict[str, object]]:
        while self._again:
            yield self._again.pop(0)

    def forget(self, point: Point) -> None:
        """A pending point was not measured: it is the next to be asked for."""
        if key_of(point) in self.pending:
            self._again.append(dict(point))
        super().forget(point)


class Grid(_Listed):
    """All points, in the order of the space."""

    def _order(self) -> Iterator[dict[str, object]]:
        return self.space.points()


class Random(_Listed):
    """All points, in a random order given by the seed."""

    def _order(self) -> Iterator[dict[str, object]]:
        return (self.space.point(index) for index in shuffled(self.space.size, self.seed))


def shuffled(size: int, seed: int) -> Iterator[int]:
    """The numbers below ``size`` in random order, drawn as they are needed (Fisher and Yates)."""
    drawn = random.Random(seed)
    moved: dict[int, int] = {}
    for last in range(size - 1, -1, -1):
        pick = drawn.randint(0, last)
        yield moved.get(pick, pick)
        moved[pick] = moved.pop(last, last)


# -- by a model --------------------------------------------------------------------------------------


class ModelBased(Search):
    """The points from which a Gaussian process expects the largest improvement first.

    The first points are spread over the space. The expected improvement of a point is multiplied by the probability
    that it works at all, so that the search keeps away from points that ran out of memory.

    Args:
        space: the points.
        direction: ``maximize`` or ``minimize`` the value.
        seed: any number.
    """

    def __init__(self, space: Points, direction: Direction = "maximize", seed: int = 0) -> None:
        super().__init__(space, direction, seed)
        self._axes = tuple(_Axis(parameter) for parameter in space.parameters if len(parameter.choices) > 1)
        self._spread = min(8, 2 + len(self._axes))

    def _candidates(self) -> Iterable[dict[str, object]]:
        if not self._axes:
            return self.space.points()
        if self._spreads:
            return self._farthest()
        return [point for _, point in sorted(self._gains(), key=lambda each: -each[0])]

    @property
    def promising(self) -> bool:
        """Whether any open point is expected to improve the best by more than `NEGLIGIBLE`."""
        return not self._axes or self._spreads or any(gain >= NEGLIGIBLE for gain, _ in self._gains())

    @property
    def _spreads(self) -> bool:
        """Whether there are too few results for a model."""
        return self.best is None or len(self.observations) + len(self.pending) < self._spread

    def _farthest(self) -> list[dict[str, object]]:
        """The open points, those with the most untried values first, and among them the farthest from known points.

        The very first point is at an end of every axis.
        """
        known = [*(each.point for each in self.observations.values()), *self.pending.values()]
        places = [self._place(point) for point in known] or [tuple(0.5 for _ in self._axes)]

        def telling(point: dict[str, object]) -> tuple[int, float]:
            here = self._place(point)
            unseen = sum(all(place[axis] != at for place in places) for axis, at in enumerate(here))
            return unseen if known else 0, min(_distance(here, place) for place in places)

        return sorted(self._scan(), key=telling, reverse=True)

    def _gains(self) -> list[tuple[float, dict[str, object]]]:
        """Open points (in a large space, some of them), each after the improvement that is expected of it."""
        from bireme.tune.gaussian_process import GaussianProcess

        points, best = self._scan(), self.best
        if not points or best is None:
            return []
        measured = [(each.point, each.value) for each in self.observations.values() if each.value is not None]
        places = [self._place(point) for point, _ in measured]
        values = _logarithms([-self.cost(value) for _, value in measured])
        model = GaussianProcess(places, values)
        if self.pending:
            # Assume the expected results for pending points, so that the next point tells something else.
            pending = [self._place(point) for point in self.pending.values()]
            model = GaussianProcess([*places, *pending], [*values, *model.expected(pending)])
        candidates, best_place = [self._place(point) for point in points], self._place(best.point)
        # Points beside the best always count: a model is easily wrong about a stage with only slow points so far.
        gains = [
            max(gain, 2 * NEGLIGIBLE * self._beside(place, best_place))
            for place, gain in zip(candidates, model.gains(candidates), strict=True)
        ]
        if len(measured) < len(self.observations):
            works = [float(each.value is not None) for each in self.observations.values()]
            known = [self._place(each.point) for each in self.observations.values()]
            chances = GaussianProcess(known, works).expected(candidates)
            gains = [gain * min(max(chance, 0.0), 1.0) for gain, chance in zip(gains, chances, strict=True)]
        return list(zip(gains, points, strict=True))

    def _beside(self, place: Place, best: Place) -> bool:
        """Whether a point differs from the best on one axis only, by one step or on a `_SHORT` axis."""
        apart = [(axis, abs(a - b)) for axis, a, b in zip(self._axes, place, best, strict=True) if a != b]
        return len(apart) == 1 and (apart[0][1] < 1.5 * apart[0][0].step or len(apart[0][0].choices) <= _SHORT)

    def _scan(self) -> list[dict[str, object]]:
        """The open points that the model considers, in random order, so that ties are broken at random."""
        known = "\n".join((str(self.seed), *sorted((*self.observations, *self.pending))))
        seed = int.from_bytes(hashlib.sha256(known.encode()).digest()[:4], "big")
        indices = islice(shuffled(self.space.size, seed), _SCANNED)
        points = {key_of(point): point for point in map(self.space.point, indices)}
        if self.space.size > _SCANNED and self.best is not None:
            points.update((key_of(point), point) for point in self._neighbours(self.best.point))
        return [point for point in points.values() if self.open(point)]

    def _neighbours(self, best: Point) -> Iterator[dict[str, object]]:
        """The points that differ from the best in one parameter."""
        for axis in self._axes:
            changed = ({**best, axis.name: choice} for choice in axis.choices if axis.name in best)
            yield from (point for point in changed if point in self.space)

    def _place(self, point: Point) -> Place:
        return tuple(axis.index(point) * axis.step for axis in self._axes)


class _Axis:
    """A parameter as the model sees it: numbers by their ranks, other values as categories.

    ``step``: the distance of neighbours. Numbers lie between 0 and 1; categories so far apart that any two count as 1
    apart.
    """

    def __init__(self, parameter: Parameter) -> None:
        self.name, self.choices = parameter.name, list(parameter.choices)
        if parameter.ordered:
            self.choices.sort(key=lambda number: float(str(number)))
        self.step = 1 / (len(self.choices) - 1) if parameter.ordered else 10.0
        self._index = {key_of({"": choice}): index for index, choice in enumerate(self.choices)}

    def index(self, point: Point) -> int:
        """The point's rank or category on this axis; 0 if it lacks the parameter or has an unknown value."""
        return self._index.get(key_of({"": point.get(self.name)}), 0)


def _distance(one: Place, other: Place) -> float:
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


# -- how much ----------------------------------------------------------------------------------------


class SearchBudget(Value):
    """How much may be tried; None means no limit.

    ``trials``: in all. ``patience``: trials in a row without an improvement (``tuner_early_stopping``).
    """

    trials: int | None = None
    patience: int | None = None

    def spent(self, costs: Sequence[float | None]) -> str:
        """Why the budget is spent; "" if it is not.

        Args:
            costs: of all trials in the order of their ends, less is better; None counts as no improvement.
        """
        if self.trials is not None and len(costs) >= self.trials:
            return f"the limit of {self.trials} trials is reached (tuner_num_trials)"
        since, best = 0, float("inf")
        for cost in costs:
            since = 0 if cost is not None and cost < best else since + 1
            best = best if cost is None else min(best, cost)
        # Patience begins with the first trial that worked.
        if self.patience and best < float("inf") and since >= self.patience:
            return f"no improvement in the last {since} trials (tuner_early_stopping)"
        return ""


def make(kind: str, space: Points, direction: Direction = "maximize", seed: int = 0) -> Search:
    """Create a search by its ``tuner_type``.

    Args:
        kind: one of `KINDS`.
        space: the points.
        direction: ``maximize`` or ``minimize`` the value.
        seed: any number.

    Raises:
        BadInputError: no such search.
    """
    classes: dict[str, Callable[[Points, Direction, int], Search]] = {
        "gridsearch": Grid,
        "random": Random,
        "model_based": ModelBased,
    }
    if kind not in classes:
        raise BadInputError(f"unknown search: {kind!r}", hint=f"choose one of {', '.join(KINDS)}")
    return classes[kind](space, direction, seed)
