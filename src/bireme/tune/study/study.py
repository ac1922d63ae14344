"""A study: which trial comes next, and what is certain after those that have ended. Starts no processes.

It measures the noise (the default against itself), searches, runs again what may be the best (screening), and then the
finalists in paired rounds. The next trial depends on the results alone, so a study that was interrupted goes on as if
it had not been.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from bireme.errors import BadInputError
from bireme.tune.samplers.sampler import Direction
from bireme.tune.space.points import Parameter, Point, Points, Space, key_of
from bireme.tune.space.value_lists import read
from bireme.tune.study import answer as answering
from bireme.tune.study import screening
from bireme.tune.study.any_study import AnyStudy
from bireme.tune.study.budget import LEAST, Budget
from bireme.tune.study.confirmation import Confirmation
from bireme.tune.study.finalists import MOST, choose, estimates
from bireme.tune.study.observations import Measurements, Run
from bireme.tune.study.paired_rounds import PairedRounds
from bireme.tune.study.pruner import reason_to_prune
from bireme.tune.study.search import StudySearch
from bireme.tune.study.trial import Answer, Compared, Goal, Measurement, Objective, Phase, Trial
from bireme.tune.study.trial_result import NOT_THE_CONFIGURATION

__all__ = ["Answer", "Compared", "Goal", "Measurement", "Objective", "Study", "Trial"]

_NOISE_RUNS = 2

_SMALL = 24
"""In a space with at most this many points, all are tried."""

_NEGLIGIBLE = 0.02
"""The search ends when it expects no improvement by this part of the effect."""

_FAILURES = 20
"""If so many points have failed and none has worked, the reason has nothing to do with the points."""


class Study(AnyStudy[Trial, Run]):
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
        maximize: names of figures.
        minimize: names of figures; ``time`` is the wall time of a trial.
        search: see `search.make`.
        seed: any number; the same seed and results give the same trials.
        confidence: of the claim that the best is better than the baseline.
        effect: the smallest relative difference that matters.
        trials: the budget in trials; None: no limit.
        seconds: the budget in seconds of wall time; None: no limit.
        clock: seconds, from any start.
        side_by_side: how many trials run at the same time.
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
    ) -> None:
        super().__init__()
        self._space: Points = _space(space) if isinstance(space, Mapping) else space
        self._goals: tuple[Goal, ...] = (*goals, *_named(maximize, "maximize"), *_named(minimize, "minimize"))
        if not 1 <= len(self._goals) <= 2:
            raise BadInputError(f"{len(self._goals)} goals", hint="name one or two figures to maximize or minimize")
        self._confidence, self._effect, self._seed, self._side_by_side = confidence, effect, seed, side_by_side
        self._budget = Budget(trials, seconds, clock, side_by_side)
        self._measured = Measurements(self._goals)
        self._search = StudySearch(search, self._space, seed, _NEGLIGIBLE * effect, self._measured)
        self._default: dict[str, object] = dict(self._space.default)
        self._asked: dict[str, float] = {}
        self._names: set[str] = set()
        self._clock = clock
        self._exhausted = False
        self._screening = False
        self._earlier: list[tuple[int, Point, Sequence[float] | None]] = []

    # -- ask and tell ----------------------------------------------------------------------------------

    def ask(self) -> Trial | None:
        """The next trial, which is then pending; None if there is nothing to start now, or ever (see ``over``)."""
        return None if self._budget.spent(self._begun) or self.over else super().ask()

    def propose(self, point: Point) -> Trial:
        """A trial of a point of your own choice, which is then pending, as part of the search.

        Raises:
            BadInputError: it is no point of the space, or the search is over.
        """
        if point not in self._space:
            raise BadInputError(f"no point of the space: {dict(point)}")
        if self._rounds is not None or self._budget.spent(self._begun):
            raise BadInputError("the search is over", hint="ask for the trials of the finalists")
        return self._begin(self._make(point, "search"))

    def _begin(self, trial: Trial) -> Trial:
        self._names.add(trial.name)
        self._asked[trial.name] = self._clock()
        return super()._begin(trial)

    def tell(self, name: str, measurement: Measurement | None = None, *, failed: str = "", **figures: float) -> None:
        """Report the result of a pending trial.

        Args:
            name: the trial's.
            measurement: the result; or
            failed: why it has none: ``out of memory`` or any other words; or
            figures: the figures by name.

        Raises:
            BadInputError: no such trial is pending, or the figure of a goal is missing.
        """
        if name not in self._pending:
            raise BadInputError(f"no trial {name!r} is pending")
        took = self._clock() - self._asked[name]
        if measurement is None:
            cause = "ok" if not failed else "out of memory" if failed == "out of memory" else "failed"
            measurement = Measurement(cause, figures, took, failed)  # type: ignore[arg-type]  # one of them
        if measurement.cause in NOT_THE_CONFIGURATION:
            self.drop(name)
            return
        self._end(self._pending[name], self._measured.add(self._pending[name], measurement))
        del self._asked[name]

    def restore(self, trial: Trial, measurement: Measurement, elapsed: float = 0.0) -> None:
        """Take over a trial of an earlier run of this study. To be called in the order of their ends, before asking.

        A round that an interruption has cut is not completed: its runs would be hours apart, on other slots.

        Args:
            trial: the trial.
            measurement: its result.
            elapsed: seconds that the study had taken at its end; 0.0: unknown.
        """
        if measurement.cause in NOT_THE_CONFIGURATION:
            return
        self._names.add(trial.name)
        self._budget.earlier = elapsed or self._budget.earlier + measurement.seconds / self._side_by_side
        run = self._measured.add(trial, measurement)
        if trial.paired:
            self._earlier.append((trial.round, trial.point, run.figures))
        self._end(trial, run)

    def drop(self, name: str) -> None:
        """A pending trial was not measured: it may be proposed again."""
        super().drop(name)
        self._names.discard(name)

    def _forget(self, trial: Trial) -> None:
        """Nothing to do: it is not pending any more."""

    def give_up(self, name: str) -> None:
        """A pending trial cannot be measured, for no reason of its own: it is not proposed again."""
        self._measured.add(self._pending[name], Measurement("infrastructure"))
        super().give_up(name)

    def _rule_out(self, trial: Trial) -> None:
        """Nothing to do: it is measured, with no result."""

    def hopeless(self, name: str, seconds: float, series: Sequence[float] = ()) -> str:
        """Why a running trial cannot win any more; "" as long as it may.

        Args:
            name: the trial's.
            seconds: it has run for.
            series: its figures of the first goal since its warm-up.
        """
        best = self._search.best
        if self._pending[name].phase != "search" or len(self._goals) > 1 or best is None:
            return ""
        return reason_to_prune(self._measured, best, seconds, series)

    def _note(self, done: Run) -> None:
        self._screening = self._screening or done.trial.phase == "screen"

    def _figures(self, done: Run) -> Sequence[float] | None:
        return done.figures

    # -- phases ----------------------------------------------------------------------------------------

    def _next_search(self) -> Trial | None:
        return self._next_noise() or self._next_point() or self._next_screen()

    @property
    def _searching(self) -> bool:
        return bool(self._next_noise() or not self._search_over or self._next_screen())

    def _next_noise(self) -> Trial | None:
        if self._waits("noise"):
            return None
        runs = [run for run in self._measured.runs if run.trial.phase == "noise"]
        wanted = 1 if self._budget.trials is not None and self._budget.trials < LEAST else _NOISE_RUNS
        if len(runs) >= wanted or any(run.figures is None for run in runs):
            return None
        return self._make(self._default, "noise", len(runs) + 1, "noise")

    def _next_point(self) -> Trial | None:
        if (self._side_by_side == 1 and self._pending) or self._search_over:
            return None
        point = self._search.propose(self._trying)
        self._exhausted = point is None and not self._pending
        return None if point is None else self._make(point, "search")

    def _next_screen(self) -> Trial | None:
        baseline = self._baseline
        unsure = len(self._goals) == 1 and not self._share_spent
        if baseline is None or not unsure or self._waits("noise") or self._waits("search"):
            return None
        running = [key_of(each.point) for each in self._pending.values()]
        if len(running) >= self._side_by_side:
            return None
        point = screening.next_point(self._measured, baseline, self._effect, self._room, running)
        return None if point is None else self._make(point, "screen")

    def _room(self, points: Sequence[Point]) -> int:
        """How many of these points, from the first on, can be finalists; at least one."""
        lasts = list(map(self._measured.seconds, points))
        room = self._budget.finalists(self._begun, self._measured.seconds(self._baseline or self._default), lasts)
        return MOST if room is None else min(MOST, room)

    def _first_rounds(self) -> PairedRounds | None:
        baseline = self._baseline
        if baseline is None:
            return None
        finalists = {key_of(point): point for _, point, _ in self._earlier if point != baseline}
        # With the same budget, which has less room now, no others are chosen; with a larger one some join.
        chosen = choose(self._search, self._measured, baseline, effect=self._effect, room=self._room)
        finalists.update((key_of(point), point) for point in chosen)
        if not finalists:
            return None
        confirmation = Confirmation(
            baseline,
            list(finalists.values()),
            len(self._goals),
            self._measured.score,
            confidence=self._confidence,
            effect=self._effect,
            seed=self._seed,
        )
        for number, point, figures in self._earlier:
            confirmation.tell(number, point, figures)
        closed = max((number for number, _, _ in self._earlier), default=0)
        plan = partial(self._plan, confirmation)
        return PairedRounds(confirmation, plan, side_by_side=self._side_by_side, closed=closed)

    def _plan(self, rounds: Confirmation, number: int) -> list[dict[str, object]]:
        """The points of a round, as many as the budget has room for; [] if nothing is undecided."""
        plan = rounds.plan(number)
        if self._too_little(plan):
            plan = [each for each in plan if each in (rounds.baseline, rounds.leader)]
        return [] if self._too_little(plan) else plan

    def _too_little(self, plan: Sequence[Point]) -> str:
        """Why a round does not fit into what is left of the budget; "" if it does."""
        return self._budget.too_little(self._begun, len(plan), sum(map(self._measured.seconds, plan)))

    def _paired(self, number: int, point: Point) -> Trial:
        return self._make(point, "confirm", number, f"round-{number}")

    def _make(self, point: Point, phase: Phase, number: int = 0, block: str = "") -> Trial:
        serial = len(self._names) + 1
        while f"trial-{serial}" in self._names:
            serial += 1
        return Trial(name=f"trial-{serial}", point=dict(point), phase=phase, round=number, block=block)

    def _waits(self, phase: Phase) -> bool:
        return any(each.phase == phase for each in self._pending.values())

    # -- budget ----------------------------------------------------------------------------------------

    @property
    def over(self) -> str:
        """Why nothing is left to start; "" while something is left or pending."""
        if self._pending:
            return ""
        if spent := self._budget.spent(self._begun):
            return spent
        if self._measured.failures >= _FAILURES and not self._measured.working():
            return f"nothing works: each of the first {self._measured.failures} points has failed"
        return super().over

    def _reason(self, rounds: PairedRounds | None) -> str:
        if rounds is None:
            if self._baseline is None:
                return "nothing works"
            if self._space.size == 1:
                return "nothing varies: there is only one point"
            if self._share_spent and not self._exhausted:
                return "what is left of the budget is too little to try another point"
            return "no other point is expected to be better"
        plan = rounds.confirmation.plan(rounds.last + 1)
        return (plan and self._too_little(plan)) or "no difference that matters is undecided"

    @property
    def _begun(self) -> int:
        return len(self._measured.runs) + len(self._pending)

    @property
    def left(self) -> int | None:
        """How many more trials may start at most; None: unknown."""
        return self._budget.left(self._begun)

    @property
    def more_rounds(self) -> int | None:
        """About how many more rounds decide everything, however small the budget is; None: unknown."""
        return None if self._rounds is None else self._rounds.confirmation.more

    @property
    def _search_over(self) -> bool:
        """Whether the search has had its share of the budget, or expects nothing better."""
        if self._exhausted or self._screening or self._share_spent:
            return True
        pending = self._trying
        if self._space.size <= _SMALL and any(self._search.open(point, pending) for point in self._space.points()):
            return False
        return not self._search.promising(pending)

    @property
    def _trying(self) -> Mapping[str, Point]:
        """The points that the search tries now, by their keys."""
        return {key_of(each.point): each.point for each in self._pending.values() if each.phase == "search"}

    @property
    def _share_spent(self) -> bool:
        """Whether what is left of the budget is for the rounds."""
        best = self._search.best
        base, leading = (self._measured.seconds(point) for point in (self._default, best.point if best else {}))
        return self._budget.is_for_rounds(self._begun, base + leading, max(leading, self._measured.mean_seconds))

    # -- what is known ---------------------------------------------------------------------------------

    @property
    def _baseline(self) -> Point | None:
        """The default; the first point that works if that does not; None if nothing works."""
        working = self._measured.working()
        return self._default if self._default in working else next(iter(working), None)

    @property
    def answer(self) -> Answer:
        """What is known now."""
        promising = max(estimates(self._search, self._measured), key=lambda each: each[0], default=None)
        rounds = self._rounds or (self._first_rounds() if self._earlier else None)
        return answering.answer(
            self._measured,
            self._default,
            self._baseline,
            promising[2] if promising else None,
            rounds.confirmation if rounds is not None else None,
            self._effect,
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
