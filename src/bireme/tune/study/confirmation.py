"""Paired rounds: runs the finalists and the baseline again, until it is certain which is better.

Each round runs them once, in random order, one after the other on the same slots. Only these runs count: the runs by
which a finalist was chosen look better than they are, because they were chosen ("the winner's curse").
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Mapping, Sequence

from bireme.tune.space.points import Point, key_of
from bireme.tune.study.comparison import Interval, interval

Figures = Sequence[float]
"""One figure for each goal."""


class Confirmation:
    """The rounds of some finalists against a baseline; what is decided depends on the told figures alone.

    Args:
        baseline: what the finalists are compared with.
        finalists: other points; at least one.
        goals: the number of goals.
        score: (number of the goal, its figure) -> a score: more is better, and a difference of 0.01 is one percent.
        confidence: of all comparisons with the baseline together, such as 0.95.
        effect: the smallest relative difference that matters.
        seed: of the order of runs in a round.
    """

    def __init__(
        self,
        baseline: Point,
        finalists: Sequence[Point],
        goals: int,
        score: Callable[[int, float], float],
        *,
        confidence: float = 0.95,
        effect: float = 0.02,
        seed: int = 0,
    ) -> None:
        self.baseline, self.finalists = dict(baseline), [dict(each) for each in finalists]
        self._goals, self._score, self._seed = range(goals), score, seed
        self._alpha = (1 - confidence) / (len(finalists) * goals)
        self._effect = math.log1p(effect)
        self._rounds: dict[int, dict[str, Figures | None]] = {}
        self._intervals: dict[tuple[str, str, int], Interval] = {}  # of the rounds that are known now

    def tell(self, number: int, point: Point, figures: Figures | None) -> None:
        """Report a run of round ``number``; None: it failed; (): it could not be measured."""
        self._rounds.setdefault(number, {})[key_of(point)] = figures
        self._intervals.clear()

    def told(self, number: int) -> Mapping[str, Figures | None]:
        """What is known of a round."""
        return self._rounds.get(number, {})

    def plan(self, number: int) -> list[dict[str, object]]:
        """The points of a round in the order of their runs, by the rounds before it; [] if everything is decided."""
        running = self._before(number).undecided
        points = sorted([self.baseline, *running], key=key_of) if running else []
        random.Random(f"{self._seed} {number}").shuffle(points)
        return points

    def _before(self, number: int) -> Confirmation:
        """What was known before a round."""
        if self.last < number:
            return self
        earlier = copy.copy(self)
        earlier._rounds = {each: told for each, told in self._rounds.items() if each < number}
        earlier._intervals = {}
        return earlier

    @property
    def last(self) -> int:
        """The number of the last round with a run; 0 before the first."""
        return max(self._rounds, default=0)

    @property
    def undecided(self) -> list[dict[str, object]]:
        """The finalists that further rounds may say something about that matters."""
        if self.failed(self.baseline):
            return []
        working = [each for each in self.finalists if not self.failed(each)]
        if len(self._goals) > 1:
            return [each for each in working if any(self._open(self.versus(each, goal=goal)) for goal in self._goals)]
        against = [self.versus(each) for each in working]
        hopeful = [each for each, one in zip(working, against, strict=True) if one.plausible(self._effect, against)]
        if not hopeful:
            return []
        leader = max(hopeful, key=lambda each: self.versus(each).mean)
        others = [each for each in hopeful if each != leader]
        against = [self.versus(each, leader) for each in others]
        rivals = [each for each, one in zip(others, against, strict=True) if one.plausible(self._effect, against)]
        return [leader, *rivals] if rivals or self.versus(leader).low <= 0 else []

    @property
    def more(self) -> int | None:
        """About how many more rounds decide everything if the figures go on as they are; None: too early to say."""
        undecided = self.undecided
        if not undecided:
            return 0
        if len(self._goals) > 1:
            against = [self.versus(each, goal=goal) for each in undecided for goal in self._goals]
            needed = max(self._rounds_until_closed(each) for each in against if self._open(each))
        else:
            leader, *rivals = undecided
            against = [self.versus(each, leader) for each in rivals]
            needed = max((each.rounds_until_implausible(self._effect) for each in against), default=0.0)
            base = self.versus(leader)
            if base.low <= 0:
                needed = max(needed, min(base.rounds_until_certain, base.rounds_until_implausible(self._effect)))
        return max(1, math.ceil(needed - self.last)) if math.isfinite(needed) else None

    def _rounds_until_closed(self, versus: Interval) -> float:
        """About after how many rounds a comparison is no longer `_open`."""
        either = [each.rounds_until_implausible(self._effect) for each in (versus, versus.negated)]
        return min(versus.rounds_until_certain, max(either))

    def _open(self, versus: Interval) -> bool:
        """Whether neither a difference is certain, nor that there is none that matters."""
        return versus.low <= 0 <= versus.high and (
            versus.plausible(self._effect) or versus.negated.plausible(self._effect)
        )

    @property
    def leader(self) -> dict[str, object]:
        """The finalist with the best mean difference from the baseline; the baseline if all failed."""
        working = [each for each in self.finalists if not self.failed(each)]
        return max(working, key=lambda each: self.versus(each).mean, default=self.baseline)

    def failed(self, point: Point) -> bool:
        """Whether any run of the point failed."""
        key = key_of(point)
        return any(figures.get(key, ()) is None for figures in self._rounds.values())

    def versus(self, point: Point, other: Point | None = None, goal: int = 0) -> Interval:
        """The point's score minus the other's (the baseline's), by the rounds in which both have figures."""
        one, two = key_of(point), key_of(self.baseline if other is None else other)
        if (one, two, goal) not in self._intervals:
            self._intervals[one, two, goal] = self._interval(one, two, goal)
        return self._intervals[one, two, goal]

    def _interval(self, one: str, two: str, goal: int) -> Interval:
        differences = []
        for number in sorted(self._rounds):
            mine, theirs = self._rounds[number].get(one), self._rounds[number].get(two)
            if mine and theirs:
                differences.append(self._score(goal, mine[goal]) - self._score(goal, theirs[goal]))
        return interval(differences, self._alpha)
