"""Paired comparison of two points, valid for any noise and however often it is evaluated.

A round runs both points one after the other on the same slots, in random order, so what drifts (clocks, temperature, a
neighbour) is in both figures. The difference of a round is the logarithm of their ratio.

If the points are the same, the random order makes each difference as likely as its negative, given all that was before,
whatever the noise is: skewed, periodic or with two states. Then no bet on its sign gains anything in the mean. For
a rate k > 0, the factor 2 / (1 + exp(-2 k x)) of a difference x is such a bet: x and -x have factors whose sum is 2.
So the product of the factors of all rounds, and a mixture of such products, is an e-process: it exceeds 1 / alpha at
any time with a probability of at most alpha (Ville's inequality). The mean of symmetric differences lies in the
interval of all shifts that are not refuted in this way.

- Ramdas, Ruf, Larsson and Koolen, "Admissible anytime-valid sequential inference must rely on nonnegative martingales",
  arXiv:2009.03167, 2020: e-processes for symmetric distributions.
- de la Peña, "A general class of exponential inequalities for martingales and ratios", Annals of Probability 27(1),
  1999: symmetric differences, of which nothing else is known.
- Ville, "Étude critique de la notion de collectif", 1939.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bireme.value import Value

if TYPE_CHECKING:  # a study can be looked at without numpy
    import numpy as np
    from numpy.typing import NDArray

_RATES = (4.0, 2.0, 1.0, 0.5, 0.25, 0.125)
"""The rates of the bets, in parts of the spread. The best one for a difference of a quarter of the spread is 0.25."""

_MIXED = 1.2
"""What a mixture of rates adds to the needed logarithm of the e-process, about."""

_LOWER = 0.8
"""The part of the allowed error that is for lower ends: only they make a claim. The rest is for upper ends."""

_SPREAD = 0.02
"""The spread of differences before the first is known: any number is valid."""

_PLAUSIBLE = 1.96
"""What lies further off is not plausible: the 97.5 % quantile of the normal distribution, as in a 95 % interval."""


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

    def plausible(self, difference: float) -> bool:
        """Whether the mean may be as great as ``difference``, by the upper end of the usual 95 % t-interval.

        Decides only whether another round is worth its time, so it does not have to hold at every look.
        """
        return self.count < 3 or self.mean + quantile(_PLAUSIBLE, self.count - 1) * self.error >= difference


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


def least_rounds(alpha: float) -> int:
    """The least number of rounds that can refute a difference of 0: all have the same sign."""
    return math.ceil(-math.log2(_LOWER * alpha))


def expected_rounds(difference: float, spread: float, alpha: float) -> float:
    """About how many rounds refute a mean difference of 0; inf: no number of them.

    In the mean a round adds half the square of difference / spread to the logarithm of the e-process as long as that is
    small, and never more than log 2.
    """
    if difference <= 0:
        return math.inf
    square = (difference / max(spread, 1e-9)) ** 2
    gain = math.log(2) * -math.expm1(-square / (2 * math.log(2)))
    return max(least_rounds(alpha), (_MIXED - math.log(_LOWER * alpha)) / gain) if gain else math.inf


def certain(differences: Sequence[float], alpha: float, spread: float | None = None) -> bool:
    """Whether the mean difference is greater than 0; see `interval`."""
    if len(differences) < least_rounds(alpha):
        return False
    import numpy as np

    told = np.array(differences)
    return _evidence(told, _spreads(told, spread), 0.0) >= -math.log(_LOWER * alpha)


def interval(differences: Sequence[float], alpha: float, spread: float | None = None) -> Interval:
    """The interval that contains the mean difference after every number of rounds, with probability 1 - ``alpha``.

    Args:
        differences: of the rounds.
        alpha: the allowed error.
        spread: what was known of their standard deviation before the first round.
    """
    count = len(differences)
    mean = sum(differences) / count if count else 0.0
    if count < 2:
        return Interval(mean=mean, low=-math.inf, high=math.inf, error=math.inf, count=count)
    import numpy as np

    told = np.array(differences)
    error = float(told.std(ddof=1)) / math.sqrt(count)
    low = _lower_end(told, _LOWER * alpha, spread)
    high = -_lower_end(-told, (1 - _LOWER) * alpha, spread)
    return Interval(mean=mean, low=low, high=high, error=error, count=count)


def _lower_end(told: NDArray[np.float64], alpha: float, spread: float | None) -> float:
    """The least mean that is not refuted by differences that are greater."""
    needed, spreads = -math.log(alpha), _spreads(told, spread)
    if len(told) * math.log(2) <= needed:
        return -math.inf
    high = float(told.max())
    step = float(spreads.max())
    low = high - step
    while _evidence(told, spreads, low) < needed:
        step *= 2
        low -= step
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if _evidence(told, spreads, middle) >= needed else (low, middle)
    return low


def _evidence(told: NDArray[np.float64], spreads: NDArray[np.float64], shift: float) -> float:
    """The logarithm of the e-process against a mean of at most ``shift``. The greater the shift, the less it is."""
    import numpy as np

    bets = math.log(2) - np.logaddexp(0.0, np.outer(_RATES, -2 * (told - shift) / spreads))
    return float(np.logaddexp.reduce(bets.sum(axis=1))) - math.log(len(_RATES))


def _spreads(told: NDArray[np.float64], spread: float | None) -> NDArray[np.float64]:
    """For each difference what the ones before it say of their standard deviation: a bet may know nothing else."""
    import numpy as np

    counts = np.arange(len(told))
    sums, squares = (np.concatenate(([0.0], np.cumsum(each)[:-1])) for each in (told, told * told))
    around = np.maximum(0.0, squares - sums * sums / np.maximum(counts, 1))
    return np.sqrt((around + (spread or _SPREAD) ** 2) / np.maximum(counts, 1))
