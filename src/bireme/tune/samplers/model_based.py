"""A search by a model: tries the points first from which a Gaussian process expects the largest improvement.

Points that run out of memory say something about others: what needs more of every ``memory`` parameter and is the same
otherwise is excluded, and the same sizes become unlikely to fit for other choices. Other failures make their
surroundings unlikely to work. The expected improvement is multiplied by the probability that a point works at all, and
divided by the seconds that it is expected to take.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from random import Random
from typing import TYPE_CHECKING

from bireme.tune.samplers.sampler import Finished, Known, Observation, Pending, Sampler, best_of
from bireme.tune.space.expressions import is_number
from bireme.tune.space.parameter import Interval, Lazy
from bireme.tune.space.points import Parameter, Point, Points, key_of, shuffled

if TYPE_CHECKING:
    from bireme.tune.samplers.gaussian_process import Array, GaussianProcess

Place = tuple[float, ...]
"""Coordinates of a point, one for each axis."""

NEGLIGIBLE = 0.01
"""The model stops when no point is expected to improve the best by more than this fraction."""

_SCANNED = 1024
"""A space of this many points is considered as a whole, a larger one by half as many random points, and points around
the best ones."""

_BEST = 3
"""Around this many of the best points."""

_SCALES = (0.2, 0.05, 0.015, 0.005, 0.0015)
"""How far from them on average, on each axis; as parts of it."""

_NEAR = 16
"""So many points at each of these distances."""

_REPEATED = 64
"""So many of the best points may run again."""

_SHORT = 3
"""On an axis with this many values or fewer, all values count as neighbours."""

_COARSE = 64
"""On an axis with more values, those beside the best tell nothing new."""

_MOST_RUNS = 8
"""A point is not measured more often than this; what is still unclear then is for paired rounds."""

_MODELLED = 160
"""The model uses at most this many points: the better half, and some of the rest."""

_FAR_BEHIND = 0.5
"""How far a point is behind the best matters less beyond this logarithm of the ratio."""


class ModelBased(Sampler):
    """The points from which a Gaussian process expects the largest improvement first, after a few that spread.

    Args:
        excluded: whether a point must not be tried; None: all may.
        repeats: whether points that were measured may be proposed again, where there is noise.
        negligible: it is no longer `promising` when no improvement by this fraction is expected.
    """

    def __init__(
        self,
        seed: int = 0,
        excluded: Callable[[Point], bool] | None = None,
        *,
        repeats: bool = False,
        negligible: float = NEGLIGIBLE,
    ) -> None:
        super().__init__(seed, excluded)
        self.repeats, self.negligible = repeats, negligible
        self._map: _Map | None = None
        self._guesses: list[_Guess] = []

    def propose(self, space: Points, finished: Finished, pending: Pending) -> Point | None:
        """The open point that promises most; None if there is nothing to try now."""
        guess = self._guess(space, finished, pending)
        free = (point for point in guess.candidates() if key_of(point) not in pending)
        return next((point for point in free if self.repeats or guess.known.open(point)), None)

    def promising(self, space: Points, finished: Finished, pending: Pending) -> bool:
        """Whether any open point is expected to improve the best by more than ``negligible``."""
        return self._guess(space, finished, pending).promising

    def estimates(self, space: Points, finished: Finished) -> list[tuple[float, float, Point]] | None:
        """(expected logarithm, its standard deviation, point) of the measured points."""
        return self._guess(space, finished, {}).estimates()

    def _guess(self, space: Points, finished: Finished, pending: Pending) -> _Guess:
        """What is known and guessed; the last few are kept, because they are asked for several times."""
        if self._map is None or self._map.space is not space:
            self._map, self._guesses = _Map(space), []
        state = (tuple(finished.values()), tuple(pending))
        for guess in self._guesses:
            if guess.state == state:
                return guess
        made = _Guess(self, self._map, self.known(space, dict(finished), dict(pending)))
        self._guesses = [*self._guesses[-3:], made]
        return made


class _Guess:
    """What a model says after some results. Nothing in it changes; what is asked for is calculated once."""

    def __init__(self, settings: ModelBased, places: _Map, known: Known) -> None:
        self._settings, self._map, self.known, self._axes = settings, places, known, places.axes
        self.state = (tuple(known.finished.values()), tuple(known.pending))
        self._observations = {key: each for key, each in known.finished.items() if each.cause != "infrastructure"}
        self._best = best_of(self._observations)
        self._place = places.place

    def candidates(self) -> Iterable[Point]:
        """Points, the most promising first; also such that are not open."""
        if not self._axes:
            return filter(self._open, self.known.space.points())
        if self._spreads:
            return self._farthest()
        ranked = sorted(self._gains, key=lambda each: -each[1])
        return [point for gain, _, point in ranked if gain >= self._settings.negligible or self._open(point)]

    @property
    def promising(self) -> bool:
        """Whether any open point is expected to improve the best by more than is negligible."""
        if not self._axes:
            return any(map(self._open, self.known.space.points()))
        return self._spreads or any(gain >= self._settings.negligible for gain, _, _ in self._gains)

    @property
    def _spreads(self) -> bool:
        """Whether there are too few results for a model."""
        spread = min(8, 2 + len(self._axes))
        return self._best is None or len(self._observations) + len(self.known.pending) < spread

    def _farthest(self) -> list[dict[str, object]]:
        """The open points, those with the most untried values first, and among them the farthest from known points.

        The very first point is at an end of every axis.
        """
        known = [*(each.point for each in self._observations.values()), *self.known.pending.values()]
        places = [self._place(point) for point in known] or [tuple(0.5 for _ in self._axes)]

        def telling(point: dict[str, object]) -> tuple[int, float]:
            here = self._place(point)
            unseen = sum(all(place[axis] != at for place in places) for axis, at in enumerate(here))
            return unseen if known else 0, min(_distance(here, place) for place in places)

        return sorted(self._scan(), key=telling, reverse=True)

    # -- the model -------------------------------------------------------------------------------------

    @cached_property
    def _model(self) -> tuple[GaussianProcess, list[Observation]] | None:
        """The model of what was measured, and the observations behind it; None if nothing has a figure."""
        from bireme.tune.samplers.gaussian_process import GaussianProcess

        measured = [each for each in self._observations.values() if each.value is not None]
        if not measured:
            return None
        complete = [each for each in measured if each.cause != "pruned"]
        sure = self._some(complete or measured)
        values = self._values(sure)
        places = [self._map.seen(each.point) for each in sure]
        counts = [len(each.values) for each in sure]
        squares = sum(_squares(each.values) for each in sure)
        model = GaussianProcess(places, values, counts, squares, self._map.pairs)
        bounded = self._some([each for each in measured if each.cause == "pruned"]) if complete else []
        if bounded:
            # A pruned point is at most as good as its figure: the smaller of that and what is expected without it.
            bounds = self._values(sure + bounded)[len(sure) :]
            where = [self._map.seen(each.point) for each in bounded]
            guesses = [min(pair) for pair in zip(bounds, model.expected(where), strict=True)]
            model = model.extended(where, guesses)
        return model, [*sure, *bounded]

    def estimates(self) -> list[tuple[float, float, Point]] | None:
        """(expected logarithm, its standard deviation, point) of the measured points."""
        import numpy as np

        modelled = self._model if self._axes else None
        if modelled is None:
            return None
        model, measured = modelled
        means, deviations = model.predict([self._map.seen(each.point) for each in measured])
        mean = model.weights @ means
        deviation = np.sqrt(model.weights @ (deviations**2 + (means - mean) ** 2))
        return [(float(a), float(b), each.point) for a, b, each in zip(mean, deviation, measured, strict=True)]

    def _some(self, measured: list[Observation]) -> list[Observation]:
        """The first, the best, and of the others as many at even distances as a model has room for."""
        if len(measured) <= _MODELLED:
            return measured
        ranked = sorted(range(1, len(measured)), key=lambda index: -(measured[index].value or 0.0))
        half = _MODELLED // 2
        rest = ranked[half:]
        kept = {0, *ranked[:half], *rest[:: -(-len(rest) // (half - 1))]}
        return [measured[index] for index in sorted(kept)]

    def _values(self, measured: Sequence[Observation]) -> list[float]:
        """Logarithms, more is better. What is far behind the best is drawn nearer: its figure should not count more."""
        values = _logarithms([each.value or 0.0 for each in measured])
        best = max(values)
        return [
            best - _FAR_BEHIND - math.log1p(best - value - _FAR_BEHIND) if best - value > _FAR_BEHIND else value
            for value in values
        ]

    @cached_property
    def _gains(self) -> list[tuple[float, float, dict[str, object]]]:
        """(expected improvement, the same by cost, point) of open points; in a large space, of some of them."""
        import numpy as np

        points, modelled, best = self._scan(), self._model, self._best
        if not points or modelled is None or best is None:
            return []
        model, measured = modelled
        candidates: Array = np.array([self._map.seen(point) for point in points])
        seconds = [each.seconds for each in measured]
        costs = np.ones(len(points))
        if min(seconds) > 0:
            costs = np.exp(np.array(model.expected(candidates, [math.log(each) for each in seconds])))
        if self.known.pending:
            # Assume the expected results for pending points, so that the next point tells something else.
            known = [self._map.seen(each.point) for each in measured]
            counts = [len(each.values) + (key_of(each.point) in self.known.pending) for each in measured]
            pending = [place for place in map(self._map.seen, self.known.pending.values()) if place not in known]
            model = model.extended(pending, model.expected(pending) if pending else (), counts)
        gains = np.array(model.gains(candidates))
        candidates = candidates[:, : len(self._axes)]
        # Points beside the best always count: a model is easily wrong about what has only slow points so far.
        here = self._place(best.point)
        beside = [
            self._beside(place, here) and self._open(point)
            for place, point in zip(map(tuple, candidates), points, strict=True)
        ]
        gains = np.maximum(gains, 2 * self._settings.negligible * np.array(beside))
        gains = gains * self._chances(candidates)
        rates = gains / costs
        return [(float(gain), float(rate), point) for gain, rate, point in zip(gains, rates, points, strict=True)]

    def _chances(self, candidates: Array) -> Array:
        """How likely each place is to work."""
        import numpy as np

        from bireme.tune.samplers.gaussian_process import GaussianProcess

        chances = np.ones(len(candidates))
        told = list(self._observations.values())[-_MODELLED:]
        memory = [number for number, axis in enumerate(self._axes) if axis.memory]
        wall = [each for each in told if each.value is None and each.cause == "out of memory" and memory]
        other = [each for each in told if each not in wall]
        if any(each.value is None for each in other):
            works = [float(each.value is not None) for each in other]
            model = GaussianProcess([self._place(each.point) for each in other], works)
            chances *= np.clip(model.expected(candidates), 0.02, 1.0)
        if wall:
            rest = [number for number in range(len(self._axes)) if number not in memory]
            fits, fails = np.zeros(len(candidates)), np.zeros(len(candidates))
            for each in told:
                here = np.array(self._place(each.point))
                alike = np.exp(-(candidates[:, rest] != here[rest]).sum(axis=1))
                if each.value is not None:
                    fits += alike * (candidates[:, memory] <= here[memory]).all(axis=1)
                elif each.cause == "out of memory":
                    fails += alike * (candidates[:, memory] >= here[memory]).all(axis=1)
            chances *= (0.2 + fits) / (0.2 + fits + fails)
        return chances

    def _beside(self, place: Place, best: Place) -> bool:
        """Whether a point differs from the best on one axis only, by one step or on a `_SHORT` axis."""
        apart = [(axis, abs(a - b)) for axis, a, b in zip(self._axes, place, best, strict=True) if a != b]
        if len(apart) != 1 or len(apart[0][0].choices) > _COARSE:
            return False
        return apart[0][1] < 1.5 * apart[0][0].step or len(apart[0][0].choices) <= _SHORT

    # -- points ----------------------------------------------------------------------------------------

    def _scan(self) -> list[dict[str, object]]:
        """The points that the model considers, in random order, so that ties are broken at random."""
        known = "\n".join((str(self._settings.seed), *sorted((*self._observations, *self.known.pending))))
        seed = int.from_bytes(hashlib.sha256(known.encode()).digest()[:4], "big")
        space = self.known.space
        if space.size <= _SCANNED:
            points = [self._map.all[index] for index in shuffled(len(self._map.all), seed)]
        else:
            drawn = space.sample(_SCANNED // 2, seed)
            beside = self._neighbours(self._best.point) if self._best else ()
            near = (*self._bent(drawn, seed), *beside, *self._around(seed))
            points = list({key_of(point): point for point in (*drawn, *near)}.values())
        points = [point for point in points if self._open(point)]
        if self._settings.repeats:
            best = {key_of(each.point) for each in self._ranked[:_REPEATED]}
            told = (each for key, each in self._observations.items() if key in best)
            points += [each.point for each in told if each.cause == "ok" and len(each.values) < _MOST_RUNS]
        return points

    @cached_property
    def _ranked(self) -> list[Observation]:
        """The points with a value, the best first."""
        measured = [each for each in self._observations.values() if each.value is not None]
        return sorted(measured, key=lambda each: -(each.value or 0.0))

    def _around(self, seed: int) -> Iterator[dict[str, object]]:
        """Random points around the best ones, nearer and farther."""
        random = Random(seed)
        for best in self._ranked[:_BEST]:
            for scale in _SCALES * _NEAR:
                moved = dict(best.point)
                for axis in self._axes:
                    if axis.name in moved and random.random() < max(0.5, 1 / len(self._axes)):
                        moved[axis.name] = axis.moved(moved[axis.name], scale, random)
                if moved in self.known.space:
                    yield moved

    def _bent(self, drawn: Sequence[Point], seed: int) -> Iterator[dict[str, object]]:
        """Every second of some points, with other values where an axis may be logarithmic: as many of each decade."""
        random = Random(seed)
        for point in drawn[::2] if self._map.pairs else ():
            values = {axis.name: axis.drawn(random) for axis in self._axes if axis.bends and axis.name in point}
            if (moved := {**point, **values}) in self.known.space:
                yield moved

    def _neighbours(self, best: Point) -> Iterator[dict[str, object]]:
        """The points that differ from the best in one parameter."""
        for axis in self._axes:
            changed = ({**best, axis.name: choice} for choice in axis.others(best) if axis.name in best)
            yield from (point for point in changed if point in self.known.space)

    def _open(self, point: Point) -> bool:
        return self.known.open(point)


class _Map:
    """The axes of a space, and the places of its points. What it keeps only saves time."""

    def __init__(self, space: Points) -> None:
        self.space = space
        self.axes = tuple(_Axis(parameter) for parameter in space.parameters if len(parameter.choices) > 1)
        self._places: dict[str, Place] = {}
        self._bent = [number for number, axis in enumerate(self.axes) if axis.bends]
        self.pairs = [(number, len(self.axes) + at) for at, number in enumerate(self._bent)]

    @cached_property
    def all(self) -> list[dict[str, object]]:
        """All points of a small space."""
        return list(self.space.points())

    def place(self, point: Point) -> Place:
        """The coordinates of a point."""
        key = key_of(point)
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = tuple(axis.index(point) * axis.step for axis in self.axes)
        return place

    def seen(self, point: Point) -> Place:
        """The coordinates, and those of axes that may be logarithmic as if they were."""
        place = self.place(point)
        return (*place, *(self.axes[number].bent(place[number] / self.axes[number].step) for number in self._bent))


class _Axis:
    """A parameter as the model sees it: numbers by their ranks, other values as categories.

    ``step``: the distance of neighbours. Numbers lie between 0 and 1; categories so far apart that any two count as 1
    apart. ``bends``: whether many numbers lie at even distances, of which the lowest may matter most. The model sees
    these in both ways, linear and logarithmic, and believes the one that explains the results.
    """

    def __init__(self, parameter: Parameter) -> None:
        listed = not isinstance(parameter.choices, Lazy)
        if listed and parameter.ordered and all(map(is_number, parameter.choices)):
            ascending = sorted(parameter.choices, key=lambda number: float(str(number)))
            parameter = parameter.replace(choices=ascending)
        self.name, self.memory, self._parameter = parameter.name, parameter.memory, parameter
        self.choices = parameter.choices
        self.step = 1 / (len(self.choices) - 1) if parameter.ordered else 10.0
        linear = not (isinstance(self.choices, Interval) and self.choices.logarithmic)
        self.bends = parameter.ordered and linear and len(self.choices) > _COARSE

    def index(self, point: Point) -> int:
        """The point's rank or category on this axis; 0 if it lacks the parameter or has an unknown value."""
        return max(0, self._parameter.index(point[self.name])) if self.name in point else 0

    def moved(self, value: object, scale: float, random: Random) -> object:
        """Another choice at about this distance, as a part of the axis; of categories any."""
        if self.step > 1:
            return self.choices[random.randrange(len(self.choices))]
        index, offset = float(self.index({self.name: value})), random.gauss(0.0, scale)
        if self.bends and random.random() < 0.5:
            index = self._straight(self.bent(index) + offset)
        else:
            index += offset / self.step
        return self.choices[min(max(0, round(index)), len(self.choices) - 1)]

    def bent(self, index: float) -> float:
        """The logarithmic coordinate of a choice, from 0 to 1."""
        return math.log1p(index) / math.log1p(len(self.choices) - 1)

    def _straight(self, bent: float) -> float:
        return math.expm1(min(max(0.0, bent), 1.0) * math.log1p(len(self.choices) - 1))

    def drawn(self, random: Random) -> object:
        """A random choice, by its logarithmic coordinate."""
        return self.choices[round(self._straight(random.random()))]

    def others(self, point: Point) -> list[object]:
        """The other choices; of many, those one, four, sixteen and so on steps away."""
        if len(self.choices) <= _COARSE:
            return list(self.choices)
        here, last = self.index(point), len(self.choices) - 1
        steps = [sign * 2**power for power in range(0, last.bit_length(), 2) for sign in (-1, 1)]
        return [self.choices[here + step] for step in steps if 0 <= here + step <= last]


def _distance(one: Place, other: Place) -> float:
    """The sum of distances along the axes; categories are equal (0) or different (1)."""
    return sum(min(abs(a - b), 1.0) for a, b in zip(one, other, strict=True))


def _squares(values: Sequence[float]) -> float:
    """The sum of squares of the logarithms around their mean."""
    logarithms = _logarithms(list(values))
    mean = sum(logarithms) / len(logarithms)
    return sum((each - mean) ** 2 for each in logarithms)


def _logarithms(values: list[float]) -> list[float]:
    """Values of one sign as logarithms in the same order; others as fractions of the greatest absolute value."""
    if all(value > 0 for value in values):
        return [math.log(value) for value in values]
    if all(value < 0 for value in values):
        return [-math.log(-value) for value in values]
    greatest = max(map(abs, values)) or 1.0
    return [value / greatest for value in values]
