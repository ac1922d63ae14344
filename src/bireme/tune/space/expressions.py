"""The language of conditions and constraints: ``stage >= 2``, ``batch * accum == 256``, ``mode in (fast, small)``.

It is a part of Python's: names of parameters, numbers, quoted strings, arithmetic, comparisons, ``and``, ``or``,
``not``, ``in``, ``min``, ``max`` and ``abs``. A bare word that names no parameter is a choice. An expression is
translated piece by piece into functions that exist here; nothing of it is ever run as Python.

Each piece is calculated for many values at a time: an interval of numbers for each parameter, or its one value. The
result is exact where each is one value; else it has at least every value that the piece may take (interval arithmetic
as in Moore, "Interval Analysis", 1966), or is None. So a search for points can tell from the first and last choice of a
parameter that none between them will do.
"""

from __future__ import annotations

import ast
import operator
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import NoReturn, TypeAlias

from bireme.errors import BadInputError, similar

Range: TypeAlias = "tuple[object, object] | None"
"""The least and greatest value that something may have, equal if it is known; None: it may be anything."""
Ranges = Mapping[str, Range]
Piece = Callable[[Ranges], Range]

Choices = Mapping[str, Sequence[object]]
LONGEST = 1000
"""Characters of an expression."""

_SIGNS = "names, numbers, + - * / // % **, comparisons, and, or, not, in, min, max, abs"

_SHOWN = 60
"""Characters of an expression that an error shows on each side of the mistake."""

_FEW = 1000
"""Choices of a parameter that are looked at to see whether they are numbers."""

_LARGEST = 2**64
"""No number may be larger, and a power of whole numbers that may be has no value."""


class NoValueError(Exception):
    """An expression has no value: it divides by zero, or calculates with words."""


class Expression:
    """A condition or constraint.

    Attributes:
        text: as it was written.
        names: the parameters in it, in order.
    """

    def __init__(self, text: str, names: Iterable[str], function: Piece) -> None:
        self.text, self.names, self._function = text, tuple(names), function

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"

    def holds(self, point: Mapping[str, object]) -> bool:
        """Whether it is true of a point that has all its names. An expression without a value is not true."""
        return self.may_hold({name: (point[name], point[name]) for name in self.names})

    def may_hold(self, ranges: Ranges) -> bool:
        """Whether it may be true of values within these ranges; exact if each range is a single value."""
        try:
            return truth(self._function(ranges)) is not False
        except NoValueError:
            return False


def parse(text: str, choices: Choices, *, where: str = "") -> Expression:
    """Translate an expression.

    Raises:
        BadInputError: it is malformed, or has an unknown name; the message says at which character.
    """
    reader = _Reader(text, choices, where)
    if not text.strip():
        raise BadInputError("the expression is empty", hint="write it like: batch * accum == 256", where=where)
    if len(text) > LONGEST:
        raise BadInputError(f"an expression of {len(text)} characters (at most {LONGEST})", where=where)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's warnings about odd code: our own errors are clearer
            tree = ast.parse(text.strip(), mode="eval").body
        function = reader.function(tree)
    except SyntaxError as error:
        reader.refuse_syntax(error)
    except (RecursionError, MemoryError, ValueError) as error:
        if isinstance(error, BadInputError):
            raise
        raise BadInputError("the expression is nested too deeply", hint="write it more simply", where=where) from None
    if not reader.names:
        raise BadInputError(f"no parameter is named in {text!r}", hint=_known(choices), where=where)
    return Expression(text.strip(), reader.names, function)


# -- reading -----------------------------------------------------------------------------------------


