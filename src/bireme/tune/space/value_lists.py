"""The values of a parameter as a user writes them: ``8,16,32``, ``1..8``, ``8..512:log2``, ``on,off``.

=====================  =================================================================
``a,b,c``              choices; those that are numbers count as numbers
``'a,b',"3",c\\,d``     a quoted choice is a word, and may have commas; so may ``\\,``
``1..8``               whole numbers
``0..100:10``          with a step; ``0.1..0.9:0.1`` the same with decimals
``0.0..0.9``           all numbers between the two; with a decimal point, since ``0..9`` are whole numbers
``1e-5..1e-1:log``     the same on a logarithmic scale; ``1..1000:log`` whole numbers
``1e-4..1e-1:log:20``  twenty of them, in equal proportions
``8..512:log2``        each twice the one before; ``:log10`` ten times
``…:ordered``          the order of these words means something
``…:memory``           a later value needs more memory
=====================  =================================================================
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from decimal import Decimal

from bireme.errors import BadInputError, similar
from bireme.tune.space.parameter import Decimals, Interval, Parameter

_NUMBER = r"[+-]?(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})(?::(.*))?")
_HALF_A_RANGE = re.compile(rf"{_NUMBER}\.\.(?!\.).*|[^./]+\.\.{_NUMBER}(:.*)?")
_MARKS = ("memory", "ordered")
_KINDS = ("log", "log2", "log10", *_MARKS)
_SMALLEST, _LARGEST = Decimal("1e-30"), Decimal("1e30")
_MOST = 10_000
"""Points of a geometric grid."""

_FEW = 24
"""Whole numbers that are listed, and not searched on a logarithmic scale."""

JSON_WORDS = {"true": True, "false": False, "null": None}


def read(name: str, text: str, *, where: str, in_file: bool = False) -> Parameter:
    """Make a parameter of what a user wrote.

    Args:
        in_file: the values go to a configuration file, where ``true``, ``false`` and ``null`` are no words.

    Raises:
        BadInputError: the text is malformed.
    """
    marks, rest = set(), text
    while found := re.fullmatch(rf"(.*):({'|'.join(_MARKS)})", rest, re.DOTALL):
        rest = found[1]
        marks.add(found[2])
    try:
        parameter = _parameter(name, rest, in_file)
        parameter.check()
    except BadInputError as error:
        raise BadInputError(error.what, hint=error.hint, where=where) from None
    return parameter.replace(ordered=parameter.ordered or "ordered" in marks, memory="memory" in marks)


def _parameter(name: str, text: str, in_file: bool) -> Parameter:
    items = list(split(text))
    if items == [("", False)]:
        raise BadInputError(f"no values for {name!r}", hint=f"list them: {name}=8,16,32, or a range: {name}=1..8")
    if len(items) == 1 and (found := _RANGE.fullmatch(text)):
        return Parameter(name=name, choices=_range(text, found[1], found[2], found[3]))
    for item, quoted in items:
        _check_item(name, item, quoted)
    values = [item if quoted else value_of(item, in_file) for item, quoted in items]
    texts = tuple(item for item, _ in items)
    parameter = Parameter(name=name, choices=tuple(values))
    if tuple(map(parameter.text, values)) == texts:
        return parameter
    clash = next(((one, other) for one, other in _pairs(values, texts) if one != other), None)
    if clash:
        one, other = clash
        raise BadInputError(
            f"{one} and {other} are the same number", hint=f"quote them if they are words: '{one}','{other}'"
        )
    return parameter.replace(texts=texts)


def _pairs(values: Sequence[object], texts: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Texts that mean the same number."""
    first: dict[object, str] = {}
    for value, text in zip(values, texts, strict=True):
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            yield first.setdefault(value, text), text


def _check_item(name: str, item: str, quoted: bool) -> None:
    if quoted:
        return
    if not item:
        raise BadInputError(f"an empty value for {name!r}", hint="leave the comma out, or write '' for an empty word")
    if _RANGE.fullmatch(item):
        raise BadInputError(f"a range stands alone, but {item!r} is in a list", hint="write the values one by one")
    if _HALF_A_RANGE.fullmatch(item):
        raise BadInputError(f"not a range of numbers: {item!r}", hint=f"write both ends, or quote a word: '{item}'")
    if ":" not in item:
        return
    last = item.rpartition(":")[2]
    if last in _KINDS:
        raise BadInputError(f"{last!r} belongs to a range: {item!r}", hint="write a range such as 8..512:log2")
    if near := similar(last, _KINDS, 0.75):
        raise BadInputError(
            f"unknown kind of values: {last!r}", hint=f"did you mean {near!r}? Quote it if it is a word"
        )


