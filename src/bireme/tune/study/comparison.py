"""Paired comparison of two configurations, valid however often it is evaluated.

A round runs both configurations one after the other on the same slots, so what drifts (clocks, temperature, a
neighbour) is in both figures. The difference of a round is the logarithm of their ratio.

The usual t-interval is valid for a number of rounds that was fixed before. Whoever adds rounds until the interval
excludes zero finds a difference sooner or later, even where there is none. A confidence sequence holds for all numbers
of rounds at once, so one may stop at any of them. This one is for normal differences of unknown mean and variance:

- Lai, "On confidence sequences", Annals of Statistics 4(2), 1976: the t-statistic mixed over a prior of the mean.
- Wang and Ramdas, "Anytime-valid t-tests and confidence sequences for Gaussian means with unknown variance",
  Sequential Analysis 44(1), 2025 (arXiv:2310.03722), section 3: the Gaussian mixture as an e-process.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from bireme.value import Value

_PRIOR = 0.1
"""Precision of the mixture: differences of about three standard deviations (1 / sqrt(0.1)) are found the soonest."""

_PLAUSIBLE = 1.96
"""What lies further off is not plausible: the 97.5 % quantile of the normal distribution, as in a 95 % interval."""

_TELLING = 5
"""Fewer rounds say too little of the spread to tell how many more it takes."""


class Interval(Value):
    """Where the mean difference lies: ``mean`` of ``count`` rounds, between ``low`` and ``high``.

    ``error``: the standard error of the mean; infinite below two rounds.
    """

    mean: float
    low: float
    high: float
    error: float
    count: int

    @property
    def negated(self) -> Interval:
        """The same comparison the other way round."""
        return self.replace(mean=-self.mean, low=-self.high, high=-self.low)

    def plausible(self, difference: float, others: Sequence[Interval] = ()) -> bool:
        """Whether the mean may be as great as ``difference``, by the upper end of the usual 95 % t-interval.

        Decides only whether another round is worth its time, so it does not have to hold at every look.

        Args:
            difference: of scores.
            others: comparisons of the same kind. A few rounds may agree by chance: the error is at least what the
                spread of all of them together makes of it.
        """
        if self.count < 3:
            return True
        most = quantile(_PLAUSIBLE, self.count - 1) * self.error
        freedom = sum(each.count - 1 for each in others if each.count > 1)
        if freedom:
            squares = sum(each.error**2 * each.count * (each.count - 1) for each in others if each.count > 1)
            most = max(most, quantile(_PLAUSIBLE, freedom) * math.sqrt(squares / freedom / self.count))
        return self.mean + most >= difference

    def rounds_until_implausible(self, difference: float) -> float:
        """About how many rounds make ``difference`` implausible if mean and spread stay as they are; inf: none do."""
        room = difference - self.mean
        if self.count < _TELLING or room <= 0:
            return math.inf
        return self.count * (_PLAUSIBLE * self.error / room) ** 2

    @property
    def rounds_until_certain(self) -> float:
        """About how many rounds exclude a mean of 0 if mean and spread stay as they are; inf: none do."""
        if self.count < _TELLING or not self.mean:
            return math.inf
        return self.count * ((self.high - self.mean) / self.mean) ** 2


def quantile(normal: float, freedom: int) -> float:
    """The quantile of Student's t at the probability at which ``normal`` is that of the normal distribution.

    Up to the 99 % quantile it is within 3 % from two degrees of freedom on, and too small for one. The series is 26.7.5
    in Abramowitz and Stegun, "Handbook of Mathematical Functions", 1964.
    """
    terms = (
        normal,
        (normal**3 + normal) / 4,
        (5 * normal**5 + 16 * normal**3 + 3 * normal) / 96,
        (3 * normal**7 + 19 * normal**5 + 17 * normal**3 - 15 * normal) / 384,
        (79 * normal**9 + 776 * normal**7 + 1482 * normal**5 - 1920 * normal**3 - 945 * normal) / 92160,
    )
    return sum(term / float(freedom) ** power for power, term in enumerate(terms))


def interval(differences: Sequence[float], alpha: float) -> Interval:
    """The interval that contains the mean difference after every number of rounds, with probability 1 - ``alpha``.

    With n rounds, their sum S and sum of squares V, and c the precision of the mixture, the e-process at 0 is
    E = sqrt(c / (n + c)) * (V / (V - S² / (n + c)))^(n / 2). A mean is excluded if E >= 1 / alpha after subtracting it
    from all differences. Solved for the mean, that is an interval around the average.
    """
    count = len(differences)
    mean = sum(differences) / count if count else 0.0
    if count < 2:
        return Interval(mean=mean, low=-math.inf, high=math.inf, error=math.inf, count=count)
    variance = sum((each - mean) ** 2 for each in differences) / count
    threshold = (math.sqrt((count + _PRIOR) / _PRIOR) / alpha) ** (2 / count)
    rest = 1 - threshold * _PRIOR / (count + _PRIOR)
    radius = math.sqrt(variance * (threshold - 1) / rest) if rest > 0 else math.inf
    return Interval(
        mean=mean, low=mean - radius, high=mean + radius, error=math.sqrt(variance / (count - 1)), count=count
    )
