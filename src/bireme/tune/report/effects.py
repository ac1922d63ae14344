"""The effect of each parameter: how its values compare with the default's, all else being equal, and where memory ends.

An additive model of the logarithm of the figure is fitted to all measured trials: one coefficient for each value of
each parameter. So a value that a search has tried mostly together with good values of others is not credited with
them. The coefficients have a weak normal prior (ridge regression): a value that cannot be told apart from others has a
wide interval instead of none. Interactions are in the residual, so they widen the intervals.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import NormalDist

from bireme.tune.report.view import (
    INTERRUPTED,
    MEASURED,
    OUT_OF_MEMORY,
    RUNNING,
    GoalView,
    ParameterView,
    StudyView,
    TrialView,
    shown_value,
)
from bireme.value import Value

_MOST_LEVELS = 16
"""Values of a parameter that are shown one by one; more are put into classes."""
_CLASSES = 8
_MOST_NAMES = 40
"""Values that are no numbers; a parameter with more of them is left out."""
_PRIOR = 2.0
"""Standard deviation of the prior, in those of the figures."""
_INACTIVE = "inactive"


class Level(Value):
    """A value of a parameter, or a class of values.

    Attributes:
        default: whether the baseline has it.
        tried: how many trials ended with it.
        ratio: how many times as good as the default's value; None if nothing was measured.
        low: the ratio is at least this, with the confidence of the study.
        high: the ratio is at most this.
        best: the best figure of a trial with this value.
    """

    label: str
    default: bool
    tried: int
    measured: int
    out_of_memory: int
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    best: float | None = None


class Effect(Value):
    """The effect of a parameter on a goal: its levels in order, and how far apart their ratios are."""

    parameter: str
    goal: str
    memory: bool
    levels: tuple[Level, ...]
    span: float


def effects(study: StudyView, goal: GoalView) -> tuple[Effect, ...]:
    """The effects of all parameters on a goal, the strongest first. Those that had one value only are left out."""
    ended = [each for each in study.trials if each.cause not in (RUNNING, INTERRUPTED) and each.phase != "profile"]
    parameters = study.parameters or _seen(ended)
    tables = [table for each in parameters if 1 < len((table := _Levels(each, ended, study)).labels) <= _MOST_NAMES]
    if not tables:
        return ()
    fitted = _fit(ended, goal, tables, study.confidence)
    found = [table.effect(goal, fitted.get(place)) for place, table in enumerate(tables)]
    return tuple(sorted(found, key=lambda each: -round(each.span, 9)))  # equal ones as declared


def _seen(trials: Sequence[TrialView]) -> list[ParameterView]:
    """The parameters that trials had, where the study does not name any."""
    names = dict.fromkeys(name for trial in trials for name in trial.point)
    return [ParameterView(name) for name in names]


class _Levels:
    """The levels of one parameter: those that were tried, in the order of its choices."""

    def __init__(self, parameter: ParameterView, trials: Sequence[TrialView], study: StudyView) -> None:
        self.parameter, self.trials = parameter, trials
        base = study.configurations[0].point if study.configurations else {}
        given = [trial.point.get(parameter.name, _INACTIVE) for trial in trials]
        self._classes = _classes(parameter, given)
        named = [each for each in study.configurations if parameter.name in each.point]
        self._words = {repr(each.point[parameter.name]): each.words[parameter.name] for each in named}
        order = {label: None for value in [*parameter.choices, *_sorted(given)] if (label := self._label(value))}
        tried = [self._label(value) for value in given]
        self.labels = [label for label in order if label in set(tried)]
        number = {label: place for place, label in enumerate(self.labels)}
        self.numbers = [number[label] for label in tried]
        self.default = number.get(self._label(base.get(parameter.name, _INACTIVE)), 0)

    def _label(self, value: object) -> str:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            for low, high in self._classes:
                if low <= value <= high:
                    return f"{low:g}" if low == high else f"{low:g} to {high:g}"
            if self._classes:
                return ""  # a choice that was not tried
        return self._words.get(repr(value), shown_value(value))

    def effect(self, goal: GoalView, fitted: Sequence[tuple[float, float, float]] | None) -> Effect:
        levels = []
        for number, label in enumerate(self.labels):
            own = [trial for trial, each in zip(self.trials, self.numbers, strict=True) if each == number]
            figures = [trial.figures[goal.name] for trial in own if _has(trial, goal)]
            ratio, low, high = fitted[number] if fitted and figures else (None, None, None)
            levels.append(
                Level(
                    label=label,
                    default=number == self.default,
                    tried=len(own),
                    measured=len(figures),
                    out_of_memory=sum(trial.cause == OUT_OF_MEMORY for trial in own),
                    ratio=ratio,
                    low=low,
                    high=high,
                    best=(max if goal.maximized else min)(figures) if figures else None,
                )
            )
        ratios = [each.ratio for each in levels if each.ratio is not None]
        span = max(ratios) / min(ratios) - 1 if ratios and min(ratios) > 0 else 0.0
        return Effect(
            parameter=self.parameter.name,
            goal=goal.name,
            memory=self.parameter.memory,
            levels=tuple(levels),
            span=span,
        )


def _has(trial: TrialView, goal: GoalView) -> bool:
    return trial.cause == MEASURED and trial.figures.get(goal.name, 0.0) > 0


def _sorted(values: Sequence[object]) -> list[object]:
    """Distinct values: numbers in their order, then the others as they came."""
    distinct = list({repr(value): value for value in values}.values())
    numbers = [each for each in distinct if isinstance(each, (int, float)) and not isinstance(each, bool)]
    return [*sorted(numbers), *(each for each in distinct if each not in numbers)]


def _classes(parameter: ParameterView, given: Sequence[object]) -> list[tuple[float, float]]:
    """Ranges that hold about as many distinct values each, if there are too many numbers to show them one by one."""
    numbers = [each for each in _sorted(given) if isinstance(each, (int, float)) and not isinstance(each, bool)]
    if len(numbers) <= _MOST_LEVELS:
        return []
    edges = [round(place * len(numbers) / _CLASSES) for place in range(_CLASSES + 1)]
    return [(numbers[low], numbers[high - 1]) for low, high in pairwise(edges)]


def _fit(
    trials: Sequence[TrialView], goal: GoalView, tables: Sequence[_Levels], confidence: float
) -> Mapping[int, list[tuple[float, float, float]]]:
    """(ratio to the default, low, high) for each level of each parameter; empty if too little was measured."""
    import numpy
    from numpy.typing import NDArray

    rows = [place for place, trial in enumerate(trials) if _has(trial, goal)]
    widths = [len(table.labels) for table in tables]
    if len(rows) < 4:
        return {}
    sign = 1.0 if goal.maximized else -1.0
    target = numpy.array([sign * math.log(trials[place].figures[goal.name]) for place in rows])
    design: NDArray[numpy.float64] = numpy.zeros((len(rows), 1 + sum(widths)))
    design[:, 0] = 1.0
    starts = [1 + sum(widths[:place]) for place in range(len(widths))]
    for start, table in zip(starts, tables, strict=True):
        levels = numpy.array([table.numbers[place] for place in rows])
        design[numpy.arange(len(rows)), start + levels] = 1.0
    spread = float(target.std()) or 1e-9
    inverse = variance = None
    residual = spread**2
    for _ in range(2):  # the prior is in units of the residual, which is known after the first fit
        prior = numpy.full(design.shape[1], residual / (_PRIOR * spread) ** 2)
        prior[0] = 1e-9
        inverse = numpy.linalg.inv(design.T @ design + numpy.diag(prior))
        centred = target - target.mean()
        weights = inverse @ (design.T @ centred)
        freedom = float(numpy.trace(inverse @ (design.T @ design)))
        error = float(((centred - design @ weights) ** 2).sum())
        residual = max(error / max(1.0, len(rows) - freedom), 1e-12)
        variance = residual * inverse
    assert variance is not None
    quantile = NormalDist().inv_cdf(0.5 + confidence / 2)
    found = {}
    for place, (start, table) in enumerate(zip(starts, tables, strict=True)):
        levels_found, base = [], start + table.default
        for number in range(len(table.labels)):
            own = start + number
            mean = float(weights[own] - weights[base])
            deviation = float(variance[own, own] + variance[base, base] - 2 * variance[own, base])
            radius = quantile * math.sqrt(max(0.0, deviation))
            levels_found.append((math.exp(mean), math.exp(mean - radius), math.exp(min(mean + radius, 700.0))))
        found[place] = levels_found
    return found