def split(text: str) -> Iterator[tuple[str, bool]]:
    """The values between commas, and whether each is quoted.

    Raises:
        BadInputError: a quote is not closed.
    """
    item, quoted, at = "", False, 0
    while at < len(text):
        char = text[at]
        if char in "'\"" and not item:
            end = text.find(char, at + 1)
            if end < 0:
                raise BadInputError(f"a quote is not closed: {text[at:]!r}", hint=f"close it with {char}")
            item, quoted, at = text[at + 1 : end], True, end
            if end + 1 < len(text) and text[end + 1] != ",":
                raise BadInputError(f"{text[end + 1 :]!r} after a quoted value", hint="put a comma before it")
        elif char == "\\" and text[at + 1 : at + 2] in (",", "\\"):
            item += text[at + 1]
            at += 1
        elif char == ",":
            yield item, quoted
            item, quoted = "", False
        else:
            item += char
        at += 1
    yield item, quoted


def value_of(text: str, in_file: bool = False) -> object:
    """The number that a text is, or the value that it has in a configuration file; else the text."""
    if in_file and text in JSON_WORDS:
        return JSON_WORDS[text]
    return _number(text) if re.fullmatch(_NUMBER, text) and len(text) < 100 else text


def _number(text: str) -> float:
    number = int(text) if re.fullmatch(r"[+-]?\d+", text) else float(text)
    if not abs(number) < float("inf"):
        raise BadInputError(f"a number that is too large: {text}", hint="quote it if it is a word")
    return number


# -- ranges ------------------------------------------------------------------------------------------


def _range(text: str, first: str, last: str, how: str | None) -> Sequence[float]:
    """The numbers of a range, made as they are needed where they are at equal distances."""
    low, high = Decimal(first), Decimal(last)
    for number in (low, high):
        if number and not _SMALLEST < abs(number) < _LARGEST:
            raise BadInputError(f"a number that is too large or too small: {text!r}")
    if low > high:
        raise BadInputError(
            f"a range from the larger number to the smaller one: {text!r}", hint=f"write {last}..{first}"
        )
    whole = "." not in first + last and not low % 1 and not high % 1
    if how is None and whole:
        return range(int(low), int(high) + 1)
    if how is None:
        return _interval(low, high)
    if re.fullmatch(_NUMBER, how):
        return _steps(text, low, high, Decimal(how))
    if low <= 0 and how.startswith("log"):
        raise BadInputError(f"a logarithmic scale cannot start at {first}: {text!r}", hint="start above 0")
    if how in ("log2", "log10"):
        return tuple(_multiples(low, high, int(how[3:])))
    if how == "log":
        few = whole and high - low < _FEW
        return range(int(low), int(high) + 1) if few else _interval(low, high, logarithmic=True, whole=whole)
    if count := re.fullmatch(r"log:(\d{1,6})", how):
        return _proportions(text, low, high, int(count[1]))
    near = similar(how, _KINDS)
    hint = f"did you mean {near!r}?" if near else f"write a step, or one of {', '.join(_KINDS)}"
    raise BadInputError(f"unknown kind of range: {how!r} in {text!r}", hint=hint)


def _steps(text: str, low: Decimal, high: Decimal, step: Decimal) -> Sequence[float]:
    if step <= 0 or not _SMALLEST < step < _LARGEST:
        raise BadInputError(f"a step of {step}: {text!r}", hint="write a step above 0")
    # The number of decimals that all three have.
    scale = Decimal(10) ** max(0, *(-int(each.normalize().as_tuple().exponent) for each in (low, high, step)))
    numerators = range(int(low * scale), int(high * scale) + 1, int(step * scale))
    return numerators if scale == 1 else Decimals(numerators, int(scale))


def _multiples(low: Decimal, high: Decimal, factor: int) -> Iterator[float]:
    while low <= high:
        yield _plain(low)
        low *= factor


def _interval(low: Decimal, high: Decimal, *, logarithmic: bool = False, whole: bool = False) -> Sequence[float]:
    ends = (int(low), int(high)) if whole else (float(low), float(high))
    return Interval(low=ends[0], high=ends[1], logarithmic=logarithmic, whole=whole) if low < high else ends[:1]


def _proportions(text: str, low: Decimal, high: Decimal, count: int) -> tuple[float, ...]:
    decades = math.log10(high / low)
    if not 2 <= count <= _MOST:
        raise BadInputError(f"{count} values on a logarithmic scale: {text!r}", hint=f"ask for 2 to {_MOST}")
    inner = [float(low) * 10 ** (decades * index / (count - 1)) for index in range(1, count - 1)]
    if not low % 1 and not high % 1:
        return tuple(dict.fromkeys((int(low), *map(round, inner), int(high))))
    for digits in (3, 6):
        numbers = (_plain(low), *(float(f"{number:.{digits}g}") for number in inner), _plain(high))
        if len(set(numbers)) == count:
            return numbers
    return tuple(dict.fromkeys((_plain(low), *inner, _plain(high))))


def _plain(number: Decimal) -> float:
    return int(number) if number % 1 == 0 else float(number)
