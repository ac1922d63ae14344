"""Chooses the points that run again in paired rounds: those that may be the best, and better than the baseline."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Protocol

from bireme.tune.space.points import Point, key_of
from bireme.tune.study.observations import Measurements
from bireme.tune.study.screening import LEAST_RUNS, best_by_runs, candidates

MOST = 24
"""At most this many points are compared with the baseline: each takes a part of the allowed error.

All points of a small space may be among them, so where noise hides which is the best, none is left out for it.
"""

_LIKELY = 1.65
"""A point may be the best if the difference is less than this many standard deviations: one in twenty is."""


class Estimator(Protocol):
    """What has estimates of points, as a sampler with a model has."""

    def estimates(self, measured: Measurements, /) -> list[tuple[float, float, Point]] | None:
        """(expected score, its standard deviation, point) of the measured points; None: unknown."""


def estimates(sampler: Estimator, measured: Measurements) -> list[tuple[float, float, Point]]:
    """What the sampler expects of the points that work."""
    working = measured.working()
    modelled = sampler.estimates(measured)
    if modelled is None:
        noise = measured.noise()[0] or 0.02
        scores = [measured.scores(point) for point in working]
        return [
            (statistics.fmean(each), noise / math.sqrt(len(each)), point)
            for each, point in zip(scores, working, strict=True)
        ]
    known = {key_of(point): (mean, deviation) for mean, deviation, point in modelled}
    return [(*known[key_of(point)], point) for point in working if key_of(point) in known]


def promising(sampler: Estimator, measured: Measurements) -> tuple[float, float, Point] | None:
    """The best estimate of the points that may be the best by their own runs; None if nothing works.

    A model may take one figure that is far better than all others for noise, though it is more than the noise.
    """
    known = estimates(sampler, measured)
    able = [each.point for each in best_by_runs(measured)] if len(measured.goals) == 1 else []
    return max((each for each in known if each[2] in able), default=max(known, default=None, key=_mean), key=_mean)


def _mean(estimate: tuple[float, float, Point]) -> float:
    return estimate[0]


def choose(
    sampler: Estimator,
    measured: Measurements,
    baseline: Point,
    *,
    effect: float,
    room: Callable[[Sequence[Point]], int],
    least_runs: int = LEAST_RUNS,
) -> list[Point]:
    """The finalists.

    Args:
        sampler: what is expected.
        measured: the runs of the study.
        baseline: what they are compared with, itself no finalist.
        effect: the smallest relative difference that matters.
        room: how many of some points, from the first on, can be finalists; at least one.
        least_runs: with this many runs, a point may be a finalist though the model does not believe in it.
    """
    known = estimates(sampler, measured)
    if len(measured.goals) > 1:
        front = sorted(_nondominated(measured, baseline), key=lambda point: statistics.fmean(measured.scores(point)))
        likely = [front[place] for place in _ends_first(len(front))]
        return likely[: room(likely)]
    best = promising(sampler, measured) or known[0]
    if best[0] < max(map(_mean, known)):  # the model is wrong
        least_runs = 1
    base = next((each for each in known if each[2] == baseline), best)
    by_the_model = [
        point
        for mean, deviation, point in sorted(known, key=lambda each: -each[0] - each[1])
        if point != baseline
        and mean + _LIKELY * math.hypot(deviation, best[1]) >= best[0]
        and mean - base[0] + _LIKELY * math.hypot(deviation, base[1]) >= math.log1p(effect)
    ]
    by_their_runs = [each.point for each in candidates(measured, baseline, effect) if each.runs >= least_runs]
    pairs = itertools.zip_longest(by_their_runs, by_the_model)
    likely = list({key_of(point): point for pair in pairs for point in pair if point is not None}.values())
    return likely[: room(likely)]


def _ends_first(count: int) -> list[int]:
    """The places in a row: the ends first, then always the middle of the widest gap between those before."""
    places, gaps = sorted({0, count - 1})[: min(count, 2)], [(0, count - 1)]
    while gaps := [(low, high) for low, high in gaps if high - low > 1]:
        low, high = max(gaps, key=lambda gap: gap[1] - gap[0])
        gaps.remove((low, high))
        gaps += [(low, (low + high) // 2), ((low + high) // 2, high)]
        places.append((low + high) // 2)
    return places


def _nondominated(measured: Measurements, baseline: Point) -> list[Point]:
    """The points, besides the baseline, that no other beats in both goals by the runs of the search."""
    working = measured.working()
    scores = [[statistics.fmean(measured.scores(point, goal)) for goal in range(2)] for point in working]
    return [
        point
        for point, own in zip(working, scores, strict=True)
        if point != baseline
        and not any(
            theirs != own and all(other >= mine for other, mine in zip(theirs, own, strict=True)) for theirs in scores
        )
    ]
