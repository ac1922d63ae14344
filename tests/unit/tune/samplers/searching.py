"""A search for tests: a sampler, and what it is told."""

from __future__ import annotations

from typing import Any

from bireme.tune.samplers import make
from bireme.tune.samplers.sampler import Observation, best_of, observe
from bireme.tune.space.points import Point, Points, key_of


class Search:
    """Keeps what has finished and what is pending.

    Args:
        kind: see `make`, which gets all further arguments too.
    """

    def __init__(self, kind: str, space: Points, seed: int = 0, **options: Any) -> None:
        self.space, self.sampler = space, make(kind, seed, **options)
        self.finished: dict[str, Observation] = {}
        self.pending: dict[str, Point] = {}

    def ask(self) -> Point | None:
        """The next point, which is then pending."""
        point = self.sampler.propose(self.space, self.finished, self.pending)
        if point is not None:
            self.pending[key_of(point)] = point
        return point

    def tell(self, point: Point, value: float | None, cause: str = "ok", seconds: float = 0.0) -> None:
        """A point has ended."""
        self.forget(point)
        observe(self.finished, point, value, cause, seconds)

    def forget(self, point: Point) -> None:
        """A point is not pending any more."""
        self.pending.pop(key_of(point), None)

    def open(self, point: Point) -> bool:
        """Whether a point may still be tried."""
        return self.sampler.known(self.space, self.finished, self.pending).open(point)

    @property
    def promising(self) -> bool:
        return self.sampler.promising(self.space, self.finished, self.pending)

    @property
    def best(self) -> Observation | None:
        return best_of(self.finished)
