"""Gaussian process: estimates the values of points that were not measured.

As in Rasmussen and Williams, "Gaussian Processes for Machine Learning" (MIT Press, 2006, sections 2.2, 2.7 and 5.2): a
constant but unknown mean, and a squared exponential kernel with a length for each axis. A few points fit many lengths,
so instead of the likeliest lengths many are drawn and weighted by how well they explain the measurements. This keeps
the estimate from being certain too early.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from typing import TypeAlias

    Array: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

Place = Sequence[float]
"""Coordinates of a point, one for each axis. An axis has length 1; points farther apart count as 1 apart."""

NOISE = 0.03
"""Relative difference between two measurements of one configuration (standard deviation)."""

DRAWS = 96
_UNLIKELY = 0.01
"""Draws that are this much less likely than the likeliest are left out."""

_LENGTH, _AMPLITUDE, _SPREAD = 0.5, 0.3, 0.8
"""Medians of lengths (half an axis) and amplitudes (a third of the speed), and spread, of log-normal distributions."""


class GaussianProcess:
    """A model of the measurements; deterministic.

    Args:
        places: the measured points; at least one.
        values: their logarithmic results, more is better: a difference of 0.01 is one percent.
    """

    def __init__(self, places: Sequence[Place], values: Sequence[float]) -> None:
        self._places, self._values = np.asarray(places, dtype=float), np.asarray(values, dtype=float)
        apart = _apart(self._places, self._places)
        random = np.random.default_rng(0)
        scale = np.array([_LENGTH] * self._places.shape[1] + [_AMPLITUDE])
        fits = [
            _Fit(apart, self._values, drawn[:-1], float(drawn[-1]))
            for drawn in scale * np.exp(random.normal(0.0, _SPREAD, (DRAWS, len(scale))))
        ]
        densities = np.array([fit.density for fit in fits])
        weights = np.exp(densities - densities.max())
        kept = [number for number in np.argsort(-weights) if weights[number] >= _UNLIKELY]
        self._fits = [fits[number] for number in kept]
        self._weights = weights[kept] / weights[kept].sum()

    def expected(self, places: Sequence[Place]) -> list[float]:
        """The expected value at each place, in the unit of the values."""
        apart = _apart(np.asarray(places, dtype=float), self._places)
        means = [weight * fit.predict(apart)[0] for fit, weight in zip(self._fits, self._weights, strict=True)]
        return [float(mean) for mean in sum(means, np.zeros(len(places)))]

    def gains(self, places: Sequence[Place]) -> list[float]:
        """The expected improvement of the best value by measuring each place.

        The expected improvement of Jones, Schonlau and Welch, "Efficient Global Optimization of Expensive Black-Box
        Functions" (1998), in the unit of the values.
        """
        apart = _apart(np.asarray(places, dtype=float), self._places)
        gains = np.zeros(len(places))
        for fit, weight in zip(self._fits, self._weights, strict=True):
            mean, deviation = fit.predict(apart)
            gains += weight * _gain(mean - self._values.max(), deviation)
        return [float(gain) for gain in gains]


class _Fit:
    """One Gaussian process with fixed lengths and amplitude, fitted to the measurements.

    Args:
        apart: squared distances between the measured places, a matrix for each axis.
        values: the measured values.
        lengths: on each axis, how far a measurement has influence.
        amplitude: standard deviation of the values.
    """

    def __init__(self, apart: Array, values: Array, lengths: Array, amplitude: float) -> None:
        self._lengths, self._amplitude = lengths, amplitude
        kernel = self._kernel(apart) + NOISE**2 * np.eye(len(values))
        self._factor = np.linalg.cholesky(kernel)
        self._ones = self._solve(np.ones(len(values)))
        self._doubt = 1 / float(self._ones.sum())  # the variance of the mean
        self._mean = float(self._ones @ values) * self._doubt
        self._rest = self._solve(values - self._mean)
        misfit = float((values - self._mean) @ self._rest)
        self.density = 0.5 * (math.log(self._doubt) - misfit) - float(np.log(np.diag(self._factor)).sum())

    def predict(self, apart: Array) -> tuple[Array, Array]:
        """(means, standard deviations) of places at these distances from the measured ones."""
        across = self._kernel(apart)
        half = np.linalg.solve(self._factor, across.T)
        variance = self._amplitude**2 - (half**2).sum(axis=0) + (1 - across @ self._ones) ** 2 * self._doubt
        return self._mean + across @ self._rest, np.sqrt(np.maximum(variance, 1e-12))

    def _kernel(self, apart: Array) -> Array:
        covariance: Array = self._amplitude**2 * np.exp(-0.5 * (apart / self._lengths**2).sum(axis=2))
        return covariance

    def _solve(self, right: Array) -> Array:
        return np.linalg.solve(self._factor.T, np.linalg.solve(self._factor, right))


def _apart(one: Array, other: Array) -> Array:
    """Squared distances between all pairs, for each axis."""
    squares: Array = np.minimum(np.abs(one[:, None, :] - other[None, :, :]), 1.0) ** 2
    return squares


def _gain(ahead: Array, deviation: Array) -> Array:
    """The mean of max(0, x), where x is normal with mean ``ahead`` and this standard deviation."""
    below = np.array([0.5 * math.erfc(-z / math.sqrt(2)) for z in ahead / deviation])
    slope = deviation * np.exp(-0.5 * (ahead / deviation) ** 2) / math.sqrt(2 * math.pi)
    gain: Array = ahead * below + slope
    return gain
