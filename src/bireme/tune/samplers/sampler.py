"""Proposes the points of a search: grid, random or by a model.

A sampler is stateless: the next point depends on its seed, on what has finished and on what is pending, and on nothing
else. What a sampler keeps only saves time. So an interrupted study is resumed by reading its results, and none of them
need have been proposed.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Literal, TypeAlias

from bireme.errors import BadInputError
from bireme.tune.space.parameter import Interval
from bireme.tune.space.points import Parameter, Point, Points, key_of, shuffled
from bireme.value import Value

Direction = Literal["maximize", "minimize"]


class Observation(Value):
    """The results of a point.

    Attributes:
        value: its mean value, more is better; None if it failed or ran out of memory.
        values: the values of all its runs.
        cause: of its last end. ``pruned``: it cannot be better than its value; ``infrastructure``: it was given up.
        seconds: the mean wall time of a run; 0.0 if unknown.
    """

    point: dict[str, object]
    value: float | None
    values: tuple[float, ...] = ()
    cause: str = "ok"
    seconds: float = 0.0


Finished: TypeAlias = Mapping[str, Observation]
"""What is known of points, by their keys, in the order of the ends of their first runs."""

Pending: TypeAlias = Mapping[str, Point]
"""Points that run now, by their keys."""


def observe(
    finished: dict[str, Observation], point: Point, value: float | None, cause: str = "ok", seconds: float = 0.0
) -> None:
    """Add a result to what has finished; ``value``: None if it failed or ran out of memory."""
    key = key_of(point)
    before = finished.get(key)
    values = before.values if before else ()
    took = before.seconds + (seconds - before.seconds) / (len(values) + 1) if before else seconds
    if value is not None:
        values = (*values, value)
    finished[key] = Observation(point=dict(point), value=_mean(values), values=values, cause=cause, seconds=took)


class Known:
    """What is known when the next point is chosen.

    A point that ran out of memory excludes all points with as much or more in every ``memory`` parameter and the same
    values of the others.

    """

    def __init__(
        self, space: Points, finished: Finished, pending: Pending, excluded: Callable[[Point], bool] | None = None
    ) -> None:
        self.space, self.finished, self.pending, self._excluded = space, finished, pending, excluded

    def open(self, point: Point) -> bool:
        """Whether the point may still be tried."""
        key = key_of(point)
        return key not in self.finished and key not in self.pending and not self.ruled_out(point)

    def ruled_out(self, point: Point) -> bool:
        """Whether the point is excluded, or needs as much memory as one that ran out of it."""
        return bool(self._excluded and self._excluded(point)) or any(
            self._needs_more(point, failed) for failed in self._too_large
        )

    @cached_property
    def _memory(self) -> dict[str, Parameter]:
        return {each.name: each for each in self.space.parameters if each.memory}

    @cached_property
    def _too_large(self) -> list[Point]:
        told = self.finished.values() if self._memory else ()
        return [each.point for each in told if each.value is None and each.cause == "out of memory"]

    def _needs_more(self, point: Point, failed: Point) -> bool:
        """Whether a point needs at least the memory of one that ran out of it, and is the same otherwise."""
        memory = self._memory
        rest, others = ({name: value for name, value in each.items() if name not in memory} for each in (failed, point))
        return rest == others and all(
            (name in point) == (name in failed)
            and (name not in point or _size(each, point[name]) >= _size(each, failed[name]))
            for name, each in memory.items()
        )


class Sampler(ABC):
    """Base of all samplers.

    Args:
        seed: any number; a grid ignores it.
        excluded: whether a point must not be tried; None: all may.

    Attributes:
        tries_all: whether it comes to every point of a space.
    """

    tries_all = False

    def __init__(self, seed: int = 0, excluded: Callable[[Point], bool] | None = None) -> None:
        self.seed, self._excluded = seed, excluded

    def check(self, space: Points) -> None:
        """Check that the sampler can search the space.

        Raises:
            BadInputError: it cannot: nobody can try all numbers of an interval.
        """
        for each in space.parameters:
            if self.tries_all and isinstance(interval := each.choices, Interval):
                ends, width = f"{interval.low}..{interval.high}", interval.high - interval.low
                how = f"{ends}:log:10" if interval.logarithmic else f"{ends}:{width / 8:g}"
                raise BadInputError(
                    f"a grid search needs a list of numbers, but {each.name!r} is any number"
                    f" from {interval.low} to {interval.high}",
                    hint=f"give the numbers ({each.name}={how}), or choose another --search",
                )

    @abstractmethod
    def propose(self, space: Points, finished: Finished, pending: Pending) -> Point | None:
        """The next point; None if there is nothing to try now."""

    def promising(self, space: Points, finished: Finished, pending: Pending) -> bool:
        """Whether an open point may be worth a run, as far as the sampler can tell."""
        return True

    def estimates(self, space: Points, finished: Finished) -> list[tuple[float, float, Point]] | None:
        """(expected logarithm, its standard deviation, point) of the measured points; None: there is no model."""
        return None

    def known(self, space: Points, finished: Finished, pending: Pending) -> Known:
        """What is known, with the points that this sampler must not try."""
        return Known(space, finished, pending, self._excluded)


def best_of(finished: Finished) -> Observation | None:
    """The best point, the earliest of equals; one that was stopped early or failed since only if there is no other."""
    measured = [each for each in finished.values() if each.value is not None]
    measured = [each for each in measured if each.cause == "ok"] or measured
    return max(measured, key=lambda each: each.value or 0.0, default=None)


def _size(parameter: Parameter, choice: object) -> float:
    """How much memory a choice needs, compared with other choices of the parameter."""
    if parameter.ordered and isinstance(choice, (int, float)):
        return float(choice)
    return float(parameter.choices.index(choice))


def _mean(values: Sequence[float]) -> float | None:
    """The mean of the logarithms if all are positive, since speeds are compared by ratios; else the usual mean."""
    if not values:
        return None
    if len(values) == 1:
        return values[0]
    if all(value > 0 for value in values):
        return math.exp(sum(map(math.log, values)) / len(values))
    return sum(values) / len(values)


class Random(Sampler):
    """All points, in a random order given by the seed."""

    _space: Points | None = None
    _finished = 0

    def _order(self, space: Points) -> Iterator[dict[str, object]]:
        return (space.point(index) for index in shuffled(space.size, self.seed))

    def propose(self, space: Points, finished: Finished, pending: Pending) -> Point | None:
        """The first open point. Goes on where the last one was found, so that all points take linear time."""
        if self._space is not space or len(finished) < self._finished:
            self._space, self._walk, self._passed = space, self._order(space), dict[str, Point]()
        self._finished = len(finished)
        known = self.known(space, finished, pending)
        for key in [key for key in self._passed if key in finished]:
            del self._passed[key]
        for point in self._passed.values():
            if known.open(point):
                return point
        for point in self._walk:
            if (key := key_of(point)) not in finished and not known.ruled_out(point):
                self._passed[key] = point
                if key not in pending:
                    return point
        return None


class Grid(Random):
    """All points, in the order of the space."""

    tries_all = True

    def _order(self, space: Points) -> Iterator[dict[str, object]]:
        return space.points()
