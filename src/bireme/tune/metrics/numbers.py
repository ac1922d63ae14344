"""Numbers as programs print them: ``1.5e-3``, ``1,234.5``, ``12ms``, ``3.2 MiB/s``, ``0m1.234s``, ``0:03``, ``nan``.

A pattern is literal text with ``{}`` where the number is. Where the pattern ends with it, a known unit behind the
number in the output counts: many programs choose the unit by the size (``980 us``, ``1.2 ms``), and two numbers are
comparable only in the same unit. Such a number is converted to seconds or bytes. A unit that is written in the pattern
matches its relatives too, and the number is converted to that unit: ``{} MiB/s`` reads ``512 KiB/s`` as 0.5.
"""

from __future__ import annotations

import re
from typing import NamedTuple, SupportsFloat

from bireme.errors import BadInputError
from bireme.value import Value

UNITS: dict[str, tuple[str, float]] = {
    "ns": ("s", 1e-9),
    "us": ("s", 1e-6),
    "µs": ("s", 1e-6),
    "ms": ("s", 1e-3),
    "s": ("s", 1.0),
    "sec": ("s", 1.0),
    "seconds": ("s", 1.0),
    "min": ("s", 60.0),
    "h": ("s", 3600.0),
    "B": ("B", 1.0),
    "bytes": ("B", 1.0),
    "kB": ("B", 1e3),
    "KB": ("B", 1e3),
    "MB": ("B", 1e6),
    "GB": ("B", 1e9),
    "TB": ("B", 1e12),
    "KiB": ("B", 2.0**10),
    "MiB": ("B", 2.0**20),
    "GiB": ("B", 2.0**30),
    "TiB": ("B", 2.0**40),
    "%": ("%", 1.0),
}
"""The base unit of each unit, and how many of these it is."""

MOST, LEAST = 1e100, 1e-100
"""Larger numbers are no figures, because their squares would overflow; smaller ones are compared as this one."""

_SHOWN = 40
"""Characters of a number that are shown."""

_PREFIXES = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
"""``12.3k it/s``: attached to the number, and followed by no other letter."""

_DURATION = rb"(?:\d+h(?:\d+m)?|\d+m)\d+(?:\.\d+)?s(?!\w)|\d+:\d\d(?::\d\d)?(?:\.\d+)?(?![\d:])"
_GROUPED = rb"[-+]?[1-9]\d{0,2}(?:,\d{3})+(?![\d,])(?:\.\d+)?"
_PLAIN = rb"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
_NONE = rb"[-+]?(?i:nan|inf(?:inity)?)(?!\w)"
_NUMBER = rb"(" + rb"|".join((_DURATION, _GROUPED, _PLAIN, _NONE)) + rb")"
_UNIT = re.compile(
    r"\s?(?P<unit>{})(?![A-Za-z0-9])|(?P<prefix>[{}])(?![A-Za-z0-9])".format(
        "|".join(sorted(map(re.escape, UNITS), key=len, reverse=True)), "".join(_PREFIXES)
    )
)
_GOES_ON = re.compile(r"[A-Za-z_]*[.,]?\d")
"""What shows that the number before it is only a part of something else: ``1.2.3``, ``0x1F``, ``1,5``."""

_BLANKS = re.compile(r"\s+")
_SOME, _ANY = rb"[ \t]+", rb"[ \t]*"
_AFTER = 16
"""Characters behind a number that are looked at."""


class Number(NamedTuple):
    """A number in the output. (There may be millions: a named tuple is made quickly.)

    Attributes:
        value: in the base unit if a unit was read; ``nan`` if the text is not a number.
        unit: ``s``, ``B``, ``%``, or "".
        text: as it is printed.
    """

    value: float
    unit: str
    text: str

    @classmethod
    def of(cls, value: SupportsFloat) -> Number:
        """A number that was not printed; infinite if it is an integer that fits no float."""
        try:
            return cls(float(value), "", str(value))
        except OverflowError:
            return cls(float("inf"), "", f"{value:#x}")

    @property
    def shown(self) -> str:
        """The text in quotes, shortened."""
        return repr(self.text if len(self.text) <= _SHOWN else f"{self.text[:_SHOWN]}…")

    @property
    def wrong(self) -> str:
        """Why it cannot be used as a figure."""
        is_number = self.value == self.value and any(map(str.isdigit, self.text))
        return f"{self.shown} is {'too large' if is_number else 'not a number'}"


