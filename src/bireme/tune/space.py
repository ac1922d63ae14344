"""What may vary: dimensions, spaces and the points in them. Nothing here knows what is tuned.

A point is a mapping from the names of dimensions to values, such as ``{"stage": 1, "micro": 8}``.
Values are what JSON can write. Spaces are finite and lazy: points are computed from their index,
so that a space of a million points costs nothing until it is walked through.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from math import prod
from typing import Protocol

from bireme.errors import BadInputError
from bireme.value import Value

Point = Mapping[str, object]


def key_of(point: Point) -> str:
    """The point as canonical JSON: equal points have equal keys, whatever the order of their names."""
    return json.dumps(point, sort_keys=True, separators=(",", ":"))


class Dimension(Value):
    """One thing that varies: a name, and the values that it may take, in the order of a grid search."""

    name: str
    choices: tuple[object, ...]

    @property
    def ordered(self) -> bool:
        """Whether all choices are numbers, so that a model may speak of more and less."""
        return all(isinstance(choice, (int, float)) and not isinstance(choice, bool) for choice in self.choices)

    def check(self) -> None:
        """Raises BadInputError: there is no choice, or one stands there twice."""
        if not self.choices:
            raise BadInputError(f"nothing to choose from for {self.name!r}", hint="name at least one value")
        for index, choice in enumerate(self.choices):
            if _among(choice, self.choices[:index]):
                raise BadInputError(f"{json.dumps(choice)} stands twice among the choices for {self.name!r}")


class Points(Protocol):
    """A finite set of points that can be counted through: a `Space`, or a `Union` of some."""

    @property
    def size(self) -> int:
        """How many points there are."""

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """All dimensions of all points."""

    def point(self, index: int) -> dict[str, object]:
        """The point with this index, from 0 to ``size`` - 1."""

    def points(self) -> Iterator[dict[str, object]]:
        """All points, in order."""

    def __contains__(self, point: Point) -> bool: ...


class Space(Value):
    """Every combination of the choices of its dimensions; the last dimension varies fastest."""

    dimensions: tuple[Dimension, ...]

    def check(self) -> None:
        """Raises BadInputError: a dimension is empty, or two have the same name."""
        names = [dimension.name for dimension in self.dimensions]
        for name in names:
            if names.count(name) > 1:
                raise BadInputError(f"two dimensions are called {name!r}")
        for dimension in self.dimensions:
            dimension.check()

    @property
    def size(self) -> int:
        """How many points there are."""
        return prod(len(dimension.choices) for dimension in self.dimensions)

    def point(self, index: int) -> dict[str, object]:
        """The point with this index.

        Raises:
            IndexError: there is none.
        """
        if not 0 <= index < self.size:
            raise IndexError(f"no point {index} in a space of {self.size}")
        chosen = []
        for dimension in reversed(self.dimensions):
            index, digit = divmod(index, len(dimension.choices))
            chosen.append((dimension.name, dimension.choices[digit]))
        return dict(reversed(chosen))

    def points(self) -> Iterator[dict[str, object]]:
        """All points, in order."""
        return (self.point(index) for index in range(self.size))

    def __contains__(self, point: Point) -> bool:
        return set(point) == {dimension.name for dimension in self.dimensions} and all(
            _among(point[dimension.name], dimension.choices) for dimension in self.dimensions
        )


class Union(Value):
    """Several spaces, one after the other. Their dimensions may differ, their points must."""

    parts: tuple[Space, ...]

    @property
    def size(self) -> int:
        """How many points there are."""
        return sum(part.size for part in self.parts)

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """Every dimension of every part once, with the choices of all parts; numbers in rising order."""
        merged: dict[str, list[object]] = {}
        for part in self.parts:
            for dimension in part.dimensions:
                known = merged.setdefault(dimension.name, [])
                known.extend(choice for choice in dimension.choices if not _among(choice, known))
        return tuple(_sorted(Dimension(name, tuple(choices))) for name, choices in merged.items())

    def point(self, index: int) -> dict[str, object]:
        """The point with this index.

        Raises:
            IndexError: there is none.
        """
        rest = index
        for part in self.parts:
            if 0 <= rest < part.size:
                return part.point(rest)
            rest -= part.size
        raise IndexError(f"no point {index} in a space of {self.size}")

    def points(self) -> Iterator[dict[str, object]]:
        """All points, in order."""
        return (point for part in self.parts for point in part.points())

    def __contains__(self, point: Point) -> bool:
        return any(point in part for part in self.parts)


def _among(value: object, choices: tuple[object, ...] | list[object]) -> bool:
    # True == 1 in Python, but not in a configuration.
    return any(value == choice and isinstance(value, bool) == isinstance(choice, bool) for choice in choices)


def _sorted(dimension: Dimension) -> Dimension:
    if not dimension.ordered:
        return dimension
    return dimension.replace(choices=tuple(sorted(dimension.choices, key=lambda number: float(str(number)))))
