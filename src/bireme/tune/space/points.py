"""Search spaces: the points that parameters, conditions and constraints allow. Independent of what is tuned.

A point is a mapping from the names of parameters to values, such as ``{"stage": 1, "micro": 8}``.
Values are JSON values. Spaces are finite and lazy: a point is computed from its index, so a space of a million points
costs nothing until it is enumerated.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from math import prod
from typing import Protocol

from bireme.errors import BadInputError
from bireme.tune.space.constraint_groups import Condition, Group, TooManyStepsError, grouped, in_order
from bireme.tune.space.expressions import Expression
from bireme.tune.space.parameter import Parameter, Point, among
from bireme.value import Value

__all__ = ["Condition", "Parameter", "Point", "Points", "Space", "Union", "key_of", "shuffled"]

_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"))

_MISSES = 200
"""A sample that draws only known points this many times in a row goes through all points in order."""


def key_of(point: Point) -> str:
    """The point as canonical JSON: equal points have equal keys, whatever the order of their parameters."""
    return _CANONICAL.encode(point)


class Points(Protocol):
    """A finite, indexed set of points: a `Space`, or a `Union` of spaces."""

    @property
    def size(self) -> int:
        """The number of points. In a space with constraints that allow too many to be listed, an upper limit."""

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """All parameters of all points."""

    @property
    def default(self) -> Point:
        """The baseline: the point of the parameters' defaults."""

    def point(self, index: int) -> dict[str, object]:
        """The point with this index, from 0 to ``size`` - 1. Several have the same point only if that is a limit."""

    def points(self) -> Iterator[dict[str, object]]:
        """All points, in order."""

    def allows(self, point: Point) -> bool:
        """Whether it has a choice for each active parameter and for no other, and no constraint excludes it."""

    def sample(self, count: int, seed: int) -> list[dict[str, object]]:
        """Different points, drawn at random; all points if they are fewer."""

    def __contains__(self, point: Point) -> bool: ...


class _Sampled:
    """What each kind of space has in the same way."""

    def sample(self: Points, count: int, seed: int) -> list[dict[str, object]]:
        """Different points, drawn at random; all points if they are fewer."""
        found: dict[str, dict[str, object]] = {}
        misses = 0
        for index in shuffled(self.size, seed):
            if len(found) >= count or misses > _MISSES:
                break
            try:
                point = self.point(index)
            except IndexError:  # the constraints allow none at all
                break
            key = key_of(point)
            misses = misses + 1 if key in found else 0
            found[key] = point
        if misses > _MISSES:
            for point in self.points():
                if len(found) >= count:
                    break
                found.setdefault(key_of(point), point)
        return list(found.values())

    def __contains__(self: Points, point: Point) -> bool:
        return self.allows(point)


