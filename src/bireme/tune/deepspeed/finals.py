"""The finals of a study: the best configurations run again in paired rounds, until the clock has confirmed one.

Which configurations these are is decided by both figures of the search, DeepSpeed's and the clock's: either may be far
off in a single run. So the first round takes as many of them as have room in the share of the time that rounds may
take; three rounds of two configurations are always run. Where the share does not suffice for more, the worst of each
round leave first.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

from bireme.tune.deepspeed.files import REPEATED
from bireme.tune.deepspeed.rounds import CompletedTrial, Trial
from bireme.tune.space.points import Point, key_of
from bireme.tune.study.comparison import Interval
from bireme.tune.study.confirmation import Confirmation, Figures
from bireme.tune.study.paired_rounds import PairedRounds
from bireme.value import Value

FINALISTS = 4
"""No more configurations are repeated."""

_AHEAD = 0.25
"""Figures of single runs of one configuration differ by up to this part. What is worse by more does not win."""

_ROUNDS = 3
"""Rounds that are always run where the difference is not clear: fewer say nothing about noise."""

_LONGER = 0.2
"""A repeated run is longer than the first one by about this part, as it measures more steps."""


class Care(Value):
    """How sure the answer must be.

    Attributes:
        confidence: of all comparisons together.
        effect: the smallest relative difference that matters.
        share: of the time that the search took, which the rounds may take.
        side_by_side: rounds that may run at the same time.
        seconds: of the whole study, search included, after which no round begins; None: `share` alone decides.
    """

    confidence: float = 0.95
    effect: float = 0.02
    share: float = 0.5
    side_by_side: int = 1
    seconds: float | None = None

    def runs(self, trials: int) -> int:
        """How many runs the rounds may take at most after a search of this many trials of equal length."""
        return max(2 * _ROUNDS, int(self.share * trials / (1 + _LONGER)))


Rate = Callable[[CompletedTrial], "float | None"]
"""A figure of which more is better; None if the trial has none."""


class Finals(PairedRounds):
    """The rounds among the best configurations of a search that has ended.

    Args:
        finalists: at least two, by `choose`.
        searched: seconds that the search took.
        clock: what the rounds compare.
        metric: what DeepSpeed says.
        repeated: the ended runs of the rounds by name, as they are added to it; those of earlier runs of the study are.
    """

    def __init__(
        self,
        finalists: Sequence[CompletedTrial],
        searched: float,
        clock: Rate,
        metric: Rate,
        care: Care,
        repeated: Mapping[str, CompletedTrial],
    ) -> None:
        self.finalists, self.care, self._clock, self._metric = finalists, care, clock, metric
        self._budget, self._least = care.share * searched, 2
        if care.seconds is not None and care.seconds * care.side_by_side - searched < self._budget:
            self._budget, self._least = care.seconds * care.side_by_side - searched, 0
        self._repeated = repeated
        self._by_key = {key_of(done.trial.point): done for done in finalists}
        first, *others = (done.trial.point for done in finalists)
        rounds = Confirmation(
            first, others, 1, lambda _, rate: math.log(rate), confidence=care.confidence, effect=care.effect
        )
        super().__init__(rounds, self._points, side_by_side=care.side_by_side)
        for number in range(1, max((done.trial.round for done in repeated.values()), default=0) + 1):
            self._take_over(number)

    # -- what to run ---------------------------------------------------------------------------------

    def trial(self, number: int, point: Point) -> Trial:
        """The run of a finalist in a round."""
        done = self._done(point)
        name, block = f"{done.trial.name}{REPEATED}{number}", f"round {number}"
        return done.trial.replace(name=name, phase="confirm", round=number, block=block, seconds=self._cost(done))

    def figures(self, done: CompletedTrial) -> Figures | None:
        """What the rounds compare; None: it failed; (): it has none."""
        rate = self._clock(done)
        return None if done.result.cause not in ("ok", "no metric") else () if rate is None else (rate,)

    def _done(self, point: Point) -> CompletedTrial:
        """The finalist."""
        return self._by_key[key_of(point)]

    def _points(self, number: int) -> list[Point]:
        """The points of a round."""
        return [done.trial.point for done in self._taking_part(number)]

    def _take_over(self, number: int) -> None:
        """Open a round that an earlier run of the study has begun, with what has run of it.

        That may be nothing: rounds run side by side, and a later one may have had results first.
        """
        if points := self._points(number):
            for point in points:
                if (done := self._repeated.get(self.trial(number, point).name)) is not None:
                    self.confirmation.tell(number, point, self.figures(done))
            self._open_round(number, points)

    def _told(self) -> list[CompletedTrial]:
        """The ended runs that count."""
        return [
            done
            for done in self._repeated.values()
            if key_of(done.trial.point) in self.confirmation.told(done.trial.round)
        ]

    def _taking_part(self, number: int) -> list[CompletedTrial]:
        """Who runs in a round, in the order of the runs; [] if everything is decided, or the time is spent."""
        planned = [self._done(point) for point in self.confirmation.plan(number)]
        if self.planned:  # whoever has left does not come back
            planned = [done for done in planned if done.trial.point in self.planned]
        hopeful = [done for done in self._ranked() if done in planned and not self._clearly_worse(done)]
        base = self.finalists[0]
        rivals = [done for done in hopeful if done != base]
        if base not in planned or not rivals:
            return []
        running = sum(self._cost(self._done(point)) for _, point in self.open)
        left = self._budget - self._spent - running
        cost = statistics.fmean(self._cost(done) for done in (base, *rivals))
        places = max(self._least if number <= _ROUNDS else 0, int(left / cost))
        if places < 2:
            return []
        kept = [base, *rivals[: places - 1]]
        return [done for done in planned if done in kept]

    @property
    def _spent(self) -> float:
        return sum(done.result.seconds for done in self._told())

    def _cost(self, done: CompletedTrial) -> float:
        return done.result.seconds * (1 + _LONGER)

    def _ranked(self) -> list[CompletedTrial]:
        """The finalists, the best by the rounds first."""
        return sorted(self.finalists, key=lambda done: -self.confirmation.versus(done.trial.point).mean)

    def _clearly_worse(self, done: CompletedTrial) -> bool:
        """Whether the rounds show it worse than the best by more than figures of one configuration differ."""
        leader = self._leader
        if leader is None or done == leader:
            return False
        return self.confirmation.versus(done.trial.point, leader.trial.point).mean < math.log(1 - _AHEAD)

    # -- the answer -----------------------------------------------------------------------------------

    @property
    def left(self) -> int:
        """How many more runs may start at most, but for those that are always run."""
        cost = min(self._cost(done) for done in self.finalists)
        within = int((self._budget - self._spent) / cost) if cost else 0
        places = max(self._least, min(len(self.finalists), within))  # of the next round
        runs, last = len(self.open), self.last
        if not runs and (planned := self._taking_part(last + 1)):
            runs, last = len(planned), last + 1
        return max(runs, within, places + self._least * (_ROUNDS - last - 1))

    @property
    def _leader(self) -> CompletedTrial | None:
        """The best by the rounds; None if all failed."""
        working = [done for done in self._ranked() if not self.confirmation.failed(done.trial.point)]
        most = min(_ROUNDS, max(map(self.count, working), default=0))
        return next((done for done in working if self.count(done) >= most), None)

    def ratio(self, done: CompletedTrial, other: CompletedTrial) -> Interval:
        """How many times as fast as another one it is."""
        versus = self.confirmation.versus(done.trial.point, other.trial.point)
        high = math.exp(versus.high) if versus.high < 100 else math.inf
        return versus.replace(mean=math.exp(versus.mean), low=math.exp(versus.low), high=high)

    @property
    def winner(self) -> CompletedTrial | None:
        """The configuration that the rounds confirm, or the one of those as good that DeepSpeed's figure prefers.

        None: no round has ended.
        """
        leader = self._leader
        if leader is None or not self.count(leader):
            return None
        return max((leader, *self._as_good_as(leader)), key=self._preference)

    def _preference(self, done: CompletedTrial) -> float:
        """DeepSpeed's figure, the middle one of all its runs."""
        runs = [self._metric(each) for each in self._told() if each.trial.point == done.trial.point]
        return statistics.median([self._metric(done) or 0.0, *(value for value in runs if value is not None)])

    @property
    def ties(self) -> list[CompletedTrial]:
        """Those that cannot be told apart from the winner."""
        winner, leader = self.winner, self._leader
        if winner is None or leader is None:
            return []
        return [done for done in (leader, *self._as_good_as(leader)) if done != winner]

    @property
    def left_out(self) -> list[CompletedTrial]:
        """Those that left before there were enough rounds, as they were worse until then."""
        winner = self.winner
        return [] if winner is None else [done for done in self.finalists if self.count(done) < self._enough(winner)]

    @property
    def certain(self) -> bool:
        """Whether the winner is better than every other that was not left out, at the confidence asked for."""
        winner, rounds = self.winner, self.confirmation
        if winner is None:
            return False
        others = [done for done in self.finalists if done != winner and done not in self.left_out]
        return bool(others) and all(
            rounds.failed(done.trial.point) or rounds.versus(winner.trial.point, done.trial.point).low > 0
            for done in others
        )

    def _enough(self, done: CompletedTrial) -> int:
        return min(_ROUNDS, self.count(done))

    def _as_good_as(self, leader: CompletedTrial) -> list[CompletedTrial]:
        """The others that the rounds leave as good as the leader, but for a difference that does not matter."""
        found = []
        for done in self._ranked():
            if done == leader or self.confirmation.failed(done.trial.point) or self.count(done) < self._enough(leader):
                continue
            versus = self.confirmation.versus(done.trial.point, leader.trial.point)
            if versus.high >= 0 and versus.plausible(-math.log1p(self.care.effect)):
                found.append(done)
        return found

    def count(self, done: CompletedTrial) -> int:
        """In how many rounds it was measured."""
        key = key_of(done.trial.point)
        return sum(bool(self.confirmation.told(number).get(key)) for number in range(1, self.confirmation.last + 1))


