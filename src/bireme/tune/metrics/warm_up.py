"""The readings of a figure, and where their steady part begins: the rule MSER, limited to the first half.

MSER leaves out as many readings at the beginning as make the mean of the others most certain: it minimizes the sum of
squares around their mean, divided by the square of their number. It has no parameter to set (White, "An effective
truncation heuristic for bias reduction in simulation output", Simulation 69, 1997). Of 44 methods that were compared,
its form with means of five readings did best, if an answer in the second half is not believed: there, few readings may
agree by chance (Hoad, Robinson and Davies, "Automating warm-up length estimation", Journal of the Operational Research
Society 61, 2010). Programs report 3 to 300 figures, too few for means of five, so each reading counts by itself; longer
series are kept as means (`Series`).

What it costs where there is no warm-up: an eighth of three to twelve readings is left out for nothing, and with them up
to a quarter of the precision; of fifty, hardly any. A pause that comes again and again belongs to the rate and stays.

Some programs never become steady (Barrett and others, "Virtual machine warmup blows hot and cold", OOPSLA 2017). This
is said where the two halves of what is left differ by a fiftieth of the mean, and by four standard errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, sqrt

from bireme.tune.metrics.numbers import MOST, Number
from bireme.value import Value

_FEWEST = 10
"""Steady readings that are needed for the judgement that the series was still changing."""

_MATTERS = 0.02
_CERTAIN = 4.0


class SteadyPart(Value):
    """The part of a series after the readings that are left out; ``settled``: it had become steady, it seems."""

    left_out: int
    mean: float
    settled: bool = True


def steady_part(values: Sequence[float]) -> SteadyPart:
    """Find the steady part of a series of at least one reading; two are always kept."""
    count = len(values)
    most = min(count // 2, max(0, count - 2))
    shift = values[-1]
    best, left_out = inf, 0
    total = squares = 0.0
    for start in range(count - 1, -1, -1):
        off = values[start] - shift
        total, squares = total + off, squares + off * off
        kept = count - start
        error = max(0.0, squares - total * total / kept) / kept**2
        if start <= most and error <= best:
            best, left_out = error, start
    kept_values = values[left_out:]
    return SteadyPart(left_out, _mean(kept_values), _settled(kept_values))


def _settled(values: Sequence[float]) -> bool:
    """Whether the halves of a series have about the same mean."""
    half = len(values) // 2
    if len(values) < _FEWEST:
        return True
    early, late = values[:half], values[half:]
    change = abs(_mean(late) - _mean(early))
    error = sqrt(_variance(early) / len(early) + _variance(late) / len(late))
    return change <= _MATTERS * abs(_mean(values)) or change <= _CERTAIN * error


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _variance(values: Sequence[float]) -> float:
    mean = _mean(values)
    return sum((value - mean) ** 2 for value in values) / (len(values) - 1)


class Series:
    """The readings of a figure, in the order in which they came.

    When there are too many, each two neighbours become one, their mean, and so on. The mean of the series stays the
    same, and where a warm-up ends can still be seen: it is sought in means of several readings anyway (MSER-5, above).

    Attributes:
        count: how many readings there were.
        early: how many at the beginning were no numbers (``nan it/s`` before the first step).
        stride: how many readings each value is the mean of.
        values: the numbers.
        unit: their base unit.
        first: the first number as printed, in quotes.
        wrong: why they are no figure; "" if they are.
        diverged: whether one was not a number, or is too large to calculate with.
    """

    def __init__(self) -> None:
        self.count = self.early = 0
        self.stride = 1
        self.values: list[float] = []
        self.unit = self.first = self.wrong = ""
        self.diverged = False
        self._times: list[float | None] = []
        self._sum, self._pending = 0.0, 0

    @property
    def readings(self) -> tuple[tuple[float | None, float], ...]:
        """Seconds since the trial's start (None if unknown) and value."""
        return tuple(zip(self._times, self.values, strict=True))

    def add(self, when: float | None, number: Number, most: int) -> None:
        """Add a reading, and keep at most this many values (an even number)."""
        self.count += 1
        if not abs(number.value) <= MOST:
            self.diverged = True
            if not self.values and not self._pending:
                self.early += 1
                self.wrong = number.wrong
            else:
                self.wrong = self.wrong or f"{number.wrong} (reading {self.count})"
            return
        if self.count == self.early + 1:
            self.first, self.unit, self.wrong = number.shown, number.unit, ""
        elif number.unit != self.unit and number.value != 0:
            self.wrong = self.wrong or f"the unit changes: {self.first}, then {number.shown}"
        self._sum, self._pending = self._sum + number.value, self._pending + 1
        if self._pending == self.stride:
            self._times.append(when)
            self.values.append(self._sum / self._pending)
            self._sum, self._pending = 0.0, 0
            if len(self.values) >= most:
                self._halve()

    def _halve(self) -> None:
        pairs = zip(self.values[::2], self.values[1::2], strict=False)
        self.values, self._times = [(one + other) / 2 for one, other in pairs], self._times[1::2]
        self.stride *= 2
