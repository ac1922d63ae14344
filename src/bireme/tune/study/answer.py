"""Decides what a study claims: which point is best, which ones tie with it, or that none beats the default."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from bireme.errors import counted
from bireme.result.report import duration
from bireme.tune.metrics.numbers import shown_ratio
from bireme.tune.space.points import Point, key_of
from bireme.tune.study.comparison import Interval, expected_rounds
from bireme.tune.study.confirmation import Confirmation
from bireme.tune.study.observations import CLOCK, Measurements
from bireme.tune.study.trial import Answer, Compared

_CHEAPER = 0.95
"""Of points that seem as good, one is cheaper if its trials take less than this part of the time."""

_MANY_ROUNDS = 1000
"""If more rounds are missing, their number is not told."""

_SHOWN = 0.05
"""Less than this many seconds are not told: a program that is told of has often no times."""

_SUBSET = "; the front lists only points that ran in paired rounds, so it may be incomplete"

_TIE = 0.05
"""A point is told as a tie if it is as good as the best, but for what matters, with at least this probability."""


def answer(
    measurements: Measurements,
    default: Point,
    baseline: Point | None,
    promising: Point | None,
    rounds: Confirmation | None,
    effect: float,
    alpha: float = 0.05,
) -> Answer:
    """What is known.

    Args:
        measurements: of the study.
        default: the default point.
        baseline: the default, or what stands for it.
        promising: the point with the best estimate of the search.
        rounds: the confirmation, if there was any.
        effect: the smallest relative difference that matters.
        alpha: the allowed error.
    """
    failed = next((run.result for run in measurements.of(default) if run.values is None), None)
    why = (failed.reason or failed.cause) if failed and baseline != default else ""
    if baseline is None or promising is None:
        return Answer(best=None, baseline=default, default_failed=why, text="nothing works")
    least, several = math.log1p(effect), len(measurements.goals) > 1
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
        return known if several else _guess(measurements, known, promising, None, name, alpha, least)
    compared = tuple(
        _compared(measurements, number, point, rounds.versus(point, goal=number))
        for point in rounds.finalists
        for number in range(len(measurements.goals))
    )
    better = [each for each in rounds.working if rounds.certain(each)]
    known = known.replace(compared=compared, rounds=rounds.versus(promising).count)
    if several:
        text = f"{known.text} in the first goal{_SUBSET}"
        known = known.replace(front=tuple(_front(rounds, len(measurements.goals))), text=text)
    if several and not better:
        return known
    posterior, points = rounds.posterior, [baseline, *rounds.working]

    def as_good(lead: int) -> list[Point]:
        others = (number for number in range(1, len(points)) if number != lead)
        ties = [points[number] for number in others if posterior.ahead(number, lead, -least) >= _TIE]
        return sorted(ties, key=measurements.seconds)

    if not better:
        place, ends = rounds.leading
        if ends and place:  # the default, which may be chosen, is before what is cheaper
            place = points.index(_cheaper(measurements, points[place], [points[each] for each in posterior.good]))
        leader = points[place]
        ahead = posterior.means[place] - posterior.means[0]
        if posterior.ahead(place, 0, least) >= _TIE if ends else ahead >= least:
            known = known.replace(promising=leader, ties=tuple(as_good(place)) if ends else ())
            return _guess(measurements, known, leader, rounds, name, alpha, least, chosen=ends)
        return known.replace(ties=tuple(as_good(0)), promising=baseline)
    places = {key_of(each): number for number, each in enumerate(points)}
    leader = max(better, key=lambda each: posterior.means[places[key_of(each)]])
    equal = as_good(places[key_of(leader)])
    near = [each for each in equal if each in better and rounds.versus(each, leader).mean > -least]
    best = _cheaper(measurements, leader, near)
    sure = _compared(measurements, 0, best, rounds.versus(best))
    return known.replace(
        best=best,
        promising=best,
        confirmed=True,
        ratio=sure.ratio,
        low=sure.low,
        high=sure.high,
        rounds=sure.rounds,
        runs=min(_runs(measurements, best), _runs(measurements, baseline)),
        ties=tuple(sorted((each for each in (leader, *equal) if each != best), key=measurements.seconds)),
        seconds=measurements.seconds(best),
        text=f"{shown_ratio(sure.ratio)} x {name}, and at least {shown_ratio(sure.low)} x{_SUBSET * several}",
    )


def _guess(
    measurements: Measurements,
    known: Answer,
    best: Point,
    rounds: Confirmation | None,
    name: str,
    alpha: float,
    least: float,
    *,
    chosen: bool = False,
) -> Answer:
    """The answer where nothing is confirmed: the best by estimate, and how much is missing.

    ``chosen``: the rounds have shown that it may be chosen.
    """
    if best == known.baseline:
        others = [run for run in measurements.searched if run.trial.point != best]
        text = f"no point seems to be better than {name}" if others else f"only {name} was measured"
        if others and all(run.values is None for run in others):
            text = "no other point works"
        return known.replace(text=text)
    one, other = (statistics.fmean(measurements.scores(each)) for each in (best, known.baseline))
    ahead, done = one - other, 0
    if rounds is not None:
        place = [known.baseline, *rounds.working].index(best)
        ahead = float(rounds.posterior.means[place] - rounds.posterior.means[0])
        alpha, done = rounds.alpha(best), rounds.versus(best).count
    if ahead < least and not chosen:
        text = f"no point seems to be better than {name} by {100 * math.expm1(least):.3g} % or more"
        return known.replace(promising=known.baseline, text=text)
    own, theirs = _runs(measurements, best), _runs(measurements, known.baseline)
    of = "each" if own == theirs else f"and {theirs} of {name}"
    ratio = _of_means(measurements, best, known.baseline) or measurements.ratio(0, ahead)
    text = f"about {shown_ratio(ratio)} x {name} from {counted(own, 'run')} {of}"
    if chosen:
        text += f"; within {100 * math.expm1(least):.3g} % of the best, with 95 % confidence"
    spread = math.sqrt(2) * (known.noise or 0.02)
    more = max(1.0, expected_rounds(ahead, spread, alpha) - done)
    if math.isfinite(more) and more < _MANY_ROUNDS:
        seconds = more * (measurements.seconds(best) + measurements.seconds(known.baseline))
        took = f" ({duration(seconds)})" if seconds >= _SHOWN else ""
        text += f"; not confirmed: this needs about {counted(math.ceil(more), 'more round')}{took}"
    else:
        text += "; not confirmed"
    return known.replace(
        best=best,
        promising=best,
        ratio=ratio,
        low=0.0,
        high=None,
        rounds=done,
        runs=min(own, theirs),
        seconds=measurements.seconds(best),
        text=text,
    )


def _of_means(measurements: Measurements, one: Point, other: Point) -> float:
    """How many times as good a point is, by the means of all its runs, as they are shown; 0.0 if it is not better."""
    figures = [
        [run.values[0] for run in measurements.of(each) if run.values and not run.bounded] for each in (one, other)
    ]
    mean, base = map(statistics.fmean, figures)
    ratio = (
        (mean / base if measurements.goals[0].direction == "maximize" else base / mean) if min(mean, base) > 0 else 0
    )
    return ratio if ratio > 1 else 0.0


def _runs(measurements: Measurements, point: Point) -> int:
    return sum(run.values is not None for run in measurements.of(point))


def without_default(
    measurements: Measurements, best: Point | None, rounds: Confirmation | None, effect: float
) -> Answer:
    """What is known in a study without a default: all are compared with the best.

    Args:
        measurements: of the study.
        best: by the search; what the rounds compare with.
        rounds: the paired rounds, if there were any.
        effect: the smallest relative difference that matters.
    """
    if best is None:
        return Answer(best=None, baseline={}, text="no configuration worked")
    known = Answer(
        best=best,
        baseline=best,
        promising=best,
        noise=measurements.noise()[0],
        seconds=measurements.seconds(best),
        text=f"from {counted(len(measurements.scores(best)), 'run')}",
    )
    working = [] if rounds is None else [each for each in (best, *rounds.finalists) if not rounds.failed(each)]
    if rounds is None or not rounds.last or not working:
        return known
    leader = max(working, key=lambda each: rounds.versus(each).mean)
    others = [each for each in working if each != leader]
    against = [(each, rounds.versus(each, leader)) for each in others]
    confirmed = bool(others) and all(versus.high < 0 for _, versus in against)
    count = max((versus.count for _, versus in against), default=rounds.last)
    words = "confirmed in" if confirmed else "leading in"
    return known.replace(
        best=leader,
        baseline=leader,
        promising=leader,
        confirmed=confirmed,
        rounds=count,
        ties=tuple(
            each
            for each, versus in sorted(against, key=lambda one: measurements.seconds(one[0]))
            # Who has left after fewer rounds was worse.
            if versus.count >= min(3, count) and versus.high >= 0 and versus.plausible(-math.log1p(effect))
        ),
        compared=tuple(_compared(measurements, 0, each, versus) for each, versus in against if versus.count),
        seconds=measurements.seconds(leader),
        text=f"{words} {counted(count, 'paired round')}",
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
