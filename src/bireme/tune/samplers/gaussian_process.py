"""Gaussian process: estimates the values of points, measured or not, from measurements with noise.

As in Rasmussen and Williams, "Gaussian Processes for Machine Learning" (MIT Press, 2006, sections 2.2, 2.7 and 5.2): a
constant but unknown mean, and a kernel that is partly a product over the axes (everything depends on everything) and
partly a sum (each axis has an effect of its own; Duvenaud, Nickisch and Rasmussen, "Additive Gaussian Processes",
2011). A few points fit many lengths, amplitudes and noises, so instead of the likeliest many are drawn and weighted by
how well they explain the measurements. This keeps the estimate from being certain too early.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import copy
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from typing import TypeAlias

    Array: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

Place = Sequence[float]
"""Coordinates of a point, one for each axis. An axis has length 1; points farther apart count as 1 apart."""

_DRAWS = 64
"""So many are drawn from the prior, and as many again around the likeliest of them."""

_KEPT = 8

_TELLING = 64
"""What fits is drawn by at most this many places: more say little more, and cost much more."""

_LENGTH, _AMPLITUDE, _NOISE = 0.5, 0.3, 0.02
"""Medians of log-normal priors: lengths (half an axis), amplitude (a third of the speed), noise of a measurement."""

_RUNS = 4
"""A gain is that of this many runs: where there is noise, one run rarely changes which point is thought the best."""

_SPREADS = (0.8, 0.8, 1.0)
"""Spreads of these priors: the noise is between 0.3 and 15 % with a probability of 95 %."""


class GaussianProcess:
    """A model of the measurements; deterministic.

    Args:
        places: the measured points; at least one, each once.
        values: their mean logarithmic results, more is better: a difference of 0.01 is one percent.
        counts: how often each was measured; None: once.
        squares: the sum of squares of all measurements around the means of their points.
        pairs: axes that are two views of one, such as linear and logarithmic: a fit sees one of the two.
    """

    def __init__(
        self,
        places: Sequence[Place] | Array,
        values: Sequence[float] | Array,
        counts: Sequence[float] | Array | None = None,
        squares: float = 0.0,
        pairs: Sequence[tuple[int, int]] = (),
    ) -> None:
        self._places, self.measured = np.asarray(places, dtype=float), np.asarray(values, dtype=float)
        self._counts = np.ones(len(self.measured)) if counts is None else np.asarray(counts, dtype=float)
        self._squares, self._pairs = squares, pairs
        axes, random = self._places.shape[1], np.random.default_rng(0)
        centre = np.log(np.array([_LENGTH] * axes + [_AMPLITUDE, _NOISE]))
        spread = np.array([_SPREADS[0]] * axes + list(_SPREADS[1:]))
        deviations = random.normal(0.0, 1.0, (_DRAWS, axes + 2))
        shares = random.uniform(0.0, 1.0, _DRAWS)
        seen = np.ones((_DRAWS, axes))
        for one, other in pairs:
            seen[:, one] = random.random(_DRAWS) < 0.5
            seen[:, other] = 1 - seen[:, one]
        deviations[:, :axes] *= seen
        density = self._density_of(_telling(self.measured))
        densities = density(centre + spread * deviations, shares, seen)
        # Again around the best: weighted by likelihood and prior, as the first are by their likelihood alone.
        best = np.argsort(-densities)[:_KEPT]
        near = np.repeat(deviations[best], _DRAWS // _KEPT, axis=0) + random.normal(0.0, 0.4, (_DRAWS, axes + 2))
        near_shares = np.clip(np.repeat(shares[best], _DRAWS // _KEPT) + random.normal(0.0, 0.2, _DRAWS), 0.0, 1.0)
        near_seen = np.repeat(seen[best], _DRAWS // _KEPT, axis=0)
        near[:, :axes] *= near_seen
        near_densities = density(centre + spread * near, near_shares, near_seen)
        deviations, shares = np.concatenate([deviations, near]), np.concatenate([shares, near_shares])
        densities = np.concatenate([densities, near_densities]) - 0.5 * (deviations**2).sum(axis=1)
        kept = np.argsort(-densities)[: _KEPT if len(self.measured) <= _TELLING else _KEPT // 2]
        weights = np.exp(densities[kept] - densities[kept[0]])
        self.weights: Array = weights / weights.sum()
        self._drawn, self._shares = np.exp(centre + spread * deviations[kept]), shares[kept]
        self._seen = np.concatenate([seen, near_seen])[kept]
        self.noises: Array = self._drawn[:, -1]
        self._last: list[tuple[Array, Array]] = []
        self._fit()

    def extended(
        self, places: Sequence[Place] | Array, values: Sequence[float], counts: Sequence[float] | Array | None = None
    ) -> GaussianProcess:
        """With further places, and by the same fits if it has many; ``counts``: new ones of those that it has."""
        places = np.concatenate([self._places, np.asarray(places, dtype=float).reshape(-1, self._places.shape[1])])
        measured = np.concatenate([self.measured, values])
        known = self._counts if counts is None else np.asarray(counts, dtype=float)
        counts = np.concatenate([known, np.ones(len(values))])
        if len(measured) <= _TELLING:
            return GaussianProcess(places, measured, counts, self._squares, self._pairs)
        model = copy(self)
        model._places, model.measured, model._counts = places, measured, counts
        model._fit()
        return model

    def _across(self, places: Array) -> Array:
        """The covariances of places with the measured ones; the last are kept, as they are wanted several times."""
        if not self._last or self._last[0][0] is not places:
            self._last = [(places, _kernel(places, self._places, self._drawn, self._shares, self._seen))]
        return self._last[0][1]

    def _fit(self) -> None:
        self._last = []
        kernel = _kernel(self._places, self._places, self._drawn, self._shares, self._seen)
        self._inverse = np.linalg.inv(_with_noise(kernel, self._drawn, self._counts))
        ones = self._inverse.sum(axis=2)
        self._ones, self._doubt = ones, 1 / ones.sum(axis=1)  # the variance of the mean
        self._mean, self._rest = self._explain(self.measured)

    def _explain(self, values: Array) -> tuple[Array, Array]:
        """For values at the measured places: the mean of each fit, and its weights of the measured places."""
        mean = (self._ones @ values) * self._doubt
        return mean, np.einsum("dij,dj->di", self._inverse, values[None, :] - mean[:, None])

    def _density_of(
        self, rows: np.ndarray[tuple[int, ...], np.dtype[np.intp]]
    ) -> Callable[[Array, Array, Array], Array]:
        """The logarithm of how likely the measurements in some rows are, for logarithms and shares of each draw."""
        places = self._places[rows]
        measured, counts = self.measured[rows], self._counts[rows]
        freedom = float((self._counts - 1).sum())

        def density(logarithms: Array, shares: Array, seen: Array) -> Array:
            drawn = np.exp(logarithms)
            factor = np.linalg.cholesky(_with_noise(_kernel(places, places, drawn, shares, seen), drawn, counts))
            right = np.stack([np.ones_like(measured), measured], axis=1)
            half = np.linalg.solve(factor, np.broadcast_to(right, (len(drawn), *right.shape)))
            ones, values = half[:, :, 0], half[:, :, 1]
            doubt = 1 / (ones**2).sum(axis=1)
            misfit = (values**2).sum(axis=1) - (ones * values).sum(axis=1) ** 2 * doubt
            likely = 0.5 * (np.log(doubt) - misfit) - np.log(np.diagonal(factor, axis1=1, axis2=2)).sum(axis=1)
            found: Array = likely - freedom * logarithms[:, -1] - 0.5 * self._squares / drawn[:, -1] ** 2
            return found

        return density

    # -- estimates -------------------------------------------------------------------------------------

    def predict(self, places: Sequence[Place] | Array) -> tuple[Array, Array]:
        """(means, standard deviations) of the values without noise: a row for each fit, a column for each place."""
        across = self._across(np.asarray(places, dtype=float))
        means = self._mean[:, None] + np.einsum("dpi,di->dp", across, self._rest)
        known = ((across @ self._inverse) * across).sum(axis=2)
        unsure = (1 - np.einsum("dpi,di->dp", across, self._ones)) ** 2 * self._doubt[:, None]
        variance = self._drawn[:, -2, None] ** 2 - known + unsure
        return means, np.sqrt(np.maximum(variance, 1e-12))

    def expected(self, places: Sequence[Place] | Array, values: Sequence[float] | Array | None = None) -> list[float]:
        """The expected value at each place, in the unit of the values.

        Args:
            values: other values at the measured places, which are assumed to vary in the same way.
        """
        mean, rest = self._explain(self.measured if values is None else np.asarray(values, dtype=float))
        across = self._across(np.asarray(places, dtype=float))
        means = mean[:, None] + np.einsum("dpi,di->dp", across, rest)
        return [float(each) for each in self.weights @ means]

    def gains(self, places: Sequence[Place] | Array) -> list[float]:
        """The improvement of the best expected value that measuring each place would bring.

        The knowledge gradient with independent beliefs (Frazier, Powell and Dayanik, "A knowledge-gradient policy for
        sequential information collection", 2008), which is the expected improvement of Jones, Schonlau and Welch
        (1998) where there is no noise. A place that was measured already gains little, but may gain if there is noise.
        """
        means, deviations = self.predict(places)
        known = self.predict(self._places)[0]
        order = np.sort(known, axis=1)
        best = order[:, -1:]
        second = order[:, -2:-1] if known.shape[1] > 1 else best
        # How much the mean of a place may change by more measurements.
        change = deviations**2 / np.sqrt(deviations**2 + self.noises[:, None] ** 2 / _RUNS)
        is_best = np.isclose(means, best, atol=1e-9) & (deviations < self._drawn[:, -2:-1] * 0.99)
        ahead = np.where(is_best, -(best - second), means - best)
        return [float(each) for each in self.weights @ _gain(ahead, change)]


def _telling(values: Array) -> np.ndarray[tuple[int, ...], np.dtype[np.intp]]:
    """The rows that say what fits: all of a few, else the better half of as many, and some of the rest."""
    order = np.argsort(-values, kind="stable")
    if len(values) <= _TELLING:
        return np.arange(len(values))
    rest = np.linspace(_TELLING // 2, len(values) - 1, _TELLING - _TELLING // 2).astype(int)
    return np.sort(order[np.concatenate([np.arange(_TELLING // 2), rest])])


def _kernel(one: Array, other: Array, drawn: Array, shares: Array, seen: Array) -> Array:
    """The covariances between places for each draw of (lengths, amplitude, noise): draws x ``one`` x ``other``.

    ``seen``: for each draw 1 for the axes that it sees, 0 for others.
    """
    shape = (len(drawn), len(one), len(other))
    product, total = np.zeros(shape), np.zeros(shape)
    for axis in range(one.shape[1]):
        # Many places have the same coordinate: what is calculated for one of them is copied for the others.
        levels, numbers = np.unique(one[:, axis], return_inverse=True)
        apart = np.minimum(np.abs(levels[:, None] - other[None, :, axis]), 1.0)
        for draw in np.flatnonzero(seen[:, axis]):
            powers = drawn[draw, axis] ** -2 * (-0.5 * apart**2)
            product[draw] += powers[numbers]
            total[draw] += np.exp(powers, out=powers)[numbers]
    share, amplitude = shares[:, None, None], drawn[:, -2, None, None]
    axes = seen[:, :, None].sum(axis=1, keepdims=True)
    np.exp(product, out=product)
    kernel: Array = amplitude**2 * ((1 - share) * product + share / axes * total if one.shape[1] else product)
    return kernel


def _with_noise(kernel: Array, drawn: Array, counts: Array) -> Array:
    """A square kernel and the variance of the mean of each place's measurements."""
    diagonal = np.arange(len(counts))
    kernel[:, diagonal, diagonal] += drawn[:, -1:] ** 2 / counts + 1e-8
    return kernel


def _gain(ahead: Array, deviation: Array) -> Array:
    """The mean of max(0, x), where x is normal with mean ``ahead`` and this standard deviation."""
    z = np.clip(ahead / deviation, -12.0, 12.0)
    gain: Array = deviation * (np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi) + z * _below(z))
    return np.maximum(gain, 0.0)


def _below(z: Array) -> Array:
    """The standard normal distribution function, to 1e-7 (Abramowitz and Stegun, formula 26.2.17)."""
    t = 1 / (1 + 0.2316419 * np.abs(z))
    series = t * (0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))))
    tail = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi) * series
    below: Array = np.where(z >= 0, 1 - tail, tail)
    return below
