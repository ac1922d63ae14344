"""The answer of a study: what its paired rounds allow to say."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bireme.tune.metrics.numbers import shown_ratio
from bireme.tune.space.points import Point
from bireme.tune.study.comparison import Interval
from bireme.tune.study.confirmation import Confirmation
from bireme.tune.study.observations import CLOCK, Measurements
from bireme.tune.study.trial import Answer, Compared

_CHEAPER = 0.95
"""Of points that seem as good, one is cheaper if its trials take less than this part of the time."""


def answer(
    measurements: Measurements,
    default: Point,
    baseline: Point | None,
    promising: Point | None,
    rounds: Confirmation | None,
    effect: float,
) -> Answer:
    """What is known.

    Args:
        measurements: of the study.
        default: the default point.
        baseline: the default, or what stands for it.
        promising: the point with the best estimate of the search.
        rounds: the paired rounds, if there were any.
        effect: the smallest relative difference that matters.
    """
    failed = next((run.result for run in measurements.of(default) if run.values is None), None)
    why = (failed.reason or failed.cause) if failed and baseline != default else ""
    if baseline is None or promising is None:
        return Answer(best=None, baseline=default, default_failed=why, text="nothing works")
    name = "the default" if baseline == default else "the first point that works"
    known = Answer(
        best=baseline,
        baseline=baseline,
        promising=promising,
        noise=measurements.noise()[0],
        default_failed=why,
        seconds=measurements.seconds(baseline),
        text=f"no point is shown to be better than {name}",
    )
    if rounds is None or not rounds.last:
        return known
    compared = tuple(
        _compared(measurements, number, point, rounds.versus(point, goal=number))
        for point in rounds.finalists
        for number in range(len(measurements.goals))
    )
    working = [each for each in rounds.finalists if not rounds.failed(each)]
    working.sort(key=lambda each: -rounds.versus(each).mean)
    better = [each for each in working if rounds.versus(each).low > 0]
    # Not always the one that leads: that may have run in few rounds only.
    leader = max(better, key=lambda each: rounds.versus(each).mean, default=rounds.leader)
    versus = rounds.versus(leader)
    known = known.replace(compared=compared, promising=leader if versus.mean > 0 else baseline, rounds=versus.count)
    if len(measurements.goals) > 1:
        known = known.replace(front=tuple(_front(rounds, len(measurements.goals))))
    if not better:
        equal = [each for each in working if rounds.versus(each).plausible(-math.log1p(effect))]
        return known.replace(ties=tuple(equal))
    others = [each for each in working if each in better or rounds.versus(each).mean > versus.mean]
    equal = [each for each in others if each != leader and rounds.versus(each, leader).plausible(-math.log1p(effect))]
    near = [each for each in equal if each in better and rounds.versus(each, leader).mean > -math.log1p(effect)]
    best = _cheaper(measurements, leader, near)
    sure = _compared(measurements, 0, best, rounds.versus(best))
    return known.replace(
        best=best,
        confirmed=True,
        ratio=sure.ratio,
        low=sure.low,
        high=sure.high,
        rounds=sure.rounds,
        ties=tuple(each for each in (leader, *equal) if each != best),
        seconds=measurements.seconds(best),
        text=f"{shown_ratio(sure.ratio)} x {name}, and at least {shown_ratio(sure.low)} x",
    )


def _cheaper(measurements: Measurements, leader: Point, near: Sequence[Point]) -> Point:
    """The one of the points near the leader that takes the least time if that is clearly less; else the leader."""
    cheapest = min(near, key=measurements.seconds, default=leader)
    clearly = measurements.seconds(cheapest) < _CHEAPER * measurements.seconds(leader)
    return cheapest if clearly and measurements.goals[0].name != CLOCK else leader


def _compared(measurements: Measurements, goal: int, point: Point, versus: Interval) -> Compared:
    """An interval of score differences as ratios."""
    return Compared(
        point=point,
        goal=measurements.goals[goal].name,
        ratio=measurements.ratio(goal, versus.mean),
        low=max(0.0, measurements.ratio(goal, versus.low)) if math.isfinite(versus.low) else 0.0,
        high=measurements.ratio(goal, versus.high) if math.isfinite(versus.high) else None,
        rounds=versus.count,
    )


def _front(rounds: Confirmation, goals: int) -> list[Point]:
    """The points that no other beats for certain in one goal while it may be as good in the others."""
    points = [rounds.baseline, *(each for each in rounds.finalists if not rounds.failed(each))]

    def beats(other: Point, point: Point) -> bool:
        against = [rounds.versus(other, point, goal) for goal in range(goals)]
        return any(each.low > 0 for each in against) and all(each.mean >= 0 for each in against)

    return [point for point in points if not any(beats(other, point) for other in points if other != point)]
