"""The measurements of a study: scores, the noise of a run, and what is known of each point."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import SupportsFloat

from bireme.errors import BadInputError
from bireme.tune.metrics.numbers import LEAST, MOST, Number
from bireme.tune.space.points import Point, key_of
from bireme.tune.study.trial import FinishedTrial, Goal, Phase, Trial, TrialResult

CLOCK = "time"
"""The figure that is the wall time of a trial if none of this name is reported."""

_MOST_EXP = 700.0
"""The exponential of more than this overflows."""


class Measurements:
    """All runs of a study, in the order of their ends.

    What was measured before the study began, or before its program was edited, stands for a point until the point has
    run again. Two programs have no common mean, and their difference is no noise.

    Args:
        goals: one or two.
    """

    def __init__(self, goals: Sequence[Goal]) -> None:
        self.goals = tuple(goals)
        self.runs: list[FinishedTrial] = []
        self._by_point: dict[str, list[FinishedTrial]] = {}
        self._superseded: set[int] = set()
        self._scales: list[float | None] = [None for _ in goals]
        self._failed: set[str] = set()

    @property
    def scales(self) -> tuple[float | None, ...]:
        """What scores are relative to, for each goal; None: scores are logarithms."""
        return tuple(self._scales)

    @property
    def superseded(self) -> int:
        """How many runs do not count any more, because their points have run again."""
        return len(self._superseded)

    def add(self, trial: Trial, result: TrialResult, *, earlier: bool = False) -> FinishedTrial:
        """Note that a trial has ended.

        Args:
            earlier: whether it counts only until the same point has run again.

        Raises:
            BadInputError: it worked, but the figure of a goal is missing.
        """
        if result.cause in ("ok", "pruned") and (why := self._diverged(result)):
            result = result.replace(cause="no metric", reason=why)
        measured = result.cause in ("ok", "pruned") and trial.phase != "profile"
        values = tuple(self._values(trial, result)) if measured else None
        run = FinishedTrial(trial, result, values, earlier)
        self.runs.append(run)
        if trial.phase == "profile":
            return run
        runs = self._by_point.setdefault(key_of(trial.point), [])
        runs.append(run)
        if any(not each.earlier and each.values is not None and not each.trial.paired for each in runs):
            self._superseded.update(id(each) for each in runs if each.earlier)
            runs[:] = [each for each in runs if not each.earlier]
        if result.cause in ("failed", "no metric"):
            self._failed.add(key_of(trial.point))
        for goal, figure in enumerate(values or ()):
            if figure <= 0 or self._scales[goal] is not None:
                self._scales[goal] = max(abs(figure), self._scales[goal] or self._greatest(goal))
        return run

    @property
    def searched(self) -> list[FinishedTrial]:
        """All runs of points but those in paired rounds: after these, a study that is resumed must not search on."""
        return [
            run
            for run in self.runs
            if not run.trial.paired and run.trial.phase != "profile" and id(run) not in self._superseded
        ]

    def in_phase(self, phase: Phase) -> list[FinishedTrial]:
        """The runs of a phase."""
        return [run for run in self.runs if run.trial.phase == phase]

    def of(self, point: Point) -> list[FinishedTrial]:
        """The runs of a point."""
        return self._by_point.get(key_of(point), [])

    def score(self, goal: int, figure: float) -> float:
        """A figure as a score: more is better, and a difference of 0.01 is one percent.

        The logarithm, or, if there are figures that have none, the fraction of the greatest figure.
        """
        scale = self._scales[goal]
        score = math.log(max(figure, LEAST)) if scale is None else figure / (scale or 1.0)
        return score if self.goals[goal].direction == "maximize" else -score

    def worst_and_best(self, goal: int) -> tuple[float, float]:
        """The least and the greatest score of all runs but those in paired rounds; two zeros if there are none."""
        scores = [self.score(goal, run.values[goal]) for run in self.searched if run.values] or [0.0]
        return min(scores), max(scores)

    def ratio(self, goal: int, difference: float) -> float:
        """A difference of scores as a ratio."""
        return math.exp(min(difference, _MOST_EXP)) if self._scales[goal] is None else 1 + difference

    def scores(self, point: Point, goal: int = 0, *, earlier: bool = True) -> list[float]:
        """The scores of the complete runs of a point, but those in paired rounds; ``earlier``: also of earlier ones."""
        return [
            self.score(goal, run.values[goal])
            for run in self.of(point)
            if run.values and not run.bounded and not run.trial.paired and (earlier or not run.earlier)
        ]

    @property
    def failures(self) -> int:
        """How many points have failed, not counting those that need too much memory or time, or exceed a limit."""
        return len(self._failed)

    def seconds(self, point: Point) -> float:
        """The mean wall time of the complete runs of a point; of all runs if it has none."""
        runs = [each.result.seconds for each in self.of(point) if each.result.cause == "ok"]
        return statistics.fmean(runs) if runs else self.mean_seconds

    @property
    def mean_seconds(self) -> float:
        """The mean wall time of all runs; 0.0 before the first."""
        return statistics.fmean(each.result.seconds for each in self.runs) if self.runs else 0.0

    def working(self) -> list[Point]:
        """The points with scores that have not failed in any run but rounds, in the order of their first runs."""
        return [
            runs[0].trial.point
            for runs in self._by_point.values()
            if self.scores(runs[0].trial.point) and all(run.values is not None for run in runs if not run.trial.paired)
        ]

    def noise(self, goal: int = 0) -> tuple[float | None, int]:
        """(relative standard deviation of a run, its degrees of freedom), by the points that the search ran again."""
        squares, freedom = 0.0, 0
        for runs in self._by_point.values():
            scores = self.scores(runs[0].trial.point, goal)
            if len(scores) > 1:
                squares += sum((score - statistics.fmean(scores)) ** 2 for score in scores)
                freedom += len(scores) - 1
        return (math.sqrt(squares / freedom) if freedom else None), freedom

    def figure(self, goal: Goal, result: TrialResult) -> float | None:
        """The figure of a goal; None if it is missing or not a number."""
        figure = result.metrics.get(goal.name, result.seconds if goal.name == CLOCK else None)
        return float(figure) if isinstance(figure, SupportsFloat) else None

    def _diverged(self, result: TrialResult) -> str:
        """Why a goal's figure is none: it is infinite, not a number, or too large; "" if all can be compared."""
        for goal in self.goals:
            figure = result.metrics.get(goal.name)
            if isinstance(figure, SupportsFloat) and not abs((number := Number.of(figure)).value) <= MOST:
                return f"{goal.name}: {number.wrong}"
        return ""

    def _values(self, trial: Trial, result: TrialResult) -> Iterator[float]:
        for goal in self.goals:
            figure = self.figure(goal, result)
            if figure is None:
                told = ", ".join(f"{name}={value!r}" for name, value in result.metrics.items()) or "none"
                raise BadInputError(f"trial {trial.name!r} has no figure {goal.name!r} (told: {told})")
            yield figure

    def _greatest(self, goal: int) -> float:
        return max((abs(run.values[goal]) for run in self.runs if run.values), default=0.0)