class _Reader:
    """Translates one expression."""

    def __init__(self, text: str, choices: Choices, where: str) -> None:
        self._text, self._choices, self._where = text.strip(), choices, where
        self.names: list[str] = []

    def refuse_syntax(self, error: SyntaxError) -> NoReturn:
        """Raise BadInputError about text that is not an expression."""
        if found := re.search(r"(?<![=<>!])=(?!=)", self._text):
            self._refuse_at(found.start(), "'=' is not a comparison", "write == to compare")
        for sign, word in (("&&", "and"), ("||", "or"), ("!", "not")):
            if found := re.search(re.escape(sign) + "(?!=)", self._text):
                self._refuse_at(found.start(), f"unknown sign {sign!r}", f"write {word!r}")
        self._refuse_at(max((error.offset or 1) - 1, 0), "not an expression", "write it like: batch * accum == 256")

    def _refuse_at(self, index: int, what: str, hint: str) -> NoReturn:
        start = max(0, index - _SHOWN)
        shown = self._text[start : index + _SHOWN]
        shown = f"{'…' if start else ''}{shown}{'…' if index + _SHOWN < len(self._text) else ''}"
        raise BadInputError(f"{what} at character {index + 1} of {shown!r}", hint=hint, where=self._where)

    def _refuse(self, node: ast.expr, what: str, hint: str = "") -> NoReturn:
        # The parser counts bytes of UTF-8, and lines.
        before = "\n".join(self._text.split("\n")[: node.lineno - 1])
        line = self._text.split("\n")[node.lineno - 1].encode()[: node.col_offset].decode(errors="replace")
        self._refuse_at(len(before) + (node.lineno > 1) + len(line), what, hint)

    def function(self, node: ast.expr) -> Piece:
        """The function that calculates a piece."""
        if isinstance(node, ast.Constant) and is_number(node.value) and abs(node.value) > _LARGEST:  # type: ignore[arg-type]
            self._refuse(node, "a number that is too large", "write one below 2**64")
        if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float, str, type(None))):
            return constant(node.value)
        if isinstance(node, ast.Name):
            return self._name(node)
        if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            self._refuse_words(node.left, node.right)
            return calculated(_ARITHMETIC[type(node.op)], [self.function(node.left), self.function(node.right)])
        if isinstance(node, ast.UnaryOp):
            return self._unary(node)
        if isinstance(node, ast.BoolOp):
            parts = [self.function(each) for each in node.values]
            return joined(parts, isinstance(node.op, ast.Or))
        if isinstance(node, ast.Compare):
            return self._comparison(node)
        if isinstance(node, ast.Call):
            return self._call(node)
        return self._refuse(node, "not allowed in an expression", f"use {_SIGNS}")

    def _name(self, node: ast.Name) -> Piece:
        name = node.id
        if name in self._choices:
            if name not in self.names:
                self.names.append(name)
            return lambda ranges: ranges[name]
        if any(is_word(choice, name) for choices in self._choices.values() for choice in choices[:_FEW]):
            return constant(name)
        near = similar(name, (*self._choices, *_CALLS))
        if name == near:
            self._refuse(node, f"{name!r} without arguments", f"write {name}(…), or quote a word: '{name}-…'")
        self._refuse(node, f"unknown name {name!r}", f"did you mean {near!r}?" if near else _known(self._choices))

    def _unary(self, node: ast.UnaryOp) -> Piece:
        operand = self.function(node.operand)
        if isinstance(node.op, ast.Not):
            return negated(operand)
        if isinstance(node.op, ast.USub):
            self._refuse_words(node.operand)
            return calculated(_ARITHMETIC[ast.Sub], [constant(0), operand])
        if isinstance(node.op, ast.UAdd):
            return operand
        return self._refuse(node, "unknown sign '~'", f"use {_SIGNS}")

    def _comparison(self, node: ast.Compare) -> Piece:
        sides = [node.left, *node.comparators]
        parts = []
        for left, sign, right in zip(sides, node.ops, sides[1:], strict=False):
            if isinstance(sign, (ast.In, ast.NotIn)):
                parts.append(self._membership(left, sign, right))
                continue
            if isinstance(sign, (ast.Eq, ast.NotEq)):
                self._refuse_no_choice(left, right)
                self._refuse_no_choice(right, left)
            elif type(sign) in _ORDERS:
                self._refuse_words(left, right)
            else:
                self._refuse(right, "'is' is not allowed before this", "write == or !=")
            parts.append(compared(type(sign), self.function(left), self.function(right)))
        return parts[0] if len(parts) == 1 else joined(parts, False)

    def _membership(self, left: ast.expr, sign: ast.cmpop, right: ast.expr) -> Piece:
        if not isinstance(right, (ast.Tuple, ast.List, ast.Set)) or not right.elts:
            self._refuse(right, "expected a list of values", "write a list in parentheses: stage in (1, 2)")
        for each in right.elts:
            self._refuse_no_choice(left, each)
        value = self.function(left)
        found = joined([compared(ast.Eq, value, self.function(each)) for each in right.elts], True)
        return negated(found) if isinstance(sign, ast.NotIn) else found

    def _call(self, node: ast.Call) -> Piece:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name not in _CALLS:
            self._refuse(
                node, f"no such function: {name or ast.unparse(node.func)}", "the functions are min, max and abs"
            )
        if node.keywords or not node.args or (name == "abs" and len(node.args) > 1):
            self._refuse(node, f"{name} takes {'one value' if name == 'abs' else 'values'}", f"write {name}(…)")
        self._refuse_words(*node.args)
        return calculated(_CALLS[name], [self.function(each) for each in node.args])

    def _refuse_words(self, *nodes: ast.expr) -> None:
        """Refuse a word or a parameter without numbers where something is calculated or put in order."""
        for node in nodes:
            if isinstance(node, ast.Constant) and not is_number(node.value):
                self._refuse(node, "not a number", "words can be compared with == and != only")
            if not isinstance(node, ast.Name):
                continue
            choices = self._choices.get(node.id)
            if choices is None:
                self._name(node)  # an unknown name is the nearer mistake
                self._refuse(node, f"{node.id!r} is a word, not a number", "words can be compared with == and != only")
            if not any(map(is_number, choices[:_FEW])):
                self._refuse(node, f"{node.id!r} has no numbers", "words can be compared with == and != only")

    def _refuse_no_choice(self, parameter: ast.expr, word: ast.expr) -> None:
        """Refuse to compare a parameter with a word that is none of its choices: that would never be true."""
        if not isinstance(parameter, ast.Name) or parameter.id not in self._choices:
            return
        name = word.id if isinstance(word, ast.Name) else word.value if isinstance(word, ast.Constant) else None
        choices = self._choices[parameter.id]
        if not isinstance(name, str) or (isinstance(word, ast.Name) and name in self._choices) or len(choices) > _FEW:
            return
        if not any(is_word(choice, name) for choice in choices):
            shown = ", ".join(str(word_of(choice)) for choice in choices[:8])
            what = f"{name!r} is not a choice of {parameter.id!r}"
            self._refuse(word, what, f"its choices: {shown}{', …' if len(choices) > 8 else ''}")


