"""Chooses the points that run again before there are finalists: those that may be the best by their own runs alone.

A model takes a single good figure among many for noise, and is right most of the time. So a point that is better than
all that resemble it would not become a finalist. Here each point stands for itself: those that may be the best run
again, and one after the other is left behind ("successive elimination": Even-Dar, Mannor and Mansour, "Action
elimination and stopping conditions for the multi-armed bandit and reinforcement learning problems", Journal of Machine
Learning Research 7, 2006).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping
from functools import partial
from typing import NamedTuple

from bireme.tune.space.points import Point, key_of
from bireme.tune.study.comparison import quantile
from bireme.tune.study.observations import Measurements

LEAST_RUNS = 3
"""A point is not screened more often than this; what is still unclear then is for rounds. With this many runs, a point
may be a finalist though the model does not believe in it."""

_LIKELY = 2.33
"""What lies further off is left behind: the 99 % quantile of the normal distribution, as it is asked for after each run
of each point."""

_SURE = 8
"""With fewer degrees of freedom, the noise may seem to be a fraction of what it is: the best points run again first."""

_CLEAR = 2
"""From so many degrees of freedom on, one point may be so far ahead of all others that nothing has to run again."""


class Candidate(NamedTuple):
    """A point with the number and the mean score of its runs."""

    runs: int
    mean: float
    point: Point


def best_by_runs(measured: Measurements) -> list[Candidate]:
    """The points that may be the best by their own runs, the best mean first; [] if nothing is known of the noise."""
    reach = _reach(measured)
    points = [_candidate(measured, point) for point in measured.working()]
    floor = max((each.mean - reach / math.sqrt(each.runs) for each in points), default=0.0)
    able = [each for each in points if reach and each.mean + reach / math.sqrt(each.runs) >= floor]
    return sorted(able, key=lambda each: -each.mean)


def candidates(measured: Measurements, baseline: Point, effect: float) -> list[Candidate]:
    """Of `best_by_runs` those that may be better than the baseline by what matters.

    Args:
        measured: the runs of the study.
        baseline: what points are compared with.
        effect: the smallest relative difference that matters.
    """
    reach, own = _reach(measured), _candidate(measured, baseline)
    least = own.mean + math.log1p(effect)
    return [
        each
        for each in best_by_runs(measured)
        if each.point != baseline and each.mean + reach * math.sqrt(1 / each.runs + 1 / own.runs) >= least
    ]


def _reach(measured: Measurements) -> float:
    """How far a run may be from its mean; 0.0: nothing is known of the noise."""
    noise, freedom = measured.noise()
    return quantile(_LIKELY, freedom) * noise if noise else 0.0


def next_point(
    measured: Measurements,
    baseline: Point,
    effect: float,
    running: Collection[str] = (),
    *,
    near: float | None = None,
) -> Point | None:
    """The point that runs again; None if all that may be the best can be finalists, or are known well enough.

    Args:
        measured: the runs of the study.
        baseline: what points are compared with; it runs as often as they do.
        effect: the smallest relative difference that matters.
        running: the keys of points that run again now, once for each run.
        near: what is behind the best by more than this part does not run again, though nothing is known of the noise;
            None: what is known of it decides.
    """
    noise, freedom = measured.noise()
    able = candidates(measured, baseline, effect)
    if near is None and freedom >= _CLEAR and len(able) == 1:
        return None
    if freedom < _SURE and (noise is not None or near is not None):
        known = list(map(partial(_candidate, measured), measured.working()))
        if near is not None:
            floor = max(each.mean for each in known) + math.log1p(-near)
            known = [each for each in known if each.mean >= floor]
        once = [each for each in known if each.runs == 1 and len(known) > 1]
        best = max(once, key=lambda each: each.mean, default=None)
        return None if best is None or key_of(best.point) in running else best.point
    if not able:
        return None
    now: Mapping[str, int] = {key: list(running).count(key) for key in set(running)}
    due = [
        (each.runs + now.get(key_of(each.point), 0), -each.mean, number, each.point)
        for number, each in enumerate((_candidate(measured, baseline), *able))
    ]
    runs, _, _, point = min(due)
    return point if runs < LEAST_RUNS else None


def _candidate(measured: Measurements, point: Point) -> Candidate:
    scores = measured.scores(point)
    return Candidate(len(scores), statistics.fmean(scores), point)