class Space(_Sampled):
    """The combinations of the choices of its parameters that conditions and constraints allow.

    The last parameter varies fastest, but for parameters that conditions or constraints connect: these vary together.
    A condition that names an absent parameter does not hold, and a constraint that does so does not apply.

    Args:
        parameters: what varies.
        conditions: a parameter is absent from a point in which one of its conditions does not hold.
        constraints: a point in which one of them does not hold is not in the space.

    Raises:
        BadInputError: conditions depend on each other.
    """

    def __init__(
        self,
        parameters: Sequence[Parameter],
        conditions: Sequence[Condition] = (),
        constraints: Sequence[Expression] = (),
    ) -> None:
        self.parameters = tuple(parameters)
        self.conditions, self.constraints = tuple(conditions), tuple(constraints)
        self._groups = grouped(self.parameters, self.conditions, self.constraints)

    @cached_property
    def size(self) -> int:
        """The number of points. If constraints allow too many to be listed, an upper limit."""
        return prod(group.size for group in self._groups)

    @property
    def is_exact(self) -> bool:
        """Whether `size` is the number of points."""
        return all(group.is_exact for group in self._groups)

    @property
    def default(self) -> Point:
        """The baseline: the point of the parameters' defaults. `check` finds whether a constraint excludes it."""
        point: dict[str, object] = {}
        for parameter in in_order(self.parameters, self.conditions):
            if self._group_of[parameter.name].active(parameter.name, point):
                point[parameter.name] = parameter.default
        return self._sorted(point)

    def point(self, index: int) -> dict[str, object]:
        """The point with this index. If `size` is an upper limit, several indices may have the same point.

        Raises:
            IndexError: no such point.
        """
        if not 0 <= index < self.size:
            raise IndexError(f"no point {index} in a space of {self.size}")
        point: dict[str, object] = {}
        for group in reversed(self._groups):
            index, digit = divmod(index, group.size)
            point.update(group.at(digit))
        return self._sorted(point)

    def points(self) -> Iterator[dict[str, object]]:
        """All points, in order."""
        return map(self._sorted, self._from(0))

    def _from(self, number: int) -> Iterator[dict[str, object]]:
        if number == len(self._groups):
            yield {}
            return
        for part in self._groups[number].all():
            for rest in self._from(number + 1):
                yield {**part, **rest}

    def allows(self, point: Point) -> bool:
        """Whether this is a point of the space."""
        for each in self.parameters:
            if (each.name in point) is not self._group_of[each.name].active(each.name, point):
                return False
            if each.name in point and not among(point[each.name], each.choices):
                return False
        return point.keys() <= self._group_of.keys() and all(not group.excluded_by(point) for group in self._groups)

    def check(self, suggest: Callable[[Point], str] | None = None) -> None:
        """Check that the space can be searched.

        Args:
            suggest: makes from values of parameters what the user types to make them the default.

        Raises:
            BadInputError: a parameter is impossible or declared twice, no point is allowed, or a constraint excludes
                the default point.
        """
        for index, each in enumerate(self.parameters):
            each.check()
            if each.name in {other.name for other in self.parameters[:index]}:
                raise BadInputError(f"the parameter {each.name!r} is declared twice", hint="rename one of the two")
        default = self.default
        for group in self._groups:
            if excluded := group.excluded_by(default):
                self._refuse_default(group, default, excluded, suggest or self._as_words)

    def _refuse_default(
        self, group: Group, default: Point, excluded: Expression, suggest: Callable[[Point], str]
    ) -> None:
        try:
            group.refuse_if_empty()
            near = group.first(_NEAR)
        except TooManyStepsError:
            near = {}
        named = {name: default[name] for name in excluded.names}
        raise BadInputError(
            f"the default point ({self._as_words(named)}) is excluded by the constraint {excluded.text!r}",
            hint=f"say what the program uses today{', such as' if near else ''}: {suggest(near or named)}",
        )

    def _as_words(self, point: Point) -> str:
        texts = {each.name: each.text(point[each.name]) for each in self.parameters if each.name in point}
        return " ".join(f"{name}={text}" for name, text in texts.items())

    @cached_property
    def _group_of(self) -> dict[str, Group]:
        return {each.name: group for group in self._groups for each in group.parameters}

    def _sorted(self, point: Point) -> dict[str, object]:
        """A point with its parameters in the order of the space."""
        return {each.name: point[each.name] for each in self.parameters if each.name in point}


_NEAR = 100_000
"""Steps of the search for an allowed point that an error message proposes."""


class Union(_Sampled, Value):
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
                known.extend(choice for choice in parameter.choices if not among(choice, known))
        return tuple(_ascending(Parameter(name=name, choices=tuple(choices))) for name, choices in merged.items())

    @property
    def default(self) -> Point:
        """The default of the first part."""
        return self.parts[0].default

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

    def allows(self, point: Point) -> bool:
        """Whether a part allows this point."""
        return any(part.allows(point) for part in self.parts)


def shuffled(size: int, seed: int) -> Iterator[int]:
    """The numbers below ``size`` in random order, drawn as they are needed (Fisher and Yates)."""
    drawn = random.Random(seed)
    moved: dict[int, int] = {}
    for last in range(size - 1, -1, -1):
        pick = drawn.randint(0, last)
        yield moved.get(pick, pick)
        moved[pick] = moved.pop(last, last)


def _ascending(parameter: Parameter) -> Parameter:
    if not parameter.ordered:
        return parameter
    choices = tuple(sorted(parameter.choices, key=lambda number: float(str(number))))
    return parameter.replace(choices=choices)
