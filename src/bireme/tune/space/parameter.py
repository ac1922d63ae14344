"""Parameters: what varies in a study, and the values that it may have."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, overload

from bireme.errors import BadInputError
from bireme.value import Value

Point = Mapping[str, object]
"""Names of parameters and their JSON values, such as ``{"stage": 1, "micro": 8}``."""

_FIRST = object()
_LISTED = 1000
"""A parameter with more choices than this is described by its ends."""


class Decimals(Value, Sequence[float]):
    """Numbers at equal distances, such as 0.1, 0.2, 0.3, made as they are needed.

    Each is the quotient of two whole numbers, so that the third is 0.3 and not 0.30000000000000004.
    """

    numerators: range
    denominator: int

    def __len__(self) -> int:
        return len(self.numerators)

    @overload
    def __getitem__(self, index: int) -> float: ...
    @overload
    def __getitem__(self, index: slice) -> Decimals: ...
    def __getitem__(self, index: int | slice) -> float | Decimals:
        if isinstance(index, slice):
            return self.replace(numerators=self.numerators[index])
        return self.numerators[index] / self.denominator

    def __contains__(self, value: object) -> bool:
        if not isinstance(value, (int, float)) or not abs(value) < float("inf"):
            return False
        return (near := round(value * self.denominator)) in self.numerators and near / self.denominator == value

    def index(self, value: float, *_: int) -> int:
        """The index of a number that is one of these."""
        return self.numerators.index(round(value * self.denominator))


_STEPS = 1000
"""An interval proposes numbers at this many distances, or this many on each decade of a logarithmic one."""


class Interval(Value, Sequence[float]):
    """All numbers between two: any of them may be a value.

    As a sequence it has those that are proposed: at distances of a thousandth, or in proportions of 1.0023, rounded so
    that they are short. That is finer than runs can tell, and a point still has an index. Of whole numbers on a
    logarithmic scale the small ones come several times, so that each decade is as likely to be drawn.

    Attributes:
        logarithmic: whether equal proportions count as equally far apart.
        whole: whether its numbers are whole.
    """

    low: float
    high: float
    logarithmic: bool = False
    whole: bool = False

    def __len__(self) -> int:
        return 1 + max(_STEPS, round(_STEPS * math.log10(self.high / self.low)) if self.logarithmic else 0)

    @overload
    def __getitem__(self, index: int) -> float: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[float, ...]: ...
    def __getitem__(self, index: int | slice) -> float | tuple[float, ...]:
        last = len(self) - 1
        if isinstance(index, slice):
            return tuple(self[at] for at in range(*index.indices(last + 1)))
        index = range(last + 1)[index]
        if index in (0, last):
            return self.high if index else self.low
        if self.logarithmic:
            number = self.low * (self.high / self.low) ** (index / last)
            step = number * ((self.high / self.low) ** (1 / last) - 1)
        else:
            step = (self.high - self.low) / last
            number = self.low + index * step
        return round(number) if self.whole else float(round(number, -math.floor(math.log10(step))))

    def __contains__(self, value: object) -> bool:
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and self.low <= value <= self.high
        return number and not (self.whole and value % 1)  # type: ignore[operator]  # it is a number

    def index(self, value: float, *_: int) -> int:
        """The index of the nearest number that is proposed."""
        part = (value - self.low) / (self.high - self.low)
        if self.logarithmic:
            part = math.log(value / self.low) / math.log(self.high / self.low)
        return round(part * (len(self) - 1))


Lazy = (range, Decimals, Interval)
"""Choices that are made as they are needed."""


class Parameter(Value):
    """One thing that varies.

    Attributes:
        choices: its possible values, in the order of a grid search. May be lazy, such as a ``range``.
        default: its value in the baseline; the first choice if none is given.
        ordered: whether a model may compare the choices by their place: numbers, or words in an order that means
            something.
        memory: whether a program needs more memory with a later choice, or a greater number.
        texts: each choice as the user wrote it, if that differs from `text` for any; else nothing.
    """

    name: str
    choices: Sequence[object]
    default: object
    ordered: bool
    memory: bool = False
    texts: tuple[str, ...] = ()

    def __init__(
        self,
        name: str,
        choices: Sequence[object],
        default: object = _FIRST,
        ordered: bool | None = None,
        memory: bool = False,
        texts: tuple[str, ...] = (),
    ) -> None:
        if default is _FIRST:
            default = choices[0] if choices else None
        super().__init__(name, choices, default, _numbers(choices) if ordered is None else ordered, memory, texts)

    def narrowed(self, choices: Sequence[object]) -> Parameter:
        """The parameter with only these choices. If the default is none of them, the first one becomes it."""
        default = self.default if among(self.default, choices) else choices[0]
        texts = tuple(map(self.text, choices)) if self.texts else ()
        return self.replace(choices=choices, default=default, texts=texts)

    def index(self, value: object) -> int:
        """The number of a choice; -1 if it is none."""
        if not isinstance(self.choices, Lazy):
            first = self.choices.index(value) if value in self.choices else len(self.choices)
            return next((at for at in range(first, len(self.choices)) if _same(value, self.choices[at])), -1)
        return self.choices.index(value) if among(value, self.choices) else -1  # type: ignore[arg-type]

    def choice(self, value: object) -> object:
        """A value that is among the choices, as it stands there: of 8 and 8.0 the one that was declared."""
        if isinstance(self.choices, Interval):
            return int(str(value)) if self.choices.whole else float(str(value))
        return self.choices[self.index(value)]

    def text(self, value: object) -> str:
        """A choice as a program gets it in an argument or a variable: as the user wrote it."""
        if self.texts:
            return self.texts[self.index(value)]
        return value if isinstance(value, str) else json.dumps(value)

    def check(self) -> None:
        """Check the choices and the default.

        Raises:
            BadInputError: there are no choices, one is listed twice, or the default is none of them.
        """
        if not self.choices:
            raise BadInputError(f"no choices for {self.name!r}", hint="list at least one value")
        if not isinstance(self.choices, Lazy):
            for index, choice in enumerate(self.choices):
                if among(choice, self.choices[:index]):
                    raise BadInputError(f"{json.dumps(choice)} is listed twice among the choices for {self.name!r}")
        if not among(self.default, self.choices):
            given = self.default if isinstance(self.default, str) else json.dumps(self.default)
            raise BadInputError(
                f"the default of {self.name!r} is not among its choices: {given}", hint=f"choose: {self.shown}"
            )

    @property
    def shown(self) -> str:
        """The first few choices, or the ends of an interval, as a user may type them."""
        if isinstance(self.choices, Interval):
            return f"a {'whole ' * self.choices.whole}number from {self.choices.low} to {self.choices.high}"
        return ", ".join(map(self.text, self.choices[:8])) + (", …" if len(self.choices) > 8 else "")

    def as_dict(self) -> dict[str, Any]:
        """The fields by name, for JSON; many choices as their ends and their number."""
        choices: object = list(self.choices[: _LISTED + 1])
        if isinstance(self.choices, Interval):
            choices = self.choices.as_dict()
        elif len(self.choices) > _LISTED:
            choices = {"first": self.choices[0], "last": self.choices[-1], "count": len(self.choices)}
        fields = {name: getattr(self, name) for name in self._fields}
        return {**fields, "choices": choices, "texts": list(self.texts[: _LISTED + 1])}

    @staticmethod
    def choices_of(record: object) -> Sequence[object] | None:
        """The choices that `as_dict` has described; None if it has left out some."""
        if isinstance(record, Mapping) and "low" in record:
            return Interval(**record)
        return record if isinstance(record, list) else None


def among(value: object, choices: Sequence[object]) -> bool:
    """Whether a value is one of the choices."""
    if isinstance(choices, Lazy):
        return not isinstance(value, bool) and value in choices
    return value in choices and any(_same(value, choice) for choice in choices[choices.index(value) :])


def _same(value: object, choice: object) -> bool:
    # True == 1 in Python, but not in a configuration.
    return value == choice and isinstance(value, bool) == isinstance(choice, bool)


def _numbers(choices: Sequence[object]) -> bool:
    return isinstance(choices, Lazy) or all(
        isinstance(choice, (int, float)) and not isinstance(choice, bool) for choice in choices
    )
