"""Search spaces: the points that parameters, conditions and constraints allow. Independent of what is tuned.

A point is a mapping from the names of parameters to values, such as ``{"stage": 1, "micro": 8}``.
Values are JSON values. Spaces are finite and lazy: a point is computed from its index, so a space of a million points
costs nothing until it is enumerated. A space is the product of groups of parameters that constraints and conditions
connect: what is chosen in one does not matter to another.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import Protocol

from bireme.errors import BadInputError
from bireme.tune.space.expressions import Expression, Range
from bireme.tune.space.parameter import Interval, Lazy, Parameter, Point, among
from bireme.value import Value

__all__ = ["Condition", "Parameter", "Point", "Points", "Space", "Union", "key_of", "shuffled"]

_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"))

_MISSES = 200
"""A sample that draws only known points this many times in a row goes through all points in order."""

LISTED = 20_000
"""Steps of the search that are spent on listing a group's points: tens of milliseconds."""

_LOOKED = 300_000
"""Steps that are spent on finding whether a group has any point: a second or two."""

_RESTARTS, _PATIENCE = 200, 300
"""How often a point is looked for from another place, and steps of the search from each."""

_NEAR = 100_000
"""Steps of the search for an allowed point that an error message proposes."""

_LOOSEN = "loosen it, or declare more choices"


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
        """The point with this index; IndexError if there is none."""
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


# -- groups ------------------------------------------------------------------------------------------


class Condition(Value):
    """A parameter that is part of a point only if the expression holds."""

    parameter: str
    only_if: Expression


class TooManyStepsError(Exception):
    """A search of a group had too few steps to come to its end."""


def in_order(parameters: Sequence[Parameter], conditions: Sequence[Condition]) -> list[Parameter]:
    """The parameters, each after those that its conditions name, and else as they are.

    Raises:
        BadInputError: conditions wait for each other.
    """
    waits = {each.name: set[str]() for each in parameters}
    for condition in conditions:
        waits[condition.parameter].update(condition.only_if.names)
    rest, found = list(parameters), list[Parameter]()
    while rest:
        known = {each.name for each in found}
        free = next((each for each in rest if waits[each.name] <= known), None)
        if free is None:
            names = " and ".join(repr(each.name) for each in rest if each.name in waits)
            raise BadInputError(f"the conditions of {names} depend on each other", hint="leave one of them out")
        rest.remove(free)
        found.append(free)
    return found


def grouped(
    parameters: Sequence[Parameter], conditions: Sequence[Condition], constraints: Sequence[Expression]
) -> tuple[Group, ...]:
    """Divide a space into its groups, in the order of their first parameters."""
    ordered = in_order(parameters, conditions)
    group_of = {each.name: {each.name} for each in ordered}
    links = [{each.parameter, *each.only_if.names} for each in conditions]
    for names in (*links, *(set(each.names) for each in constraints)):
        together = set[str]().union(*(group_of[name] for name in names))
        group_of.update(dict.fromkeys(together, together))
    found = []
    for first in parameters:
        if group_of[first.name]:
            members = group_of[first.name]
            found.append(
                Group(
                    [each for each in ordered if each.name in members],
                    [each for each in conditions if each.parameter in members],
                    [each for each in constraints if each.names[0] in members],
                )
            )
            group_of.update((name, set()) for name in members)
    return tuple(found)


