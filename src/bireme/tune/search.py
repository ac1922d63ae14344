"""Which point to try next: ask and tell.

``ask`` gives a point that was never asked for before, or None when there is nothing to try now;
``tell`` says what became of one. What was told need not have been asked for, so a study that was
interrupted goes on by being told its past. The same seed and the same past give the same next
point: no generator is carried along whose state would have to be saved.
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
    """What became of a point.

    ``value`` is None when there is no figure. ``violated`` is above 0 when the point broke a
    constraint (ran out of memory), by how much: such a point is no candidate, whatever its value.
    """

    point: dict[str, object]
    value: float | None
    violated: float = 0.0

    @property
    def counts(self) -> bool:
        """Whether the point may win."""
        return self.value is not None and self.violated <= 0


class Search(ABC):
    """Base of all searches: bookkeeping. A search itself is its order, `_candidates`.

    Args:
        space: the points.
        direction: ``maximise`` or ``minimise`` the value.
        seed: any number; a grid search has no use for it.
    """

    def __init__(self, space: Points, direction: Direction = "maximise", seed: int = 0) -> None:
        if direction not in ("maximise", "minimise"):
            raise BadInputError(f"direction {direction!r} is neither 'maximise' nor 'minimise'")
        self.space, self.direction, self.seed = space, direction, seed
        self.told: dict[str, Told] = {}
        self.pending: dict[str, dict[str, object]] = {}
        self._rules: list[Callable[[Point], bool]] = []

    @abstractmethod
    def _candidates(self) -> Iterable[dict[str, object]]:
        """Points in the order of preference; those that are known or ruled out are passed over by the caller."""

    def ask(self) -> dict[str, object] | None:
        """The next point, pending from now on; None: there is nothing more to try now."""
        for point in self._candidates():
            if self.open(point):
                self.pending[key_of(point)] = point
                return dict(point)
        return None

    def tell(self, point: Point, value: float | None, *, violated: float = 0.0) -> None:
        """What became of a point, whether or not it was asked for.

        Args:
            point: the point.
            value: its figure; None when it failed.
            violated: above 0 when it ran out of memory.
        """
        key = key_of(point)
        self.pending.pop(key, None)
        self.told[key] = Told(dict(point), value, violated)

    def forget(self, point: Point) -> None:
        """A pending point came to nothing, through no fault of its own: it may be asked for again."""
        self.pending.pop(key_of(point), None)

    def rule_out(self, predicate: Callable[[Point], bool]) -> None:
        """From now on, points of which this is true need not be tried."""
        self._rules.append(predicate)

    def ruled_out(self, point: Point) -> bool:
        """Whether one of the rules holds for it."""
        return any(rule(point) for rule in self._rules)

    def open(self, point: Point) -> bool:
        """Whether the point may still be asked for."""
        key = key_of(point)
        return key not in self.told and key not in self.pending and not self.ruled_out(point)

    @property
    def done(self) -> bool:
        """Whether nothing is pending and nothing is left."""
        return not self.pending and not any(self.open(point) for point in self.space.points())

    @property
    def promising(self) -> bool:
        """Whether what is left may be worth a run, as far as the search can tell."""
        return True

    @property
    def best(self) -> Told | None:
        """The best point so far, the earliest of equals; None: none counts yet."""
        counting = [told for told in self.told.values() if told.counts]
        return min(counting, key=lambda told: self.cost(told.value or 0.0)) if counting else None

    def cost(self, value: float) -> float:
        """The value, so turned that less is better."""
        return -value if self.direction == "maximise" else value


class _Listed(Search):
    """Base of those whose order is fixed: the walk goes on where it was, so that asking for all points is linear."""

    def __init__(self, space: Points, direction: Direction = "maximise", seed: int = 0) -> None:
        super().__init__(space, direction, seed)
        self._walk = self._order()
        self._again: list[dict[str, object]] = []

    @abstractmethod
    def _order(self) -> Iterator[dict[str, object]]:
        """Every point once."""

    def _candidates(self) -> Iterator[dict[str, object]]:
        # Not `yield from`: a generator that is left half-way would close the walk with it.
        return chain(self._forgotten(), self._walk)

    def _forgotten(self) -> Iterator[dict[str, object]]:
        while self._again:
            yield self._again.pop(0)

    def forget(self, point: Point) -> None:
        """As `Search.forget`; the point is the next to be asked for."""
        if key_of(point) in self.pending:
            self._again.append(dict(point))
        super().forget(point)


class Grid(_Listed):
    """All points, in the order of the space."""

    def _order(self) -> Iterator[dict[str, object]]:
        return self.space.points()


class Random(_Listed):
    """All points, in an order drawn once by the seed."""

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
    """How much may be tried; None means without end.

    ``trials``: in all. ``patience``: in a row without a better one (``tuner_early_stopping``).
    """

    trials: int | None = None
    patience: int | None = None

    def spent(self, costs: Sequence[float | None]) -> str:
        """Why it is over, or "".

        Args:
            costs: what every trial came to, in the order of their ends; less is better, None counts
                as a trial that is no better.
        """
        if self.trials is not None and len(costs) >= self.trials:
            return f"{self.trials} trials were made (tuner_num_trials)"
        since, best = 0, float("inf")
        for cost in costs:
            since = 0 if cost is not None and cost < best else since + 1
            best = best if cost is None else min(best, cost)
        # While nothing has worked yet there is nothing to be patient about: what comes next may be the first.
        if self.patience and best < float("inf") and since >= self.patience:
            return f"the last {since} trials brought nothing better (tuner_early_stopping)"
        return ""


def make(kind: str, space: Points, direction: Direction = "maximise", seed: int = 0) -> Search:
    """The search of this name (`KINDS`, the words of ``tuner_type``).

    Raises:
        BadInputError: there is no such search.
    """
    if kind == "gridsearch":
        return Grid(space, direction, seed)
    if kind == "random":
        return Random(space, direction, seed)
    if kind == "model_based":
        from bireme.tune.model import ModelBased

        return ModelBased(space, direction, seed)
    raise BadInputError(f"there is no search {kind!r}", hint=f"choose one of {', '.join(KINDS)}")
