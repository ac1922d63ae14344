"""The readings of one figure of one rank, in bounded memory."""

from __future__ import annotations

from bireme.tune.metrics.numbers import MOST, Number


class Series:
    """The readings of a figure, in the order in which they came.

    When there are too many, each two neighbours become one, their mean, and so on. The mean of the series stays the
    same, and where a warm-up ends can still be seen: it is sought in means of several readings anyway where there are
    many (MSER-5 in `bireme.tune.metrics.warm_up`).

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