class Group:
    """Some parameters of a space, and the conditions and constraints that name them and no others.

    The points of a group with few are listed once, so a space of many groups stays as cheap as one without constraints.
    In a group with many points, a depth-first search finds the next one from any place. It calculates a constraint for
    all choices of a parameter at once, and halves them until the constraint excludes them or one is left (branch and
    prune).

    Args:
        parameters: they, in the order of `in_order`.
    """

    def __init__(
        self, parameters: Sequence[Parameter], conditions: Sequence[Condition], constraints: Sequence[Expression]
    ) -> None:
        self.parameters, self.constraints = tuple(parameters), tuple(constraints)
        self._conditions = {each.name: _of(each.name, conditions) for each in parameters}
        conditional = {each.parameter for each in conditions}
        depths = {each.name: depth for depth, each in enumerate(parameters)}
        self._checks: list[list[tuple[Expression, tuple[str, ...]]]] = [[] for _ in parameters]
        for constraint in constraints:
            absent = tuple(name for name in constraint.names if name in conditional)
            # A constraint that names an absent parameter does not apply, so it waits until that is known.
            first = max((depths[name] for name in absent), default=0)
            for depth in {max(depths[name], first) for name in constraint.names}:
                self._checks[depth].append((constraint, absent))

    @property
    def size(self) -> int:
        """The number of its points; of all combinations if the points are too many to be listed."""
        return self._combinations if self._points is None else len(self._points)

    @property
    def is_exact(self) -> bool:
        """Whether `size` is the number of its points. Numbers of an interval lie closer than those that count."""
        if any(isinstance(each.choices, Interval) for each in self.parameters):
            return False
        return self._is_free or self._points is not None

    def at(self, index: int) -> Point:
        """The point with this index. Of points that are not listed, this combination, or some other if it is none.

        Raises:
            IndexError: there is no point.
        """
        if self._is_free:
            parameter = self.parameters[0]
            return {parameter.name: parameter.choices[index]}
        if self._points is not None:
            return self._points[index]
        drawn = random.Random(index)
        combination: dict[str, object] = {}
        for parameter in self.parameters:
            index, digit = divmod(index, len(parameter.choices))
            if self.active(parameter.name, combination):
                combination[parameter.name] = parameter.choices[digit]
        if self.excluded_by(combination) is None:
            return combination
        for steps in (*[_PATIENCE] * _RESTARTS, None):
            try:
                return self.first(steps, drawn)
            except TooManyStepsError:  # far from any point; from another place, it may need a few steps
                pass
        raise AssertionError("a search without a limit of steps ends")

    def first(self, steps: int | None = None, drawn: random.Random | None = None) -> Point:
        """The first point that a search finds, or a random one if there is a generator to draw with.

        Raises:
            IndexError: there is no point.
            TooManyStepsError: none was found in so many steps.
        """
        for point in self._search(steps, drawn):
            return point
        raise IndexError("the constraints allow no point")

    def all(self) -> Iterator[Point]:
        """All points, in order."""
        return iter(self._points) if self._points is not None else self._search()

    def active(self, name: str, point: Point) -> bool:
        """Whether a parameter belongs to a point that has all that it depends on."""
        return all(
            all(each in point for each in condition.names) and condition.holds(point)
            for condition in self._conditions[name]
        )

    def excluded_by(self, point: Point) -> Expression | None:
        """The first constraint that excludes a point, or None."""
        return next((each for each in self.constraints if not _holds(each, point)), None)

    def refuse_if_empty(self) -> None:
        """Check that some point is allowed.

        Raises:
            BadInputError: none is; it names the constraints.
            TooManyStepsError: none was found.
        """
        for each in [] if any(self._conditions.values()) else self.constraints:
            if not Group([one for one in self.parameters if one.name in each.names], [], [each])._any():
                raise BadInputError(f"no point meets the constraint {each.text!r}", hint=_LOOSEN)
        if not self._any():
            shown = ", ".join(repr(each.text) for each in self.constraints)
            several = "these constraints together:" if len(self.constraints) > 1 else "the constraint"
            raise BadInputError(f"no point meets {several} {shown}", hint=_LOOSEN)

    def _any(self) -> bool:
        return any(True for _ in self._search(_LOOKED))

    @property
    def _is_free(self) -> bool:
        """Whether the group is one parameter that may have any of its choices."""
        return len(self.parameters) == 1 and not self.constraints and not self._conditions[self.parameters[0].name]

    @cached_property
    def _points(self) -> list[Point] | None:
        """All points, listed; None if they are too many, or need no list."""
        if self._is_free:
            return None
        try:
            return list(self._search(LISTED))
        except TooManyStepsError:
            return None

    @cached_property
    def _combinations(self) -> int:
        return prod(len(each.choices) for each in self.parameters)

    # -- searching -----------------------------------------------------------------------------------

    @cached_property
    def _whole(self) -> dict[str, Range]:
        """For each parameter its least and greatest choice; None unless all are numbers."""
        return {each.name: _ends(each) for each in self.parameters}

    @cached_property
    def _ascending(self) -> list[bool]:
        return [_is_ascending(each) for each in self.parameters]

    def _search(self, steps: int | None = None, drawn: random.Random | None = None) -> Iterator[Point]:
        """All points, in order, or in a random one if there is a generator to draw with.

        Raises:
            TooManyStepsError: there are more, but so many steps were taken.
        """
        left = [steps if steps is not None else -1]
        return self._descend(0, {}, dict(self._whole), left, drawn)

    def _descend(
        self,
        depth: int,
        point: dict[str, object],
        ranges: dict[str, Range],
        left: list[int],
        drawn: random.Random | None,
    ) -> Iterator[Point]:
        if depth == len(self.parameters):
            yield dict(point)
            return
        parameter = self.parameters[depth]
        name = parameter.name
        if not self.active(name, point):
            yield from self._descend(depth + 1, point, ranges, left, drawn)
            return
        for _ in self._fitting(depth, point, ranges, left, drawn):
            yield from self._descend(depth + 1, point, ranges, left, drawn)
        point.pop(name, None)
        ranges[name] = self._whole[name]

    def _fitting(
        self,
        depth: int,
        point: dict[str, object],
        ranges: dict[str, Range],
        left: list[int],
        drawn: random.Random | None,
    ) -> Iterator[None]:
        """Put each choice of a parameter that no constraint excludes into the point, one after the other."""
        name, choices = self.parameters[depth].name, self.parameters[depth].choices
        repeated = isinstance(choices, Interval)
        parts = [(0, len(choices))]
        while parts:
            low, high = parts.pop()
            if high - low == 1 or (self._checks[depth] and self._ascending[depth]):
                if left[0] == 0:
                    raise TooManyStepsError
                left[0] -= 1
                point[name] = choices[low]
                ranges[name] = (choices[low], choices[high - 1])
                if not all(
                    each.may_hold(ranges) for each, names in self._checks[depth] if all(name in point for name in names)
                ):
                    continue
            if high - low == 1:
                if not (repeated and low and choices[low] == choices[low - 1]):
                    yield
                continue
            middle = (low + high) // 2
            halves = [(middle, high), (low, middle)]
            if drawn and drawn.random() < 0.5:
                halves.reverse()
            parts += halves


def _of(name: str, conditions: Sequence[Condition]) -> list[Expression]:
    return [each.only_if for each in conditions if each.parameter == name]


def _holds(constraint: Expression, point: Mapping[str, object]) -> bool:
    return not all(name in point for name in constraint.names) or constraint.holds(point)


def _ends(parameter: Parameter) -> Range:
    choices = parameter.choices
    if isinstance(choices, Lazy):
        return min(choices[0], choices[-1]), max(choices[0], choices[-1])
    numbers = [each for each in choices if isinstance(each, (int, float)) and not isinstance(each, bool)]
    return (min(numbers), max(numbers)) if numbers and len(numbers) == len(choices) else None


def _is_ascending(parameter: Parameter) -> bool:
    choices = parameter.choices
    if isinstance(choices, Lazy):
        return len(choices) > 1 and choices[1] > choices[0]
    if _ends(parameter) is None:
        return False
    return all(one < other for one, other in pairwise(choices))  # type: ignore[operator]
