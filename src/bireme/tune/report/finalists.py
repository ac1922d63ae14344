"""Finalists against the baseline: the ratios of their paired rounds, with intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from bireme.tune.report.study_record import MEASURED, Finalist, GoalRecord, TrialRecord
from bireme.tune.study.comparison import interval


def compared_by_rounds(
    trials: Sequence[TrialRecord], goals: Sequence[GoalRecord], alpha: float, effect: float
) -> tuple[Finalist, ...]:
    """Compare each configuration of the paired rounds with the baseline, which is configuration 0.

    Args:
        trials: of the study.
        goals: what is compared.
        alpha: the probability with which any of the intervals may be wrong.
        effect: the smallest relative difference that matters.
    """
    rounds: dict[int, dict[int, TrialRecord]] = {}
    for trial in trials:
        if trial.phase == "confirm" and trial.round and trial.cause == MEASURED:
            rounds.setdefault(trial.round, {})[trial.config] = trial
    configs = sorted({config for each in rounds.values() for config in each if config})
    found = []
    for goal in goals:
        for config in configs:
            differences = list(_differences(rounds.values(), config, goal))
            if differences:
                each = interval(differences, alpha / (len(configs) * len(goals)))
                low, high = _ratio(each.low), _ratio(each.high)
                found.append(
                    Finalist(
                        config=config,
                        goal=goal.name,
                        ratio=math.exp(each.mean),
                        low=low,
                        high=high,
                        rounds=tuple(map(math.exp, differences)),
                        count=len(differences),
                        verdict=verdict(low, high, effect),
                    )
                )
    return _ordered(found)


def compared_by_answer(
    answer: Mapping[str, Any],
    number: Callable[[Mapping[str, object]], int],
    by_rounds: Sequence[Finalist],
    effect: float,
) -> tuple[Finalist, ...]:
    """The comparisons of the answer, with the rounds behind them; those by rounds if there is no answer.

    Args:
        answer: of the study, as its journal has it.
        number: returns the number of a point.
        by_rounds: what the rounds alone say.
        effect: the smallest relative difference that matters.
    """
    compared = answer.get("compared") or ()
    if not compared:
        return tuple(by_rounds)
    rounds = {(each.config, each.goal): each.rounds for each in by_rounds}
    found = []
    for each in compared:
        config, goal = number(each["point"]), str(each["goal"])
        found.append(
            Finalist(
                config=config,
                goal=goal,
                ratio=float(each["ratio"]),
                low=each["low"],
                high=each["high"],
                rounds=rounds.get((config, goal), ()),
                count=int(each["rounds"]),
                verdict=verdict(each["low"], each["high"], effect),
            )
        )
    return _ordered(found)


def verdict(low: float | None, high: float | None, effect: float) -> str:
    """What an interval of a ratio says."""
    if low is not None and low > 1:
        return "better"
    if high is not None and high < 1:
        return "worse"
    if low is not None and high is not None and low >= 1 - effect and high <= 1 + effect:
        return "equivalent"
    return "not distinguishable"


def _differences(rounds: Iterable[Mapping[int, TrialRecord]], config: int, goal: GoalRecord) -> list[float]:
    """The logarithms of the ratios of those rounds in which both were measured."""
    found = []
    for each in rounds:
        if config in each and 0 in each:
            own, base = each[config].figures.get(goal.name), each[0].figures.get(goal.name)
            if own is not None and base is not None and own > 0 and base > 0:
                found.append(math.log(own / base) * (1 if goal.maximized else -1))
    return found


def _ratio(logarithm: float) -> float | None:
    return math.exp(logarithm) if math.isfinite(logarithm) and abs(logarithm) < 50 else None


def _ordered(found: list[Finalist]) -> tuple[Finalist, ...]:
    return tuple(sorted(found, key=lambda each: (each.goal, -each.ratio)))