def why_none(completed: Sequence[CompletedTrial], finalists: Sequence[CompletedTrial]) -> str:
    """Why nothing is repeated; "" if there is nothing to compare."""
    if sum(done.value is not None for done in completed) < 2:
        return ""
    return "no other came near" if finalists else "its log shows no steps, which the clock could confirm"


def choose(completed: Sequence[CompletedTrial], clock: Rate, metric: Rate) -> list[CompletedTrial]:
    """Those that may be the best, the one on which both figures agree the most first; fewer than two: none is near."""
    rates = [(done, clock(done), metric(done)) for done in completed]
    known = [(done, fast, said) for done, fast, said in rates if fast and said]
    preferred = max((each for each in rates if each[2]), key=lambda each: each[2] or 0.0, default=None)
    if preferred is None or not preferred[1]:
        return []
    fastest, most = max(fast for _, fast, _ in known), max(said for _, _, said in known)
    parts = {done.trial.name: (fast / fastest, said / most) for done, fast, said in known}

    def agreement(done: CompletedTrial) -> float:
        fast, said = parts[done.trial.name]
        return math.sqrt(fast * said)

    near = [done for done, _, _ in known if max(parts[done.trial.name]) >= 1 - _AHEAD]
    near.sort(key=lambda done: (max(parts[done.trial.name]) < 1, -agreement(done)))  # the best by either, then by both
    return sorted(near[:FINALISTS], key=agreement, reverse=True)
