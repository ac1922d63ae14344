"""Decides which point is tried next (grid, random or model-based search), and when a budget is spent.

``ask`` returns a point that was never asked for before, or None if there is nothing to try now; ``tell`` reports the
result of a point. A result may be told for a point that was not asked for, so an interrupted study is resumed by
telling its earlier results. The same seed and results give the same next point: there is no generator state to save.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Literal

from bireme.errors import BadInputError
from bireme.tune.space.points import Parameter, Point, Points, key_of, shuffled
from bireme.value import Value

Direction = Literal["maximize", "minimize"]


class Observation(Value):
    """The results of a point.

    Attributes:
        value: its mean figure; None if it failed or ran out of memory.
        values: the figures of all its runs.
        cause: of its last end; ``pruned``: it cannot be better than its figure.
        seconds: the mean wall time of a run; 0.0 if unknown.
    """

    point: dict[str, object]
    value: float | None
    values: tuple[float, ...] = ()
    cause: str = "ok"
    seconds: float = 0.0


class Search(ABC):
    """Base of all searches: keeps the results and pending points. A subclass defines the order, `_candidates`.

    Args:
        seed: any number; a grid search ignores it.
    """

    def __init__(self, space: Points, direction: Direction = "maximize", seed: int = 0) -> None:
        if direction not in ("maximize", "minimize"):
            raise BadInputError(f"unknown direction: {direction!r} (expected 'maximize' or 'minimize')")
        self.space, self.direction, self.seed = space, direction, seed
        self.observations: dict[str, Observation] = {}
        self.pending: dict[str, dict[str, object]] = {}
        self._rules: list[Callable[[Point], bool]] = []
        self._memory = {each.name: each for each in space.parameters if each.memory}

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

    def tell(self, point: Point, value: float | None, *, cause: str = "ok", seconds: float = 0.0) -> None:
        """Report a result of a point, whether or not it was asked for.

        What ran out of memory excludes all points with as much or more in every ``memory`` parameter and the same
        values of the others.

        Args:
            value: its figure; None: it failed or ran out of memory.
            cause: ``out of memory``, or ``pruned`` if the figure is only a bound; other words mean nothing here.
            seconds: wall time of the run.
        """
        key = key_of(point)
        self.pending.pop(key, None)
        before = self.observations.get(key)
        values = before.values if before else ()
        if value is not None:
            values = (*values, value)
        took = before.seconds + (seconds - before.seconds) / (len(before.values) + 1) if before else seconds
        self.observations[key] = Observation(
            point=dict(point), value=_mean(values), values=values, cause=cause, seconds=took
        )
        if value is None and cause == "out of memory" and self._memory:
            self.rule_out(self._needs_more(point))

    def forget(self, point: Point) -> None:
        """Note that a pending point was not measured, for no reason of its own: it may be asked for again."""
        self.pending.pop(key_of(point), None)

    def rule_out(self, predicate: Callable[[Point], bool]) -> None:
        """Exclude the points for which the predicate is true, from now on."""
        self._rules.append(predicate)

    def _needs_more(self, failed: Point) -> Callable[[Point], bool]:
        """Whether a point needs at least the memory of one that ran out of it, and is the same otherwise."""
        memory, rest = self._memory, {name: value for name, value in failed.items() if name not in self._memory}

        def needs_more(point: Point) -> bool:
            return {name: value for name, value in point.items() if name not in memory} == rest and all(
                (name in point) == (name in failed)
                and (name not in point or _size(each, point[name]) >= _size(each, failed[name]))
                for name, each in memory.items()
            )

        return needs_more

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

    def estimates(self) -> list[tuple[float, float, Point]] | None:
        """(expected logarithm, its standard deviation, point) of the measured points; None: there is no model."""
        return None

    @property
    def best(self) -> Observation | None:
        """The best point so far, the earliest of equals; None if none has a figure yet.

        One that was stopped early, or has failed since, counts only if there is no other.
        """
        measured = [each for each in self.observations.values() if each.value is not None]
        measured = [each for each in measured if each.cause == "ok"] or measured
        return min(measured, key=lambda each: self.cost(each.value or 0.0), default=None)

    def cost(self, value: float) -> float:
        """The value, negated if necessary so that less is better."""
        return -value if self.direction == "maximize" else value


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
