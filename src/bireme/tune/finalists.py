"""Which points are run again in paired rounds: those that may be the best, and better than the baseline."""

from __future__ import annotations

import itertools
import math
import statistics
from typing import Protocol

from bireme.tune.measurements import Measurements
from bireme.tune.screening import LEAST_RUNS, candidates
from bireme.tune.space import Point, key_of

MOST = 4
"""At most so many points are compared with the baseline: each takes a part of the allowed error."""

MOST_OF_TWO = 8
"""The same with two goals, where the finalists are a whole front."""

ROUNDS = 3
"""Fewer rounds than this are never certain, so there are not more finalists than a budget has room for."""

_LIKELY = 1.65
"""A point may be the best if the difference is less than this many standard deviations: one in twenty is."""

Estimate = tuple[float, float, Point]
"""(expected score, its standard deviation, point)."""


class Expecting(Protocol):
    """What has estimates of points, as a search has."""

    def estimates(self) -> list[Estimate] | None:
        """Of the measured points; None: unknown."""


def estimates(search: Expecting, measured: Measurements) -> list[Estimate]:
    """What the search expects of the points that work."""
    working = measured.working()
    modelled = search.estimates()
    if modelled is None:
        noise = measured.noise()[0] or 0.02
        scores = [measured.scores(point) for point in working]
        return [
            (statistics.fmean(each), noise / math.sqrt(len(each)), point)
            for each, point in zip(scores, working, strict=True)
        ]
    known = {key_of(point): (mean, deviation) for mean, deviation, point in modelled}
    return [(*known[key_of(point)], point) for point in working if key_of(point) in known]


def choose(
    search: Expecting,
    measured: Measurements,
    baseline: Point,
    *,
    effect: float,
    trials: int | None = None,
    seconds: float | None = None,
) -> list[Point]:
    """The finalists.

    Args:
        search: what the search expects.
        measured: the runs of the study.
        baseline: what they are compared with, itself no finalist.
        effect: the smallest relative difference that matters.
        trials: how many may still run; None: no limit.
        seconds: how long they may take together; None: no limit.
    """
    known = estimates(search, measured)
    if len(measured.goals) > 1:
        front = sorted(_nondominated(measured, baseline), key=lambda point: statistics.fmean(measured.scores(point)))
        # From one end of the front to the other.
        likely = (
            [front[number * (len(front) - 1) // (MOST_OF_TWO - 1)] for number in range(MOST_OF_TWO)] if front else []
        )
        likely = list({key_of(point): point for point in likely}.values())
    else:
        best = max(known, key=lambda each: each[0])
        base = next((each for each in known if each[2] == baseline), best)
        by_the_model = [
            point
            for mean, deviation, point in sorted(known, key=lambda each: -each[0] - each[1])
            if point != baseline
            and mean + _LIKELY * math.hypot(deviation, best[1]) >= best[0]
            and mean - base[0] + _LIKELY * math.hypot(deviation, base[1]) >= math.log1p(effect)
        ]
        by_their_runs = [each.point for each in candidates(measured, baseline, effect) if each.runs >= LEAST_RUNS]
        pairs = itertools.zip_longest(by_their_runs, by_the_model)
        likely = list({key_of(point): point for pair in pairs for point in pair if point is not None}.values())
    return likely[: _room(measured, baseline, likely, trials, seconds)]


def _room(
    measured: Measurements, baseline: Point, likely: list[Point], trials: int | None, seconds: float | None
) -> int:
    """How many finalists a budget has room for; at least one."""
    most = MOST if len(measured.goals) == 1 else MOST_OF_TWO
    most = most if trials is None else min(most, trials // (ROUNDS + 1) - 1)
    if seconds is not None:
        lasts = [measured.seconds(point) for point in (baseline, *likely)]
        room = seconds / (ROUNDS + 1)
        most = min(most, sum(sum(lasts[: count + 2]) <= room for count in range(len(likely))))
    return max(1, most)


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