def _known(choices: Choices) -> str:
    names = list(choices)
    return f"the parameters: {', '.join(names[:8])}{', …' if len(names) > 8 else ''}"


# -- calculating -------------------------------------------------------------------------------------


def _power(base: float, exponent: float) -> float:
    digits = max(abs(base), 1).bit_length() if isinstance(base, int) else 1
    if isinstance(exponent, int) and digits * abs(exponent) > _LARGEST.bit_length():
        raise OverflowError
    result = base**exponent
    if isinstance(result, complex):
        raise ValueError
    return float(result) if isinstance(result, float) else int(result)


_ARITHMETIC: dict[type[ast.operator], Callable[..., float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
_CALLS: dict[str, Callable[..., float]] = {"min": min, "max": max, "abs": abs}
_ORDERS: dict[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def calculated(calculate: Callable[..., float], operands: Sequence[Piece]) -> Piece:
    """A piece that is calculated from others.

    All but powers and remainders are monotonic in each operand, a division where its divisor keeps its sign: so the
    least and the greatest result are at corners.
    """
    divides = calculate in (operator.truediv, operator.floordiv)
    uneven = calculate in (operator.mod, _power)

    def function(ranges: Ranges) -> Range:
        given = [operand(ranges) for operand in operands]
        if any(each is None for each in given):
            return None
        ends = [_numbers(each) for each in given]
        known = all(low == high for low, high in ends)
        if not known and (uneven or (divides and ends[1][0] <= 0 <= ends[1][1])):
            return None
        try:
            # Of many operands only `min` and `max` are calculated, which have their ends where all have theirs.
            corners = product(*ends) if len(ends) < 3 and not known else zip(*ends, strict=True)
            found = [calculate(*corner) for corner in corners]
        except (ArithmeticError, ValueError):
            if known:
                raise NoValueError from None
            return None
        if calculate is abs and ends[0][0] <= 0 <= ends[0][1]:
            found.append(0)
        return min(found), max(found)

    return function


def compared(sign: type[ast.cmpop], left: Piece, right: Piece) -> Piece:
    """A piece that compares two others: whether they are equal, or which number is greater."""

    def function(ranges: Ranges) -> Range:
        one, other = left(ranges), right(ranges)
        if one is None or other is None:
            return None
        if sign in _ORDERS:
            said = {_ORDERS[sign](*corner) for corner in product(_numbers(one), _numbers(other))}
            return _said(said.pop() if len(said) == 1 else None)
        if _is_known(one) and _is_known(other):
            first, second = word_of(one[0]), word_of(other[0])
            return _said((isinstance(first, str) == isinstance(second, str) and first == second) is (sign is ast.Eq))
        apart = all(map(is_number, (*one, *other))) and (one[1] < other[0] or other[1] < one[0])  # type: ignore[operator]
        return _said(sign is not ast.Eq if apart else None)

    return function


def negated(part: Piece) -> Piece:
    """``not``."""

    def function(ranges: Ranges) -> Range:
        known = truth(part(ranges))
        return _said(None if known is None else not known)

    return function


def joined(parts: Sequence[Piece], decides: bool) -> Piece:
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


def constant(value: object) -> Piece:
    """A piece that is one value."""
    return lambda _: (value, value)


def truth(given: Range) -> bool | None:
    """Whether something is true; None: that is not known."""
    return bool(given[0]) if given is not None and _is_known(given) else None


def _said(known: bool | None) -> Range:
    return None if known is None else (known, known)


def _is_known(given: tuple[object, object]) -> bool:
    return given[0] is given[1] or bool(given[0] == given[1])


def _numbers(given: Range) -> tuple[float, float]:
    """The ends of an interval of numbers."""
    if given is None or not (is_number(given[0]) and is_number(given[1])):
        raise NoValueError
    return given  # type: ignore[return-value]  # they are numbers


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
