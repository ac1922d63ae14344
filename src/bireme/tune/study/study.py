"""A study: decides which trial comes next, and when and why the study ends. Starts no processes.

It tries what its sampler proposes, runs again what may be the best (screening), and then the finalists in rounds.
The next trial depends on the results alone, so a study that was interrupted goes on as if it had not been.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias

from bireme.errors import BadInputError
from bireme.result.report import duration
from bireme.tune.samplers.sampler import Direction
from bireme.tune.space.points import Parameter, Point, Points, Space, key_of
from bireme.tune.space.value_lists import read
from bireme.tune.study import answer as answering
from bireme.tune.study import screening
from bireme.tune.study.budget import CONFIRM, Budget, share
from bireme.tune.study.comparison import expected_rounds, least_rounds
from bireme.tune.study.confirmation import Confirmation, PairedRounds
from bireme.tune.study.finalists import MOST, choose, promising
from bireme.tune.study.observations import Measurements
from bireme.tune.study.pruner import halving, reason_to_prune
from bireme.tune.study.screening import LEAST_RUNS
from bireme.tune.study.search import DefaultFirst, Proposal, Sampler
from bireme.tune.study.trial import (
    NOT_THE_CONFIGURATION,
    Answer,
    Compared,
    FinishedTrial,
    Forecast,
    Goal,
    Objective,
    Trial,
    TrialResult,
)
from bireme.value import Value

__all__ = ["Answer", "Compared", "FinishedTrial", "Forecast", "Goal", "Objective", "Study", "Trial", "TrialResult"]

_NEGLIGIBLE = 0.02
"""The search ends when it expects no improvement by this part of the effect."""

_FRONT_ROUNDS = 1
"""There must be room for so many rounds of the points of a front: what they do not decide stays on it."""

_MORE = 3
"""Rounds that a claim of one of several finalists takes beside the least number, about."""

_FAILURES = 20
"""If this many points have failed and none has worked, the reason has nothing to do with the points."""


class Stop(Value):
    """Nothing is left to start. ``reason``: why."""

    reason: str


Action: TypeAlias = "Trial | Stop | Literal['wait']"
"""What is to be done next: a trial, to wait for one that is pending, or to stop."""

Names: TypeAlias = Callable[[Proposal, Collection[str]], str]
"""(trial that is to be named, names that are taken) -> a name that is not taken."""


def numbered(proposal: Proposal, taken: Collection[str]) -> str:
    """``trial-1``, ``trial-2`` and so on."""
    serial = len(taken) + 1
    while f"trial-{serial}" in taken:
        serial += 1
    return f"trial-{serial}"


class Study:
    """Finds the best point of a space, and says how sure that is.

    From Python::

        study = Study({"batch": [8, 16, 32]}, maximize="samples_per_second")
        while trial := study.ask():
            try:
                study.tell(trial.name, samples_per_second=measure(**trial.point))
            except MemoryError:
                study.tell(trial.name, failed="out of memory")
        print(study.answer.text)

    Args:
        space: the points; or the choices of each parameter, the default first, or as the command line has them
            (``"1..64"``).
        goals: one or two goals; or use ``maximize`` and ``minimize``.
        maximize: names of metrics.
        minimize: names of metrics; ``time`` is the wall time of a trial.
        search: which sampler, see `samplers.make`; or give a ``sampler``.
        seed: any number; the same seed and results give the same trials.
        confidence: of the claim that the best is better than the baseline.
        effect: the smallest relative difference that matters.
        trials: the budget in trials; None: no limit.
        seconds: the budget in seconds of wall time; None: no limit.
        clock: seconds, from any start.
        side_by_side: how many trials run at the same time.
        confirm: how much of the whole time the best points may be run again: ``50%`` (the default without a budget),
            ``off``, or ``sure``: until the answer is, or the budget is spent (the default with a budget).
        pruner: when a running trial is to be stopped: ``certain``: it cannot win any more; ``halving`` or
            ``halving:FACTOR``: after 1, FACTOR (4), FACTOR², … figures of one goal, the best part goes on; ``off``.
        sampler: what is tried before the best is run again.
        names: of trials.
        has_default: whether points are compared with a default; else with the one that the search finds the best.
        near: what is behind the best by more than this part is not run again; None: the noise decides.
        besides: further points that are finalists, by the runs of the study.
    """

    def __init__(
        self,
        space: Points | Mapping[str, str | Sequence[object]],
        goals: Sequence[Goal] = (),
        *,
        maximize: str | Sequence[str] = (),
        minimize: str | Sequence[str] = (),
        search: str = "model_based",
        seed: int = 0,
        confidence: float = 0.95,
        effect: float = 0.02,
        trials: int | None = None,
        seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        side_by_side: int = 1,
        confirm: str | None = None,
        pruner: str = "certain",
        sampler: Sampler | None = None,
        names: Names = numbered,
        has_default: bool = True,
        near: float | None = None,
        besides: Callable[[Measurements], Sequence[Point]] = lambda _: (),
    ) -> None:
        self._space: Points = _space(space) if isinstance(space, Mapping) else space
        self._goals: tuple[Goal, ...] = (*goals, *_named(maximize, "maximize"), *_named(minimize, "minimize"))
        if not 1 <= len(self._goals) <= 2:
            raise BadInputError(f"{len(self._goals)} goals", hint="name one or two figures to maximize or minimize")
        self._confidence, self._effect, self._seed, self._side_by_side = confidence, effect, seed, side_by_side
        self._budget = Budget(trials, seconds, clock, side_by_side, least_rounds(1 - confidence))
        self._confirm = confirm or ("sure" if self._budget.limited else CONFIRM)
        self._share = share(self._confirm)
        self._pruner = pruner
        self._halving = halving(pruner, self._goals)
        self._measured = Measurements(self._goals)
        options = {"repeats": True, "negligible": _NEGLIGIBLE * effect}
        self._sampler: Sampler = sampler or DefaultFirst(
            search, self._space, seed, options, goals=len(self._goals), trials=trials
        )
        self._name, self._has_default, self._near, self._besides = names, has_default, near, besides
        self._default: dict[str, object] = dict(self._space.default)
        self._pending: dict[str, Trial] = {}
        self._asked: dict[str, float] = {}
        self._names: set[str] = set()
        self._clock = clock
        self._rounds: PairedRounds | None = None
        self._earlier: list[tuple[int, Point, Sequence[float] | None]] = []
        self._recorded: Mapping[str, Any] = {}
        self._forecast: tuple[int, Forecast | None] = -1, None

    # -- ask and tell ----------------------------------------------------------------------------------

    @property
    def next_action(self) -> Action:
        """What is to be done next. Reading it changes nothing."""
        return self._decide()[0]

    def ask(self) -> Trial | None:
        """The next trial, which is then pending; None if there is nothing to start now, or ever (see ``over``)."""
        action, rounds = self._decide()
        if not isinstance(action, Trial):
            return None
        if action.paired and rounds is not None:
            self._rounds = rounds
            rounds.begin(action.round, action.point)
        return self._begin(action)

    @property
    def over(self) -> str:
        """Why nothing is left to start; "" while something is left or pending."""
        action = self.next_action
        return action.reason if isinstance(action, Stop) else ""

    def propose(self, point: Point) -> Trial:
        """A trial of a point of your own choice, which is then pending, as part of the search.

        Raises:
            BadInputError: it is no point of the space, or the search is over.
        """
        if point not in self._space:
            raise BadInputError(f"no point of the space: {dict(point)}")
        if self._rounds is not None or self._budget.spent(self._begun):
            raise BadInputError("the search is over", hint="ask for the trials of the finalists")
        return self._begin(self._make(Proposal(point=point)))

    def _begin(self, trial: Trial) -> Trial:
        self._names.add(trial.name)
        self._asked[trial.name] = self._clock()
        self._pending[trial.name] = trial
        return trial

    def tell(self, name: str, result: TrialResult | None = None, *, failed: str = "", **metrics: float) -> None:
        """Report the result of a pending trial.

        Args:
            name: the trial's.
            result: how it ended; or
            failed: why it measured nothing: ``out of memory`` or any other words; ``pruned``: it was stopped early; or
            metrics: what it measured, by name; of a pruned trial, until then.

        Raises:
            BadInputError: no such trial is pending, or the metric of a goal is missing.
        """
        if name not in self._pending:
            raise BadInputError(f"no trial {name!r} is pending")
        result = result or self.result_of(name, failed, metrics)
        if not result.counts:
            self.drop(name)
            return
        trial = self._pending[name]
        values = self._measured.add(trial, result).values
        del self._pending[name], self._asked[name]
        if trial.paired and self._rounds is not None:
            self._rounds.tell(trial.round, trial.point, values)

    def result_of(self, name: str, failed: str, metrics: Mapping[str, float]) -> TrialResult:
        """The result of a pending trial that ends now.

        Raises:
            BadInputError: no such trial is pending.
        """
        if name not in self._pending:
            raise BadInputError(f"no trial {name!r} is pending")
        cause = "ok" if not failed else failed if failed in ("out of memory", "pruned") else "failed"
        took = self._clock() - self._asked[name]
        return TrialResult(cause=cause, reason=failed, seconds=took, metrics=metrics)  # type: ignore[arg-type]  # one of them

    def add_trial(self, point: Point, *, failed: str = "", **metrics: float) -> None:
        """Take over a result that was measured before: it guides the search, and takes nothing of the budget.

        Args:
            point: what was measured.
            failed: why it measured nothing; or
            metrics: what it measured, by name.

        Raises:
            BadInputError: it is no point of the space, or the metric of a goal is missing.
        """
        if point not in self._space:
            raise BadInputError(f"no point of the space: {dict(point)}")
        name = f"known-{len(self._measured.in_phase('known')) + 1}"
        result = TrialResult(cause="failed" if failed else "ok", reason=failed, metrics=metrics)
        self.restore(Trial(name=name, point=dict(point), phase="known"), result)

    def restore(
        self,
        trial: Trial,
        result: TrialResult,
        elapsed: float = 0.0,
        *,
        earlier: bool = False,
        passed: Mapping[str, float] | None = None,
    ) -> None:
        """Take over a trial of an earlier run of this study. To be called in the order of their ends, before asking.

        A round that an interruption has cut is not completed: its runs would be hours apart, on other slots.

        Args:
            trial: the trial.
            result: its result.
            elapsed: seconds that the study had taken at its end; 0.0: unknown.
            earlier: whether it counts only until the same point has run again.
            passed: what `steps` said of it.
        """
        if result.cause in NOT_THE_CONFIGURATION:
            return
        values = self._measured.add(trial, result, earlier=earlier or trial.phase == "known").values
        if trial.phase == "known":
            return
        self._names.add(trial.name)
        if self._halving and passed:
            self._halving.passed[trial.name] = {int(step): figure for step, figure in passed.items()}
        self._budget.earlier = elapsed or self._budget.earlier + result.seconds / self._side_by_side
        if trial.paired:
            self._earlier.append((trial.round, trial.point, values))

    @property
    def finalists(self) -> dict[str, object]:
        """The record of what the rounds compare, the baseline first; {} before they begin.

        The error is divided among all of them, so a study that goes on, and who reads it, must know also those that
        have not run. ``shares``: the part of the error that each has. ``of``: what they were chosen of.
        """
        if self._rounds is None:
            return {}
        compared = self._rounds.confirmation
        finalists = [compared.baseline, *compared.finalists]
        return {"finalists": finalists, "shares": compared.shares, "of": self._choice}

    @property
    def _choice(self) -> list[object]:
        """What finalists are chosen of: with other results, or another budget, some may join."""
        return [len(self._measured.searched), self._budget.trials, self._budget.seconds, self._confirm]

    def restore_finalists(self, record: Mapping[str, Any]) -> None:
        """Compare what an earlier run of this study has compared; ``record``: its `finalists`, {} if unknown."""
        self._recorded = record

    def drop(self, name: str) -> None:
        """A pending trial was not measured: it may be proposed again."""
        trial = self._pending.pop(name)
        self._names.discard(name)
        if self._halving:
            self._halving.passed.pop(name, None)
        if trial.paired and self._rounds is not None:
            self._rounds.drop(trial.round, trial.point)

    def give_up(self, name: str) -> None:
        """A pending trial cannot be measured, for no reason of its own: it is not proposed again."""
        trial = self._pending.pop(name)
        self._measured.add(trial, TrialResult(cause="infrastructure"))
        if trial.paired and self._rounds is not None:
            self._rounds.tell(trial.round, trial.point, ())

    def reason_to_prune(
        self, name: str, seconds: float | None = None, series: Sequence[float] = (), warm_up: int = 0
    ) -> str:
        """Why a running trial is to be stopped, by the pruner; "" if it is not. A trial that is stopped is still told.

        Args:
            name: the trial's.
            seconds: it has run for; None: since it was asked for.
            series: all that it has measured for the first goal until now.
            warm_up: how many figures at the beginning of the series are of its warm-up.
        """
        trial, best = self._pending[name], self._sampler.best(self._measured)
        if self._halving and not trial.paired:
            self._halving.note(name, series)
        if trial.phase != "search" or self._pruner == "off" or len(self._goals) > 1 or best is None:
            return ""
        if self._halving:
            return self._halving.reason(name)
        seconds = self._clock() - self._asked[name] if seconds is None else seconds
        return reason_to_prune(self._measured, best, seconds, series[warm_up:])

    def steps(self, name: str) -> Mapping[str, object]:
        """What the journal keeps of a trial for the pruner: its figures at the steps where trials are compared."""
        passed = self._halving.passed.get(name, {}) if self._halving else {}
        return {"passed": {str(step): figure for step, figure in passed.items()}} if passed else {}

    # -- what is next ----------------------------------------------------------------------------------

    def _decide(self) -> tuple[Action, PairedRounds | None]:
        """The next action, and the rounds if it is a run of theirs."""
        if spent := self._budget.spent(self._begun):
            return ("wait" if self._pending else Stop(spent)), None
        if not self._pending and self._measured.failures >= _FAILURES and not self._measured.working():
            return Stop(f"nothing works: each of the first {self._measured.failures} points failed"), None
        if self._rounds is None:
            if (proposal := self._next_search() or self._next_screen()) is not None:
                return self._make(proposal), None
            if any(not each.paired for each in self._pending.values()):
                return "wait", None
        rounds = self._rounds or self._first_rounds()
        run = None if rounds is None else rounds.next()
        if run is not None:
            number, point = run
            return self._make(Proposal(point=point, phase="confirm", round=number, block=f"round-{number}")), rounds
        return ("wait" if self._pending else Stop(self._reason(rounds))), None

    def _make(self, proposal: Proposal) -> Trial:
        return Trial(name=self._name(proposal, self._names), **{**proposal.as_dict(), "point": dict(proposal.point)})

    def _next_search(self) -> Proposal | None:
        """What the sampler proposes, unless the budget is for the rounds, or points are run again already."""
        if (self._side_by_side == 1 and self._pending) or self._share_spent or self._measured.in_phase("screen"):
            return None
        return self._sampler.propose(self._measured, list(self._pending.values()))

    def _next_screen(self) -> Proposal | None:
        baseline = self._baseline
        unsure = len(self._goals) == 1 and self._share != 0 and not self._share_spent
        searching = any(each.phase != "screen" for each in self._pending.values())
        if baseline is None or not unsure or searching or len(self._pending) >= self._side_by_side:
            return None
        running = [key_of(each.point) for each in self._pending.values()]
        point = screening.next_point(self._measured, baseline, self._effect, running, near=self._near)
        return None if point is None else Proposal(point=point, phase="screen")

    def _room(self, points: Sequence[Point]) -> int:
        """How many of these points, from the first on, can be finalists; at least one."""
        lasts = list(map(self._measured.seconds, points))
        baseline = self._measured.seconds(self._baseline or self._default)
        allowed = (self._seconds_allowed - self._seconds_used) / self._side_by_side
        least = _FRONT_ROUNDS if len(self._goals) > 1 else None
        room = self._budget.finalists(self._begun, baseline, lasts, allowed, least)
        return MOST if room is None else min(MOST, room)

    def _first_rounds(self, *, join: bool = True) -> PairedRounds | None:
        """The rounds before they begin, with others than in earlier ones (``join``); None: nothing is to compare."""
        baseline = self._baseline
        if baseline is None or (self._share == 0 and not self._earlier):
            return None
        earlier = [*self._recorded.get("finalists", ()), *(point for _, point, _ in self._earlier)]
        finalists = {key_of(point): point for point in earlier if point != baseline}
        if not self._recorded or (join and self._recorded["of"] != self._choice):
            finalists.update((key_of(point), point) for point in self._choose(baseline))
        if not finalists:
            return None
        # Where any point may win against any other, each pair has its part of the error.
        pairs = 1.0 if self._has_default else (len(finalists) + 1) / 2
        confirmation = Confirmation(
            baseline,
            list(finalists.values()),
            len(self._goals),
            self._measured.score,
            confidence=1 - (1 - self._confidence) / pairs,
            effect=self._effect,
            seed=self._seed,
            searched=partial(self._measured.scores, earlier=False),
            noise=self._measured.noise(),
            patient=self._share is not None or self._budget.limited,
        )
        if (shares := self._recorded.get("shares")) is not None:
            # Those of a finalist never grow: what they have allowed to claim was for this part of the error.
            known = dict(zip(map(key_of, self._recorded["finalists"][1:]), shares, strict=False))
            part = min(1.0, len(known) / len(finalists))
            confirmation.shares = [part * known[key] if key in known else 1 / len(finalists) for key in finalists]
        elif not self._recorded and self._has_default and len(self._goals) == 1:
            confirmation.weigh()
        for number, point, figures in self._earlier:
            confirmation.tell(number, point, figures)
        closed = max((number for number, _, _ in self._earlier), default=0)
        plan = partial(self._plan, confirmation)
        return PairedRounds(confirmation, plan, side_by_side=self._side_by_side, closed=closed)

    def _choose(self, baseline: Point) -> list[Point]:
        """The finalists, by what is known now."""
        least = LEAST_RUNS if self._near is None else 1
        chosen = choose(self._sampler, self._measured, baseline, effect=self._effect, room=self._room, least_runs=least)
        if besides := [each for each in self._besides(self._measured) if each != baseline and each not in chosen]:
            chosen = [*besides, *chosen][: self._room([*besides, *chosen])]
        return chosen

    def _plan(self, rounds: Confirmation, number: int) -> list[dict[str, object]]:
        """The points of a round, as many as the budget has room for; [] if nothing is undecided."""
        plan = rounds.plan(number)
        if self._too_little(plan):
            plan = rounds.plan(number, fewest=True)
        return [] if self._too_little(plan) else plan

    def _too_little(self, plan: Sequence[Point]) -> str:
        """Why a round does not fit into what is left of the budget; "" if it does."""
        seconds = sum(map(self._measured.seconds, plan))
        if seconds and self._seconds_used + seconds > self._seconds_allowed:
            return f"the time for running the best points again is used up (--confirm {self._confirm})"
        return self._budget.too_little(self._begun, len(plan), seconds)

    def _reason(self, rounds: PairedRounds | None) -> str:
        """Why nothing more is run, if the budget has room for another trial."""
        if rounds is not None:
            plan = rounds.confirmation.plan(rounds.last + 1)
            return (plan and self._too_little(plan)) or "the rounds have settled every difference that matters"
        if (
            self._baseline is not None
            and self._share_spent
            and self._space.size > 1
            and self._sampler.propose(self._measured, ()) is not None
        ):
            return "the rest of the budget is not enough to try another point"
        return self._sampler.reason(self._measured)

    # -- budget ----------------------------------------------------------------------------------------

    @property
    def pending(self) -> list[Trial]:
        """The trials that were asked for, and have not ended."""
        return list(self._pending.values())

    @property
    def finished(self) -> Measurements:
        """The trials that have ended."""
        return self._measured

    @property
    def _begun(self) -> int:
        return len(self._measured.runs) - len(self._measured.in_phase("known")) + len(self._pending)

    @property
    def left(self) -> int | None:
        """How many more trials may start at most; None: unknown."""
        return self._budget.left(self._begun)

    @property
    def _seconds_used(self) -> float:
        """Seconds of all runs of the confirmation, those that are pending included."""
        pending = [each.point for each in self._pending.values() if each.paired]
        ended = sum(each.result.seconds for each in self._measured.in_phase("confirm"))
        return ended + sum(map(self._measured.seconds, pending))

    @property
    def _seconds_allowed(self) -> float:
        """Seconds that the confirmation may take: a part of the whole, but at least what a claim takes; inf: any."""
        if not self._share:
            return math.inf if self._share is None else 0.0
        before = sum(each.result.seconds for each in self._measured.searched)
        pair = self._measured.seconds(self._default) + self._measured.seconds(self._leading or self._default)
        return max(before * self._share / (1 - self._share), (self._budget.rounds + _MORE) * pair)

    @property
    def _leading(self) -> Point | None:
        best = self._sampler.best(self._measured)
        return best.point if best else None

    @property
    def forecast(self) -> Forecast | None:
        """How much longer the best points run again; None: nothing is known of that yet, or there are two goals."""
        known = len(self._measured.runs)
        if self._forecast[0] != known:
            self._forecast = known, self._foresee() if len(self._goals) == 1 else None
        return self._forecast[1]

    def _foresee(self) -> Forecast | None:
        rounds = self._rounds or self._first_rounds()
        if rounds is None or self._measured.noise()[0] is None:
            return None
        runs = rounds.confirmation.expected_runs()
        mean = statistics.fmean(map(self._measured.seconds, (rounds.confirmation.baseline, rounds.confirmation.leader)))
        low, sure, high = (mean / self._side_by_side * runs[int(part * len(runs))] for part in (0.1, 0.5, 0.9))
        most = (self._seconds_allowed - self._seconds_used) / self._side_by_side
        most = max(0.0, min(most, self._budget.seconds_left(self._begun, mean)))
        return Forecast(
            seconds=min(sure, most),
            low=min(low, most),
            high=min(high, most),
            sure=sure,
            advice=self._advice(sure, most),
        )

    def _advice(self, sure: float, most: float) -> str:
        """What to do if the confirmation takes more time than it has; "" if it does not."""
        if sure <= 1.5 * most:
            return ""
        effect = self._effect * math.sqrt(sure / max(most, sure / 400))
        longer = (
            "a larger --budget"
            if self._budget.seconds
            else "more --trials"
            if self._budget.trials
            else "--confirm sure"
        )
        noise = 100 * (self._measured.noise()[0] or 0.0)
        return (
            f"the noise of a run is {noise:.1f} %: detecting a difference of {100 * self._effect:g} % takes"
            f" about {duration(sure)} ({longer}); --effect {math.ceil(100 * effect)} or longer runs take less"
        )

    @property
    def _share_spent(self) -> bool:
        """Whether what is left of the budget is for the rounds."""
        if not self._budget.limited or self._share == 0:
            return False
        base, leading = (self._measured.seconds(point) for point in (self._default, self._leading or {}))
        mean = self._measured.mean_seconds
        return self._budget.is_for_rounds(self._begun, base + leading, max(leading, mean), self._wanted)

    @property
    def _wanted(self) -> float:
        """How many rounds the best so far may take to be certain, with a margin; inf: unknown."""
        noise, baseline = self._measured.noise()[0], self._baseline
        if noise is None or baseline is None or self._leading is None or not self._measured.scores(self._leading):
            return math.inf
        ahead = statistics.fmean(self._measured.scores(self._leading)) - statistics.fmean(
            self._measured.scores(baseline)
        )
        # What is clearly ahead gets most of the error (`Confirmation.weigh`); half of it if the search is less sure.
        return 1.5 * expected_rounds(ahead / 1.5, math.sqrt(2) * noise, (1 - self._confidence) / 2)

    # -- what is known ---------------------------------------------------------------------------------

    @property
    def _baseline(self) -> Point | None:
        """The default; the first point that works if that does not; None if nothing works.

        Without a default: what the rounds compare with, or the best by its own runs.
        """
        working = self._measured.working()
        if not self._has_default:
            best = max(working, key=lambda point: statistics.fmean(self._measured.scores(point)), default=None)
            return self._rounds.confirmation.baseline if self._rounds is not None else best
        return self._default if self._default in working else next(iter(working), None)

    @property
    def answer(self) -> Answer:
        """What is known now."""
        best = promising(self._sampler, self._measured)
        rounds = self._rounds or (self._first_rounds(join=False) if self._earlier else None)
        if not self._has_default:
            compared = rounds.confirmation if rounds is not None else None
            base = compared.baseline if compared is not None else self._baseline
            return answering.without_default(self._measured, base, compared, self._effect)
        return answering.answer(
            self._measured,
            self._default,
            self._baseline,
            best[2] if best else None,
            rounds.confirmation if rounds is not None else None,
            self._effect,
            1 - self._confidence,
        )


def _space(choices: Mapping[str, str | Sequence[object]]) -> Space:
    if not choices:
        raise BadInputError("no parameters", hint="name what varies, such as {'batch': [8, 16, 32]}")
    if empty := [name for name, values in choices.items() if not values]:
        raise BadInputError(f"the parameter {empty[0]!r} has no choices")
    return Space(
        tuple(
            read(name, values, where="") if isinstance(values, str) else Parameter(name=name, choices=tuple(values))
            for name, values in choices.items()
        )
    )


def _named(names: str | Sequence[str], direction: Direction) -> list[Objective]:
    return [Objective(name, direction) for name in ([names] if isinstance(names, str) else names)]
