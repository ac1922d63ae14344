"""Estimates from all runs how likely each point is to be the best, and how much is lost if it is another one.

This decides who runs again, and when that ends; it is never part of a claim. Most finalists are the same, some may be
better by the same amount, and a few may differ much: the prior of a point is a mixture of these three (Stephens, "False
discovery rates: a new deal", Biostatistics 18(2), 2017). How many are of each kind, and how much better the second kind
is, is unknown, and averaged over. So what is the best by chance is drawn back to the others, however many there are.
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
"""Of the prior, in effects. The first is for points that are the same; the others for points that differ."""

_DIFFER = np.sqrt(1 / _WIDTHS[1:]) / np.sqrt(1 / _WIDTHS[1:]).sum()
"""How likely each of the other widths is: narrow ones are likelier."""

_BETTER = np.concatenate((np.arange(0.5, 4, 0.25), np.arange(4, 8, 0.5), np.arange(8, 33, 2.0)))
"""By how many effects the points of the second kind may be better."""

_PARTS, _LIKELY = np.array([0.0, 0.1, 0.2, 0.35, 0.5]), np.array([0.7, 0.075, 0.075, 0.075, 0.075])
"""What part of the points may be of the second kind, and how likely that is."""

_APART = np.array([2.0, 4.0, 8.0])
"""How many points may differ from all others, at most half of them."""

_EXPECTED = 2.4
"""As many are taken to differ where the common mean is estimated."""

_RANK = 1e-9
"""Eigenvalues below this part of the greatest are zero: nothing is known of the level of all points together."""

_SWEEPS = 12
_MIXED, _DRAWN = 256, 4
"""Draws of the kinds, and of the scores for each of them. With fewer, rare kinds are drawn too often or never."""

_FEW = 8
"""The search's noise counts as so many degrees of freedom beside that of the rounds, at most."""

_CAREFUL = 2.33
"""The noise may be greater than it seems: it is widened as the 99 % quantile of Student's t."""


