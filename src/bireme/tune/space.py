"""Search spaces: parameters, their choices, and the points of a space. Independent of what is tuned.

A point is a mapping from the names of parameters to values, such as ``{"stage": 1, "micro": 8}``.
Values are JSON values. Spaces are finite and lazy: a point is computed from its index, so a space of a million points
costs nothing until it is enumerated.
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
    """The point as canonical JSON: equal points have equal keys, whatever the order of their parameters."""
    return json.dumps(point, sort_keys=True, separators=(",", ":"))


class Parameter(Value):
    """One thing that varies: its name and its possible values, in the order of a grid search."""

    name: str
    choices: tuple[object, ...]

    @property
    def ordered(self) -> bool:
        """Whether all choices are numbers, which a model can compare."""
        return all(isinstance(choice, (int, float)) and not isinstance(choice, bool) for choice in self.choices)

    def check(self) -> None:
        """Raises BadInputError: there are no choices, or one is listed twice."""
        if not self.choices:
            raise BadInputError(f"no choices for {self.name!r}", hint="list at least one value")
        for index, choice in enumerate(self.choices):
            if _among(choice, self.choices[:index]):
                raise BadInputError(f"{json.dumps(choice)} is listed twice among the choices for {self.name!r}")


class Points(Protocol):
    """A finite, indexed set of points: a `Space`, or a `Union` of spaces."""

    @property
    def size(self) -> int:
        """The number of points."""

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """All parameters of all points."""

    def point(self, index: int) -> dict[str, object]:
        """The point with this index, from 0 to ``size`` - 1."""

    def points(self) -> Iterator[dict[str, object]]:
        """All points, in order."""

    def __contains__(self, point: Point) -> bool: ...


class Space(Value):
    """All combinations of the choices of its parameters; the last parameter varies fastest."""

    parameters: tuple[Parameter, ...]

    @property
    def size(self) -> int:
        """The number of points."""
        return prod(len(parameter.choices) for parameter in self.parameters)

    def point(self, index: int) -> dict[str, object]:
        """The point with this index.

        Raises:
            IndexError: no such point.
        """
        if not 0 <= index < self.size:
            raise IndexError(f"no point {index} in a space of {self.size}")
        chosen = []
        for parameter in reversed(self.parameters):
            index, digit = divmod(index, len(parameter.choices))
            chosen.append((parameter.name, parameter.choices[digit]))
        return dict(reversed(chosen))

    def points(self) -> Iterator[dict[str, object]]:
        """All points, in order."""
        return (self.point(index) for index in range(self.size))

    def __contains__(self, point: Point) -> bool:
        return set(point) == {parameter.name for parameter in self.parameters} and all(
            _among(point[parameter.name], parameter.choices) for parameter in self.parameters
        )


class Union(Value):
    """Several spaces in a row. Their parameters may differ; no point may be in two of them."""

    parts: tuple[Space, ...]

    @property
    def size(self) -> int:
        """The number of points."""
        return sum(part.size for part in self.parts)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Each parameter of any part once, with the choices of all parts; numbers in ascending order."""
        merged: dict[str, list[object]] = {}
        for part in self.parts:
            for parameter in part.parameters:
                known = merged.setdefault(parameter.name, [])
                known.extend(choice for choice in parameter.choices if not _among(choice, known))
        return tuple(_sorted(Parameter(name, tuple(choices))) for name, choices in merged.items())

    def point(self, index: int) -> dict[str, object]:
        """The point with this index.

        Raises:
            IndexError: no such point.
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


def _sorted(parameter: Parameter) -> Parameter:
    if not parameter.ordered:
        return parameter
    return parameter.replace(choices=tuple(sorted(parameter.choices, key=lambda number: float(str(number)))))