class Pattern(Value):
    """A text with one ``{}``.

    Attributes:
        text: as written.
        before, after: the literal text before and after the number.
    """

    text: str
    before: str
    after: str

    @classmethod
    def parse(cls, text: str) -> Pattern:
        """Read a pattern.

        Raises:
            BadInputError: it has no ``{}``, or two, or nothing else.
        """
        before, found, after = text.partition("{}")
        if not found:
            named = re.search(r"\{\w+\}", text)
            what = f"{named[0]} in the pattern {text!r}" if named else f"no {{}} in the pattern {text!r}"
            raise BadInputError(what, hint="write {} for the number, as in 'samples/s: {}'")
        if "{}" in after:
            raise BadInputError(f"more than one {{}} in the pattern {text!r}", hint="a pattern finds one number")
        if not (before + after).strip():
            raise BadInputError(
                f"the pattern {text!r} would match any number", hint="write the text around it too: 'samples/s: {}'"
            )
        return cls(text, before, after)

    @property
    def name(self) -> str:
        """The figure's name: the words before the number, else those after it."""
        for part in (self.before, self.after):
            if re.search(r"\w", part):
                return _BLANKS.sub(" ", part).strip(" :=|,;([{<>\"'")
        return self.text.strip()

    @property
    def own_unit(self) -> str:
        """The known unit that is written behind the ``{}``; "" if none is."""
        found = _UNIT.match(self.after)
        return (found["unit"] or "") if found else ""

    @property
    def anchor(self) -> bytes:
        """A text that each matching line contains, by which most other lines are passed over quickly."""
        after = self.after.partition(self.own_unit)[2] if self.own_unit else self.after
        return max(f"{self.before} {after}".split(), key=len, default="").encode()

    def compiled(self) -> re.Pattern[bytes]:
        """The regular expression: its groups are the number, and the unit or prefix where the pattern has text."""
        first = self.before.lstrip()[:1]
        begin = rb"(?<![\w.,:])" if not first else rb"(?<!\w)" if first.isalnum() else b""
        if own := self.own_unit:
            rest = self.after[self.after.index(own) + len(own) :]
            same = b"|".join(re.escape(unit.encode()) for unit in UNITS if UNITS[unit][0] == UNITS[own][0])
            end = rb"[ \t]*(" + same + rb")(?![A-Za-z0-9])" + _literal(rest)
        else:
            end = (b"([kKMGT]?)" if self.after.strip() else b"()") + _literal(self.after, first=True)
        return re.compile(begin + _literal(self.before, last=True) + _NUMBER + end)

    def read(self, found: re.Match[bytes]) -> Number:
        """The number of a match of `compiled`."""
        text, behind = found[1].decode(), found[2].decode()
        if own := self.own_unit:
            return Number(value_of(text) * UNITS[behind][1] / UNITS[own][1], "", f"{text} {behind}")
        if self.after.strip():
            return Number(value_of(text) * _PREFIXES.get(behind, 1.0), "", text + behind)
        rest = found.string[found.end(1) : found.end(1) + _AFTER].decode(errors="replace")
        if _GOES_ON.match(rest):
            return Number(float("nan"), "", text + rest.split()[0])
        if ":" in text or text.endswith("s"):
            return Number(value_of(text), "s", text)
        unit = _UNIT.match(rest)
        if unit is None:
            return Number(value_of(text), "", text)
        base, factor = UNITS[unit["unit"]] if unit["unit"] else ("", _PREFIXES[unit["prefix"]])
        return Number(value_of(text) * factor, base, text + unit[0])


def value_of(text: str) -> float:
    """The value of a number that the pattern matched; durations in seconds."""
    text = text.replace(",", "")
    if ":" in text:
        seconds = 0.0
        for part in text.split(":"):
            seconds = 60 * seconds + float(part)
        return seconds
    if text.endswith("s"):
        pieces: list[tuple[str, str]] = re.findall(r"([\d.]+)([hms])", text)
        return sum(float(number) * {"h": 3600, "m": 60, "s": 1}[unit] for number, unit in pieces)
    return float(text)


def amount(text: str) -> tuple[float, str]:
    """The number and the unit of a limit, such as ``16GiB``; ("" for no unit).

    Raises:
        BadInputError: it is not a number, or the unit is unknown.
    """
    found = re.fullmatch(r"\s*(" + (_GROUPED + b"|" + _PLAIN).decode() + r")\s*(\S*)\s*", text)
    if found is None:
        raise BadInputError(f"{text.strip()!r} is not a number")
    if found[2] and found[2] not in UNITS:
        raise BadInputError(f"unknown unit: {found[2]!r}", hint=f"the units are {', '.join(UNITS)}")
    return value_of(found[1]), found[2]


def shown(value: float, unit: str = "") -> str:
    """A number for people: four digits, large and whole numbers in full."""
    text = (
        f"{value:.0f}" if 1000 <= abs(value) < 1e15 or (abs(value) < 1e15 and value == int(value)) else f"{value:.4g}"
    )
    return f"{text}{' ' if unit and unit != '%' else ''}{unit}"


def shown_ratio(value: float) -> str:
    """A ratio to three digits, or as many as tell it from 1; a large one in full."""
    if abs(value) >= 1000:
        return f"{value:.0f}" if abs(value) < 1e6 else f"{value:.3g}"
    return next((text for digits in (3, 4, 5, 6) if (text := f"{value:.{digits}g}") != "1"), "1")


def scaled(value: float, unit: str) -> str:
    """A figure in a base unit for people: ``231 ms``, ``1.5 GiB``."""
    words: tuple[str, ...]
    if unit == "B":
        words = ("TiB", "GiB", "MiB", "KiB", "B")
    elif unit == "s":
        words = ("s", "ms", "us", "ns")
    else:
        return shown(value, unit)
    best = next((word for word in words if abs(value) >= UNITS[word][1]), words[-1] if value else unit)
    return shown(value / UNITS[best][1], best)


def _literal(text: str, *, first: bool = False, last: bool = False) -> bytes:
    """The regular expression of literal text: blanks match any run of blanks.

    Args:
        first, last: whether a number stands before or behind it. Blanks between them may be missing in the output, as
            in ``12it/s`` and ``tps=12``, unless a word would then go on with the number, or the number with a digit.
    """
    parts = [re.escape(part.encode()) for part in _BLANKS.split(text)]
    blanks = [_SOME] * (len(parts) - 1)
    if blanks and first and not parts[0] and not re.match(rb"[\d.,\\]", parts[1]):
        blanks[0] = _ANY
    if blanks and last and not parts[-1] and not re.search(rb"\w\Z", parts[-2]):
        blanks[-1] = _ANY
    return b"".join(part + blank for part, blank in zip(parts, [*blanks, b""], strict=True))
