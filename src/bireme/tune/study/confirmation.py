"""Confirms the finalists: runs them and the baseline again in rounds, until it is certain which is better.

Each round runs them once, in random order, one after the other on the same slots. Only these runs count: the runs by
which a finalist was chosen look better than they are, because they were chosen ("the winner's curse").
"""

from __future__ import annotations

import copy
import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bireme.tune.space.points import Point, key_of
from bireme.tune.study.comparison import Interval, certain, expected_rounds, interval, least_rounds

if TYPE_CHECKING:  # a study can be looked at without numpy
    from bireme.tune.study.posterior import Posterior

Figures = Sequence[float]
"""One figure for each goal."""

_CHALLENGERS = 9
"""At most this many points run beside the baseline in a round: then the next one is planned."""

_CHEAP, _PART = 5, 0.1
"""What may be chosen runs on until it is certainly better than the baseline if that takes at most so many more rounds
than a claim takes at least, or this part of all runs."""

_FORECASTS = 64
"""The number of draws of a forecast."""

_APART = 1.8
"""A point is set apart when its distance is so many standard errors."""

_EVEN = 0.2
"""This part of the allowed error is divided equally among the finalists: the search may be wrong about all of them."""

_RIVAL = 0.25
"""A point runs if it contributes this part of the doubt that the first one does."""


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
        searched: the scores of the runs of a point before the rounds, for the first goal.
        noise: (standard deviation of such a run, its degrees of freedom).
        patient: whether what may be chosen runs on, at any cost, until it is certainly better than the baseline.
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
        searched: Callable[[Point], Sequence[float]] = lambda point: (),
        noise: tuple[float | None, int] = (None, 0),
        patient: bool = True,
    ) -> None:
        self.baseline, self.finalists = dict(baseline), [dict(each) for each in finalists]
        self._goals, self._score, self._seed = range(goals), score, seed
        self._searched, self._noise, self._patient = searched, noise, patient
        self._alpha = (1 - confidence) / goals
        self.shares = [1 / len(finalists)] * len(finalists)
        """What part of the allowed error each finalist has. It must not depend on the rounds."""
        self._effect = math.log1p(effect)
        self._rounds: dict[int, dict[str, Figures | None]] = {}
        self._known: dict[object, Any] = {}  # what was calculated from the rounds that are known now

    def weigh(self) -> None:
        """Give most of the error to those that are probably the best, by the search; to be called before any round."""
        best = Counter(map(int, self.posterior.draws[:, 1:].argmax(axis=1)))
        chances = [best[place] / best.total() for place in range(len(self.finalists))]
        # Rounded down, so that the sum is at most 1.
        self.shares = [math.floor(1e4 * ((1 - _EVEN) * each + _EVEN / len(chances))) / 1e4 for each in chances]

    def alpha(self, *points: Point) -> float:
        """The error that is allowed for a claim: it is of the first of these points that is a finalist."""
        places = [self.finalists.index(point) for point in map(dict, points) if point in self.finalists]
        return self._alpha * self.shares[places[0] if places else 0]

    def tell(self, number: int, point: Point, figures: Figures | None) -> None:
        """Report a run of round ``number``; None: it failed; (): it could not be measured."""
        self._rounds.setdefault(number, {})[key_of(point)] = figures
        self._known.clear()

    def told(self, number: int) -> Mapping[str, Figures | None]:
        """What is known of a round."""
        return self._rounds.get(number, {})

    def plan(self, number: int, *, fewest: bool = False) -> list[dict[str, object]]:
        """The points of a round in the order of their runs, by the rounds before it; [] if everything is decided.

        Args:
            number: the round's.
            fewest: the baseline and the leader only.
        """
        before = self._before(number)
        running = before.undecided and ([before.leader] if fewest else before.undecided)
        points = sorted([self.baseline, *running], key=key_of) if running else []
        random.Random(f"{self._seed} {number}").shuffle(points)
        return points

    def _before(self, number: int) -> Confirmation:
        """What was known before a round."""
        if self.last < number:
            return self
        earlier = copy.copy(self)
        earlier._rounds = {each: told for each, told in self._rounds.items() if each < number}
        earlier._known = {}
        return earlier

    @property
    def last(self) -> int:
        """The number of the last round with a run; 0 before the first."""
        return max(self._rounds, default=0)

    @property
    def undecided(self) -> list[dict[str, object]]:
        """The finalists that the next round runs, because further rounds may say something that matters."""
        if "undecided" not in self._known:
            self._known["undecided"] = [] if self.failed(self.baseline) else self._undecided()
        found: list[dict[str, object]] = self._known["undecided"]
        return found

    def _undecided(self) -> list[dict[str, object]]:
        working = self.working
        if len(self._goals) > 1:
            return [each for each in working if any(self._open(self.versus(each, goal=goal)) for goal in self._goals)]
        if not working:
            return []
        leader, ends = self.leading
        if ends:
            return []
        points, posterior = self._points, self.posterior
        doubts = posterior.worth(leader)
        doubts[0] = 0.0
        running = [] if leader in posterior.good else [place for place in doubts.argsort()[::-1] if doubts[place] > 0]
        running = [place for place in running[:_CHALLENGERS] if doubts[place] > _RIVAL * doubts.max()]
        return [points[place] for place in running or [leader or 1 + int(posterior.means[1:].argmax())]]

    @property
    def leading(self) -> tuple[int, bool]:
        """The place, among the baseline and the working finalists, of the one to choose, and whether that is final.

        It ends when one may be chosen: little is lost by that in the mean, and it is within the effect of the best with
        95 % probability. If that one is better than the baseline by what matters, the rounds go on until it is certain,
        where that is cheap.
        """
        posterior = self.posterior
        good = posterior.good if posterior.freedom else []
        sure = [place for place, each in enumerate(self.working, start=1) if place in good and self.certain(each)]
        if sure:
            return max(sure, key=lambda each: posterior.means[each]), True
        if 0 in good:
            return 0, True
        leader = int(max(good or range(len(self.working) + 1), key=lambda each: posterior.means[each]))
        if not good or posterior.ahead(leader, 0, self._effect) < 0.05:
            return leader, bool(good)
        ahead = posterior.draws[:, leader] - posterior.draws[:, 0]
        missing = self._missing(leader, float(ahead[ahead > self._effect].mean()))
        return leader, not self._claimed(leader, missing, 0.0)

    def _missing(self, place: int, ahead: float) -> float:
        """About how many more rounds show that a point, which is so far ahead, is better than the baseline."""
        point = self._points[place]
        spread = math.sqrt(2) * self.posterior.noise
        return max(1.0, expected_rounds(ahead, spread, self.alpha(point)) - self.versus(point).count)

    def _claimed(self, place: int, rounds: float, more: float) -> bool:
        """Whether so many rounds run for the claim of a point alone, after so many ``more`` runs for the choice."""
        runs = more + sum(map(len, self._rounds.values())) + sum(len(self._searched(each)) for each in self._points)
        cheap = least_rounds(self.alpha(self._points[place])) + _CHEAP
        return self._patient or rounds <= max(cheap, _PART * runs / 2)

    @property
    def posterior(self) -> Posterior:
        """What is likely of the baseline and the working finalists, by the first goal."""
        if "posterior" not in self._known:
            from bireme.tune.study.posterior import Posterior

            points = [self.baseline, *self.working]
            keys = [key_of(each) for each in points]
            told = [
                [self._score(0, runs[key][0]) if runs.get(key) else math.nan for key in keys]  # type: ignore[index]  # it is there
                for runs in self._rounds.values()
            ]
            rows = [row for row in told if sum(map(math.isfinite, row)) > 1]
            alone = [self._searched(each) for each in points]
            self._known["posterior"] = Posterior(alone, rows, self._noise, self._effect)
        found: Posterior = self._known["posterior"]
        return found

    def certain(self, point: Point) -> bool:
        """Whether the point is better than the baseline, by the first goal."""
        key = ("certain", key_of(point))
        if key not in self._known:
            differences = self._differences(key_of(point), key_of(self.baseline), 0)
            self._known[key] = certain(differences, self.alpha(point), self._spread)
        return bool(self._known[key])

    @property
    def working(self) -> list[dict[str, object]]:
        """The finalists of which no run has failed."""
        return [each for each in self.finalists if not self.failed(each)]

    def expected_runs(self) -> list[float]:
        """How many more runs it may take until it ends, as drawn from what is likely; in order.

        A point is set apart from the best when the error of its mean is half of its distance and the effect; and the
        best must be shown to be better than the baseline, if it is by what matters.
        """
        posterior = self.posterior
        counts, noise = posterior.counts, posterior.noise
        leader, ends = self.leading
        if ends:
            return [0.0]
        found, certain = [], any(map(self.certain, self.working))
        draws = posterior.draws
        if not self._patient and leader in posterior.good:  # what is left is the claim, as `leading` expects it
            draws = draws[draws[:, leader] - draws[:, 0] > self._effect]
        for draw in draws[:: max(1, len(draws) // _FORECASTS)]:
            best = int(draw.argmax())
            ahead = float(draw[best] - draw[0])
            apart = (_APART * noise / (draw[best] - draw + self._effect)) ** 2 - counts
            apart[best] = apart.max()
            apart = apart.clip(0.0)
            claims, choice = 0.0, float(apart.sum() + apart.max())
            if ahead > self._effect / 2 and not certain:
                claims = self._missing(best, ahead)
                claims = claims if leader in posterior.good or self._claimed(best, claims, choice) else 0.0
            found.append(max(choice, float(2 * claims + apart.sum() - 2 * apart.max())))
        return sorted(found)

    @property
    def _points(self) -> list[dict[str, object]]:
        return [self.baseline, *self.working]

    def _open(self, versus: Interval) -> bool:
        """Whether neither a difference is certain, nor that there is none that matters."""
        return versus.low <= 0 <= versus.high and (
            versus.plausible(self._effect) or versus.negated.plausible(self._effect)
        )

    @property
    def leader(self) -> dict[str, object]:
        """The finalist with the best mean difference from the baseline; the baseline if all failed."""
        return max(self.working, key=lambda each: self.versus(each).mean, default=self.baseline)

    def failed(self, point: Point) -> bool:
        """Whether any run of the point failed."""
        key = key_of(point)
        return any(figures.get(key, ()) is None for figures in self._rounds.values())

    def versus(self, point: Point, other: Point | None = None, goal: int = 0) -> Interval:
        """The point's score minus the other's (the baseline's), by the rounds in which both have figures."""
        one, two = key_of(point), key_of(self.baseline if other is None else other)
        if (one, two, goal) not in self._known:
            alpha = self.alpha(point, other or {})
            self._known[one, two, goal] = interval(self._differences(one, two, goal), alpha, self._spread)
        found: Interval = self._known[one, two, goal]
        return found

    @property
    def _spread(self) -> float | None:
        """Of differences, by the search."""
        return math.sqrt(2) * self._noise[0] if self._noise[0] else None

    def _differences(self, one: str, two: str, goal: int) -> list[float]:
        differences = []
        for number in sorted(self._rounds):
            mine, theirs = self._rounds[number].get(one), self._rounds[number].get(two)
            if mine and theirs:
                differences.append(self._score(goal, mine[goal]) - self._score(goal, theirs[goal]))
        return differences


class PairedRounds:
    """The rounds that are open, and which of their runs are pending. What the runs show is for the confirmation.

    Args:
        confirmation: it is told of the runs. Of what it knows when a round begins, nothing is run again.
        plan: number of a round -> its points in the order of their runs, called when the round begins. []: it is not
            run, as things are now.
        side_by_side: how many rounds may be open at the same time.
        closed: the last round of earlier runs of the study. Nothing more of these rounds is run.
    """

    def __init__(
        self,
        confirmation: Confirmation,
        plan: Callable[[int], Sequence[Point]],
        *,
        side_by_side: int = 1,
        closed: int = 0,
    ) -> None:
        self.confirmation, self._plan, self._side_by_side = confirmation, plan, side_by_side
        self._open: dict[tuple[int, str], Point] = {}  # neither ended nor given up, in the order of their runs
        self._pending: set[tuple[int, str]] = set()
        self.last = closed

    def next(self) -> tuple[int, Point] | None:
        """The next run, (round, point), which is not pending yet; None if there is none now."""
        if (waiting := next((run for run in self._open if run not in self._pending), None)) is not None:
            return waiting[0], self._open[waiting]
        if len({number for number, _ in self._open}) >= self._side_by_side:
            return None
        number, planned = self.last + 1, self._plan(self.last + 1)
        while planned and not (missing := self._missing(number, planned)):
            number, planned = number + 1, self._plan(number + 1)
        return (number, missing[0]) if planned else None

    def _missing(self, number: int, planned: Sequence[Point]) -> list[Point]:
        told = self.confirmation.told(number)
        return [each for each in planned if key_of(each) not in told]

    def begin(self, number: int, point: Point) -> None:
        """A run is pending. The first one of a round opens it."""
        if number > self.last:
            self.last = number
            self._open.update({(number, key_of(each)): each for each in self._missing(number, self._plan(number))})
        self._pending.add((number, key_of(point)))

    def tell(self, number: int, point: Point, figures: Figures | None) -> None:
        """Report a run; None: it failed; (): it could not be measured, and is not asked for again."""
        self._pending.discard((number, key_of(point)))
        self._open.pop((number, key_of(point)), None)
        self.confirmation.tell(number, point, figures)

    def drop(self, number: int, point: Point) -> None:
        """A pending run was not measured: it is the next one again."""
        self._pending.discard((number, key_of(point)))
