"""Chooses the next point to try (grid, random or by a model), and when a budget is spent.

``ask`` returns a point that was never asked for before, or None if there is nothing to try now; ``tell`` reports the
result of a point. A result may be told for a point that was not asked for, so an interrupted study is resumed by
telling its earlier results. The same seed and results give the same next point: there is no generator state to save.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Literal

from bireme.errors import BadInputError
from bireme.tune.space import Point, Points, key_of
from bireme.value import Value

Direction = Literal["maximise", "minimise"]
KINDS = ("gridsearch", "random", "model_based")


class Told(Value):
    """The result of a point.

    ``value``: its figure; None if there is none. ``violated``: by how much it violated a constraint (ran out of
    memory); a point with more than 0 cannot win, whatever its value.
    """

    point: dict[str, object]
    value: float | None
    violated: float = 0.0

    @property
    def counts(self) -> bool:
        """Whether the point can win."""
        return self.value is not None and self.violated <= 0


class Search(ABC):
    """Base of all searches: keeps the results and pending points. A subclass defines the order, `_candidates`.

    Args:
        space: the points.
        direction: ``maximise`` or ``minimise`` the value.
        seed: any number; a grid search ignores it.
    """

    def __init__(self, space: Points, direction: Direction = "maximise", seed: int = 0) -> None:
        if direction not in ("maximise", "minimise"):
            raise BadInputError(f"unknown direction: {direction!r} (expected 'maximise' or 'minimise')")
        self.space, self.direction, self.seed = space, direction, seed
        self.told: dict[str, Told] = {}
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

    def tell(self, point: Point, value: float | None, *, violated: float = 0.0) -> None:
        """Report the result of a point, whether or not it was asked for.

        Args:
            point: the point.
            value: its figure; None if it failed.
            violated: above 0 if it ran out of memory.
        """
        key = key_of(point)
        self.pending.pop(key, None)
        self.told[key] = Told(dict(point), value, violated)

    def forget(self, point: Point) -> None:
        """A pending point was not measured, for no reason of its own: it may be asked for again."""
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
        return key not in self.told and key not in self.pending and not self.ruled_out(point)

    @property
    def promising(self) -> bool:
        """Whether an open point may be worth a run, as far as the search can tell."""
        return True

    @property
    def best(self) -> Told | None:
        """The best point so far, the earliest of equals; None if no point counts yet."""
        counting = [told for told in self.told.values() if told.counts]
        return min(counting, key=lambda told: self.cost(told.value or 0.0)) if counting else None

    def cost(self, value: float) -> float:
        """The value, negated if necessary so that less is better."""
        return -value if self.direction == "maximise" else value


class _Listed(Search):
    """Base of searches with a fixed order. Each ask continues the walk, so asking for all points takes linear time."""

    def __init__(self, space: Points, direction: Direction = "maximise", seed: int = 0) -> None:
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


def make(kind: str, space: Points, direction: Direction = "maximise", seed: int = 0) -> Search:
    """Create a search by its ``tuner_type``.

    Args:
        kind: one of `KINDS`.
        space: the points.
        direction: ``maximise`` or ``minimise`` the value.
        seed: any number.

    Raises:
        BadInputError: no such search.
    """
    if kind == "gridsearch":
        return Grid(space, direction, seed)
    if kind == "random":
        return Random(space, direction, seed)
    if kind == "model_based":
        from bireme.tune.model import ModelBased

        return ModelBased(space, direction, seed)
    raise BadInputError(f"unknown search: {kind!r}", hint=f"choose one of {', '.join(KINDS)}")
