"""Calculates with intervals: what a piece of an expression may be, while its names stand for many values each.

A piece is a function of the ranges of its names. Its result is exact where each range is one value. Where they are
intervals of numbers, the result has at least every value that the piece may take (interval arithmetic as in Moore,
"Interval Analysis", 1966), or is None: it may be anything.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

Range: TypeAlias = "tuple[object, object] | None"
"""The least and greatest value that something may have, equal if it is known; None: it may be anything."""
Ranges = Mapping[str, Range]
Piece = Callable[[Ranges], Range]

LARGEST = 2**64
"""No number may be larger, and a power of whole numbers that may be has no value."""


_NUMBERS = (int, float)


class NoValueError(Exception):
    """An expression has no value: it divides by zero, or calculates with words."""


def word_of(value: object) -> object:
    """The word that a value of a configuration file is written as; other values unchanged."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "null" if value is None else value


def is_word(value: object, word: str) -> bool:
    """Whether a choice is this word, or is written as this word."""
    return isinstance(value, (str, bool, type(None))) and word_of(value) == word


def is_number(value: object) -> bool:
    """Whether a value is a number; ``True`` is none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _known_value(given: Range) -> bool:
    return given is not None and (given[0] is given[1] or bool(given[0] == given[1]))


def constant(value: object) -> Piece:
    """A piece that is one value."""
    return lambda _: (value, value)


def _numbers(given: Range) -> tuple[float, float]:
    """The ends of an interval of numbers."""
    assert given is not None
    if type(given[0]) not in _NUMBERS or type(given[1]) not in _NUMBERS:
        raise NoValueError
    return given  # type: ignore[return-value]


def _power(base: float, exponent: float) -> float:
    digits = max(abs(base), 1).bit_length() if isinstance(base, int) else 1
    if isinstance(exponent, int) and digits * abs(exponent) > LARGEST.bit_length():
        raise OverflowError
    result = base**exponent
    if isinstance(result, complex):
        raise ValueError
    return float(result) if isinstance(result, float) else int(result)


def _plus(*ends: tuple[float, float]) -> tuple[float, float]:
    (low, high), (other_low, other_high) = ends
    return low + other_low, high + other_high


def _minus(*ends: tuple[float, float]) -> tuple[float, float]:
    (low, high), (other_low, other_high) = ends
    return low - other_high, high - other_low


def _corners(
    calculate: Callable[[float, float], float], divides: bool = False
) -> Callable[..., tuple[float, float] | None]:
    """Interval of an operation that is monotonic in each operand, a division where its divisor keeps its sign."""

    def ends(*given: tuple[float, float]) -> tuple[float, float] | None:
        one, other = given
        if one[0] == one[1] and other[0] == other[1]:
            result = calculate(one[0], other[0])
            return result, result
        if divides and other[0] <= 0 <= other[1]:
            return None
        found = [calculate(a, b) for a in one for b in other]
        return min(found), max(found)

    return ends


def _only_known(calculate: Callable[[float, float], float]) -> Callable[..., tuple[float, float] | None]:
    """Interval of an operation of which nothing is known but for two numbers."""

    def ends(*given: tuple[float, float]) -> tuple[float, float] | None:
        if not all(low == high for low, high in given):
            return None
        result = calculate(*(low for low, _ in given))
        return result, result

    return ends


def _least(*ends: tuple[float, float]) -> tuple[float, float]:
    return min(low for low, _ in ends), min(high for _, high in ends)


def _greatest(*ends: tuple[float, float]) -> tuple[float, float]:
    return max(low for low, _ in ends), max(high for _, high in ends)


def _absolute(*ends: tuple[float, float]) -> tuple[float, float]:
    low, high = ends[0]
    return (0 if low <= 0 <= high else min(abs(low), abs(high))), max(abs(low), abs(high))


_Calculation = Callable[..., "tuple[float, float] | None"]
ARITHMETIC: dict[type[ast.operator], _Calculation] = {
    ast.Add: _plus,
    ast.Sub: _minus,
    ast.Mult: _corners(operator.mul),
    ast.Div: _corners(operator.truediv, divides=True),
    ast.FloorDiv: _corners(operator.floordiv, divides=True),
    ast.Mod: _only_known(operator.mod),
    ast.Pow: _only_known(_power),
}
CALLS: dict[str, _Calculation] = {"min": _least, "max": _greatest, "abs": _absolute}
ORDERS: dict[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def calculated(calculate: _Calculation, operands: Sequence[Piece]) -> Piece:
    """A piece that is calculated from others."""

    def function(ranges: Ranges) -> Range:
        given = [operand(ranges) for operand in operands]
        if any(each is None for each in given):
            return None
        try:
            return calculate(*map(_numbers, given))
        except (ArithmeticError, ValueError):
            if all(map(_known_value, given)):
                raise NoValueError from None
            return None

    return function


def compared(sign: type[ast.cmpop], left: Piece, right: Piece) -> Piece:
    """A piece that compares two others: whether they are equal, or which number is greater."""

    def ordered(ranges: Ranges) -> Range:
        one, other = left(ranges), right(ranges)
        if one is None or other is None:
            return None
        (low, high), (other_low, other_high) = _numbers(one), _numbers(other)
        holds = ORDERS[sign]
        ends = (holds(low, other_high), holds(high, other_low))
        if sign in (ast.Lt, ast.LtE):  # true of all where the greatest is below the least; of some, where the reverse
            all_hold, some_hold = ends[1], ends[0]
        else:
            all_hold, some_hold = ends[0], ends[1]
        return (all_hold, all_hold) if all_hold == some_hold else None

    def equal(ranges: Ranges) -> Range:
        one, other = left(ranges), right(ranges)
        if one is None or other is None:
            return None
        if _known_value(one) and _known_value(other):
            same = _equal(one[0], other[0])
        elif all(map(is_number, (*one, *other))) and (one[1] < other[0] or other[1] < one[0]):  # type: ignore[operator]
            same = False
        else:
            return None
        return (same, same)

    if sign is ast.Eq:
        return equal
    return negated(equal) if sign is ast.NotEq else ordered


def _equal(one: object, other: object) -> bool:
    one, other = word_of(one), word_of(other)
    return isinstance(one, str) == isinstance(other, str) and one == other


# -- and, or, not ------------------------------------------------------------------------------------


def truth(given: Range) -> bool | None:
    """Whether something is true; None: that is not known."""
    return bool(given[0]) if given is not None and _known_value(given) else None


def _said(known: bool | None) -> Range:
    return None if known is None else (known, known)


def negated(part: Piece) -> Piece:
    """``not``."""

    def function(ranges: Ranges) -> Range:
        known = truth(part(ranges))
        return _said(None if known is None else not known)

    return function


def all_of(parts: Sequence[Piece]) -> Piece:
    """``and``."""
    return _joined(parts, False)


def any_of(parts: Sequence[Piece]) -> Piece:
    """``or``."""
    return _joined(parts, True)


def _joined(parts: Sequence[Piece], decides: bool) -> Piece:
    """``or`` if one that is true decides, ``and`` if one that is false does. Later parts are not calculated then."""

    def function(ranges: Ranges) -> Range:
        unknown = False
        for part in parts:
            try:
                known = truth(part(ranges))
            except NoValueError:
                if not unknown:
                    raise
                known = None  # an unknown part before this one may decide
            if known is decides:
                return _said(decides)
            unknown = unknown or known is None
        return _said(None if unknown else not decides)

    return function