class Posterior:
    """Draws of the scores of some points.

    The runs of a round have a level in common, and a run outside of rounds has its own. Levels vary as much as is seen.

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
        single = [
            [score if at == place else math.nan for at in range(points)]
            for place, scores in enumerate(alone)
            for score in scores
        ]
        told = np.array([*rows, *single], dtype=float).reshape(-1, points)
        blocks, seen = _Blocks(told), noise[0] or 0.0
        weight = min(_FEW, noise[1])
        self.freedom = blocks.freedom + noise[1]
        square = (blocks.left_over + weight * seen**2) / max(1, blocks.freedom + weight)
        self.noise = max(0.02 * effect, math.sqrt(square)) if self.freedom else 5 * effect
        wider = quantile(_CAREFUL, blocks.freedom + weight) / _CAREFUL if self.freedom else 1.0
        variance = (wider * self.noise) ** 2
        known, estimate = blocks.known(blocks.level(variance, seen, noise[1]) / variance)
        self.counts: Array = np.diag(known).copy()
        """How many runs there are of each point, less those whose information is on the level of their round."""
        self.draws = _draws(known / variance, estimate / variance, effect)
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
        """For each point, how much it contributes to the doubt that the leader may be chosen.

        If another is the best in a draw, it is better than it seems, or the leader is worse: each has its part.
        """
        gaps = self.draws - self.draws[:, [leader]]
        best, ahead = gaps.argmax(axis=1), gaps.max(axis=1)
        doubts = ahead / (self.effect / 4) + (ahead > self.effect) / 0.05
        better = np.maximum(0.0, (self.draws - self.means)[np.arange(len(best)), best])
        worse = np.maximum(0.0, self.means[leader] - self.draws[:, leader])
        own = worse / np.maximum(better + worse, 1e-12)
        found = np.zeros(gaps.shape[1])
        np.add.at(found, best, doubts * (1 - own))
        found[leader] = doubts @ own
        return found / len(gaps)


class _Blocks:
    """What runs say of the differences of points: those of a block have a level in common.

    Args:
        told: a row for each block; NaN where a point has no score.
    """

    def __init__(self, told: Array) -> None:
        self._there = ~np.isnan(told)
        self._scores = np.where(self._there, told, 0.0)
        self._size = np.maximum(1, self._there.sum(axis=1)).astype(float)
        self._paired = self._size > 1
        centred = np.where(self._there, told - (self._scores.sum(axis=1) / self._size)[:, None], 0.0)
        within = np.diag(self._there[self._paired].sum(axis=0).astype(float))
        within -= (self._there[self._paired].T / self._size[self._paired]) @ self._there[self._paired]
        sums = centred.sum(axis=0)
        squares = float((centred**2).sum() - sums @ np.linalg.pinv(within, _RANK, hermitian=True) @ sums)
        self.left_over = max(0.0, squares)
        """The squares of the noise of runs in rounds, of so many degrees of ``freedom``."""
        points = max(0, int(self._there[self._paired].any(axis=0).sum()) - 1)
        self.freedom = max(0, int((self._size - 1).sum()) - points)

    def level(self, variance: float, noise: float, freedom: int) -> float:
        """The variance of levels: by how much more rounds, or runs outside of them, differ than their runs do."""
        squares, rounds = freedom * (noise**2 - variance), int(self._paired.sum())
        if rounds > 1:
            known, estimate = self.known(0.0)
            means = np.where(self._there, np.linalg.pinv(known, _RANK, hermitian=True) @ estimate, 0.0)
            size = self._size[self._paired]
            levels = (self._scores - means).sum(axis=1)[self._paired] / size
            levels -= np.average(levels, weights=size)
            squares += float((size * levels**2).sum() - (rounds - 1) * variance) / float(size.mean())
        freedom += max(0, rounds - 1)
        return max(0.0, squares / freedom) if freedom else variance

    def known(self, level: float) -> tuple[Array, Array]:
        """The precision of the scores, and that times their estimate; ``level``: its variance, in that of a run."""
        there, part = self._there.astype(float), level / (1 + self._size * level)
        precise = np.diag(there.sum(axis=0)) - (there.T * part) @ there
        told = self._scores.sum(axis=0) - there.T @ (part * self._scores.sum(axis=1))
        each = precise.sum(axis=0)  # the level of all blocks together says nothing
        total = each.sum() or 1.0
        return precise - np.outer(each, each) / total, told - each * told.sum() / total


def _draws(known: Array, told: Array, effect: float) -> Array:
    """Draws of the scores, given the precision of their differences, and that times their estimate."""
    points = len(told)
    covariance = np.linalg.pinv(known, _RANK, hermitian=True)
    estimates, errors = covariance @ told, np.where(np.diag(known) > 0, np.maximum(np.diag(covariance), 1e-18), 1e6)
    widths = effect * _WIDTHS
    variances = errors[:, None] + widths**2
    apart = min(0.5, _EXPECTED / points)
    weights = np.concatenate(([1 - apart], apart * _DIFFER))
    mean = float(np.average(estimates, weights=1 / errors))
    for _ in range(_SWEEPS):
        likely = np.log(weights) + _density(estimates[:, None] - mean, variances)
        share = np.exp(likely - likely.max(axis=1, keepdims=True))
        share /= share.sum(axis=1, keepdims=True)
        precise = (share / variances).sum(axis=1)
        mean = float(precise @ estimates / precise.sum())
    better = effect * _BETTER
    alike = _density(estimates[:, None] - mean, variances)
    second = _density(estimates[:, None] - mean - better, variances[:, [0]])
    most = np.maximum(alike.max(axis=1), second.max(axis=1))[:, None]
    alike, second = np.exp(alike - most), np.exp(second - most)
    differ = np.minimum(0.5, _APART / points)
    # By point, how much better the second kind is, what part is of it, and what part differs from all.
    likely = (1 - differ) * (
        alike[:, 0, None, None, None] * (1 - _PARTS[:, None]) + second[:, :, None, None] * _PARTS[:, None]
    ) + differ * (alike[:, 1:] @ _DIFFER)[:, None, None, None]
    total = np.log(np.maximum(likely, 1e-300)).sum(axis=0) + np.log(_LIKELY)[:, None]
    chances = np.cumsum(np.exp(total - total.max()))
    normal, mixed, evenly = _luck(points)
    which, part, differs = np.unravel_index(np.searchsorted(chances, chances[-1] * evenly), total.shape)
    part, differs = _PARTS[part][:, None], differ[differs][:, None]
    kinds = np.concatenate(
        (
            ((1 - differs) * (1 - part) * alike[:, 0])[:, :, None],
            ((1 - differs) * part * second[:, which].T)[:, :, None],
            differs[:, :, None] * alike[:, 1:] * _DIFFER,
        ),
        axis=2,
    ).cumsum(axis=2)
    kind = (mixed[:, :, None] * kinds[:, :, -1:] > kinds).sum(axis=2).clip(0, len(widths))
    narrow = 1 / np.concatenate((widths[:1], widths))[kind] ** 2
    around = mean + np.where(kind == 1, better[which][:, None], 0.0)
    inverse = np.linalg.inv(np.linalg.cholesky(known[None] + narrow[:, :, None] * np.eye(points)))
    centre = np.einsum("cji,cj->ci", inverse, np.einsum("cij,cj->ci", inverse, told + narrow * around))
    drawn: Array = (centre[:, None, :] + normal @ inverse).reshape(-1, points)
    return drawn


def _density(distance: Array, variance: Array) -> Array:
    """The logarithm of the normal density, but for a constant."""
    found: Array = -(np.log(variance) + distance**2 / variance) / 2
    return found


@functools.cache
def _luck(points: int) -> tuple[Array, Array, Array]:
    """The same random numbers each time: normal ones for the draws, and evenly spread ones for the kinds."""
    random = np.random.default_rng(points)
    evenly = [(random.permutation(_MIXED) + random.random()) / _MIXED for _ in range(points + 1)]
    normal = random.standard_normal((_MIXED, _DRAWN, points))
    return normal, np.stack(evenly[:points], axis=1), evenly[points]
