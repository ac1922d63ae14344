"""Estimates from all runs how likely each point is to be the best, and how much is lost if it is another one.

This decides who runs again, and when that ends; it is never part of a claim. Most finalists differ little, and a few
may differ much. So the prior of a difference is a mixture of normal distributions of many widths around a common mean,
most of it narrow (Stephens, "False discovery rates: a new deal", Biostatistics 18(2), 2017). It draws what is the best
by chance back to the others ("shrinkage"), however many there are.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bireme.tune.study.comparison import quantile

Array = NDArray[np.float64]

_WIDTHS = np.array([0.05, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
"""Of the prior, in effects. The first is for points that are the same; of the others, the narrow ones count more."""

_APART = 2.4
"""How many points are expected to differ from the others by more than the least of the widths, at most half."""

_SWEEPS = 12
_MIXED, _DRAWN = 32, 8
"""Draws of the widths, and of the scores for each of them."""

_FEW = 4
"""The search's noise counts as so many degrees of freedom beside that of the rounds, at most."""


class Posterior:
    """Draws of the scores of some points.

    Args:
        alone: scores of the runs of each point that were not in rounds.
        rows: one for each round, a column for each point; NaN where it has no score.
        noise: (standard deviation of a run, its degrees of freedom), by the search.
        effect: the difference of scores that matters.
    """

    def __init__(
        self,
        alone: Sequence[Sequence[float]],
        rows: Sequence[Sequence[float]],
        noise: tuple[float | None, int],
        effect: float,
    ) -> None:
        self.effect, points = effect, len(alone)
        counts, sums = np.array([float(len(each)) for each in alone]), np.array([float(sum(each)) for each in alone])
        rounds = np.array(rows, dtype=float).reshape(-1, points)
        there = ~np.isnan(rounds)
        size = np.maximum(1, there.sum(axis=1))
        centred = np.where(there, rounds - (np.where(there, rounds, 0.0).sum(axis=1) / size)[:, None], 0.0)
        known = np.diag(there.sum(axis=0).astype(float)) - (there.T / size) @ there
        told = centred.sum(axis=0)
        freedom = int(there.sum() - len(size) - max(0, there.any(axis=0).sum() - 1))
        left_over = max(0.0, float((centred**2).sum() - told @ np.linalg.pinv(known, hermitian=True) @ told))
        weight = min(_FEW, noise[1])
        self.freedom = max(0, freedom) + noise[1]
        square = (left_over + weight * (noise[0] or 0.0) ** 2) / max(1, max(0, freedom) + weight)
        least = 0.02 * effect
        scale = 5 * effect
        self.noise = max(least, math.sqrt(square)) if self.freedom else scale
        if self.freedom:
            scale = self.noise * quantile(1.645, self.freedom) / 1.645
        if total := counts.sum():
            part = min(1.0, (scale / max(least, scale if noise[0] is None else noise[0])) ** 2)
            known = known + part * (np.diag(counts) - np.outer(counts, counts) / total)
            told = told + part * (sums - counts * sums.sum() / total)
        self.counts: Array = np.diag(known).copy()
        """How many runs there are of each point, less those whose information is on the level of their round."""
        self.draws = _draws(known / scale**2, told / scale**2, effect * _WIDTHS)
        self.means: Array = self.draws.mean(axis=0)
        behind = self.draws.max(axis=1)[:, None] - self.draws
        self.loss: Array = behind.mean(axis=0)
        """What is lost in the mean by choosing a point."""
        self.near: Array = (behind <= effect).mean(axis=0)
        """The probability that a point is within the effect of the best."""
        self.good: list[int] = [
            each for each in range(points) if self.loss[each] <= effect / 4 and self.near[each] >= 0.95
        ]
        """The points that may be chosen."""

    def ahead(self, point: int, other: int, difference: float = 0.0) -> float:
        """The probability that a point is ahead of another by more than a difference."""
        return float((self.draws[:, point] - self.draws[:, other] > difference).mean())

    def worth(self, leader: int) -> Array:
        """For each point, how much it contributes to the doubt that the leader may be chosen."""
        gaps = self.draws - self.draws[:, [leader]]
        best, ahead = gaps.argmax(axis=1), gaps.max(axis=1)
        doubt = np.zeros(gaps.shape[1])
        np.add.at(doubt, best, ahead / (self.effect / 4) + (ahead > self.effect) / 0.05)
        return doubt / len(gaps)


def _draws(known: Array, told: Array, widths: Array) -> Array:
    """Draws of the scores, given the precision of their differences, and that times their estimate."""
    points = len(told)
    covariance = np.linalg.pinv(known, hermitian=True)
    estimates, errors = covariance @ told, np.where(np.diag(known) > 0, np.maximum(np.diag(covariance), 1e-18), 1e6)
    variances = errors[:, None] + widths**2
    apart = min(0.5, _APART / points)
    others = np.sqrt(1 / widths[1:])
    weights = np.concatenate(([1 - apart], apart * others / others.sum()))
    mean = float(np.average(estimates, weights=1 / errors))
    for _ in range(_SWEEPS):
        likely = np.log(weights) - (np.log(variances) + (estimates[:, None] - mean) ** 2 / variances) / 2
        share = np.exp(likely - likely.max(axis=1, keepdims=True))
        share /= share.sum(axis=1, keepdims=True)
        precise = (share / variances).sum(axis=1)
        mean = float(precise @ estimates / precise.sum())
    luck, mixed = _luck(points)
    which = (mixed[:, :, None] > np.cumsum(share, axis=1)[None]).sum(axis=2).clip(0, len(widths) - 1)
    narrow = 1 / widths[which] ** 2
    inverse = np.linalg.inv(np.linalg.cholesky(known[None] + narrow[:, :, None] * np.eye(points)))
    centre = np.einsum("cji,cj->ci", inverse, np.einsum("cij,cj->ci", inverse, told + narrow * mean))
    drawn: Array = (centre[:, None, :] + luck @ inverse).reshape(-1, points)
    return drawn


@functools.cache
def _luck(points: int) -> tuple[Array, Array]:
    """The same random numbers each time: normal ones for the draws, and evenly spread ones for the mixture."""
    random = np.random.default_rng(points)
    mixed = np.stack([(random.permutation(_MIXED) + 0.5) / _MIXED for _ in range(points)], axis=1)
    return random.standard_normal((_MIXED, _DRAWN, points)), mixed
