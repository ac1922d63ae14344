"""Groups of parameters that constraints and conditions connect, and a search for the points that these allow.

A space is the product of its groups: what is chosen in one does not matter to another. So the points of a group with
few are listed once, and a space of many groups stays as cheap as one without constraints. In a group with many points,
a depth-first search finds the next one from any place. It calculates a constraint for all choices of a parameter at
once, and halves them until the constraint excludes them or one is left (branch and prune).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from math import prod

from bireme.errors import BadInputError
from bireme.tune.space.expressions import Expression
from bireme.tune.space.intervals import Range
from bireme.tune.space.parameter import Interval, Lazy, Parameter, Point
from bireme.value import Value

LISTED = 20_000
"""Steps of the search that are spent on listing a group's points: tens of milliseconds."""

_LOOKED = 300_000
"""Steps that are spent on finding whether a group has any point: a second or two."""


_RESTARTS, _PATIENCE = 200, 300
"""How often a point is looked for from another place, and steps of the search from each."""


class Condition(Value):
    """A parameter that is part of a point only if the expression holds."""

    parameter: str
    only_if: Expression


class TooManyStepsError(Exception):
    """A search had too few steps to come to its end."""


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


_LOOSEN = "loosen it, or declare more choices"


def _of(name: str, conditions: Iterable[Condition]) -> list[Expression]:
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
