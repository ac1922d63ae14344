"""A study: which trial comes next, and what is certain after those that have ended. Starts no processes.

It measures the noise (the default against itself), searches, and runs the finalists again in paired rounds. The next
trial depends on the results alone, so a study that was interrupted goes on as if it had not been.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

from bireme.errors import BadInputError
from bireme.tune import answering
from bireme.tune.comparison import interval
from bireme.tune.confirmation import Confirmation
from bireme.tune.finalists import ROUNDS, choose, estimates
from bireme.tune.measurements import CLOCK, Measurements, Run
from bireme.tune.search import Direction, Search
from bireme.tune.searches import make
from bireme.tune.space import Parameter, Point, Points, Space, key_of
from bireme.tune.study_results import Answer, Compared, Goal, Measurement, Objective, Phase, Trial

__all__ = ["Answer", "Compared", "Goal", "Measurement", "Objective", "Study", "Trial"]

_NOISE_RUNS = 2

_SMALL = 24
"""In a space with at most this many points, all are tried."""

_RESERVE = 0.25
"""The part of a budget that is kept for paired rounds; at least `ROUNDS` of two runs, at most half."""

_CAREFUL = 0.01
"""Probability with which a trial that could win is stopped."""

_IGNORED = ("stopped", "infrastructure")
"""Causes that say nothing about the point: the trial is run again."""


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
        space: the points; or the choices of each parameter, the default first.
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
        space: Points | Mapping[str, Sequence[object]],
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
        self._space: Points = _space(space) if isinstance(space, Mapping) else space
        self._goals: tuple[Goal, ...] = (*goals, *_named(maximize, "maximize"), *_named(minimize, "minimize"))
        if not 1 <= len(self._goals) <= 2:
            raise BadInputError(f"{len(self._goals)} goals", hint="name one or two figures to maximize or minimize")
        self._confidence, self._effect, self._seed = confidence, effect, seed
        self._trials, self._seconds, self._clock, self._side_by_side = trials, seconds, clock, side_by_side
        self._kind, self._measured = search, Measurements(self._goals)
        self._search = self._new_search()
        self._default: dict[str, object] = dict(self._space.default)
        self._pending: dict[str, Trial] = {}
        self._asked: dict[str, float] = {}
        self._names: set[str] = set()
        self._began = clock()
        self._restored = 0.0
        self._confirmation: Confirmation | None = None
        self._exhausted = False
        self._plans: dict[int, list[dict[str, object]]] = {}

    # -- ask and tell ----------------------------------------------------------------------------------

    def ask(self) -> Trial | None:
        """The next trial, which is then pending; None if there is nothing to start now, or ever (see ``over``)."""
        if self.over:
            return None
        trial = self._next_noise() or self._next_search() or self._next_round()
        if trial is not None:
            self._pending[trial.name] = trial
            self._names.add(trial.name)
            self._asked[trial.name] = self._clock()
        return trial

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
        if measurement.cause in _IGNORED:
            self.drop(name)
            return
        self._note(self._pending[name], measurement)
        del self._pending[name]
        del self._asked[name]

    def restore(self, trial: Trial, measurement: Measurement) -> None:
        """Take over a trial of an earlier run of this study. To be called in the order of their ends, before asking."""
        if measurement.cause in _IGNORED:
            return
        self._names.add(trial.name)
        self._restored += measurement.seconds / self._side_by_side
        self._note(trial, measurement)

    def drop(self, name: str) -> None:
        """A pending trial was not measured: it may be proposed again."""
        trial = self._pending.pop(name)
        self._names.discard(name)
        if trial.phase == "search":
            self._search.forget(trial.point)

    def give_up(self, name: str) -> None:
        """A pending trial cannot be measured, for no reason of its own: it is not proposed again."""
        trial = self._pending.pop(name)
        self._measured.add(trial, Measurement("infrastructure"))
        if trial.phase == "confirm" and self._rounds:
            self._rounds.tell(trial.round, trial.point, ())
        else:
            self._search.rule_out(lambda point: point == trial.point)

    def hopeless(self, name: str, seconds: float, series: Sequence[float] = ()) -> str:
        """Why a running trial cannot win any more; "" as long as it may.

        Args:
            name: the trial's.
            seconds: it has run for.
            series: its figures of the first goal since its warm-up.
        """
        trial, best = self._pending[name], self._search.best
        noise, freedom = self._measured.noise()
        if trial.phase != "search" or len(self._goals) > 1 or best is None or not best.value or noise is None:
            return ""
        # The best may look better than it is, and the noise of a few runs smaller.
        margin = 3 * max(noise, 0.005) * (1 + 3 / freedom) * math.sqrt(1 + 1 / len(best.values))
        bound = math.log(best.value) - margin
        goal = self._goals[0]
        if goal.name == CLOCK and goal.direction == "minimize":
            return "slower than the best already" if self._measured.score(0, max(seconds, 1e-9)) < bound else ""
        if len(series) < 8 or min(series) <= 0:
            return ""
        # Neighbours in a series are not independent: means of quarters nearly are.
        size = len(series) // 4
        parts = [statistics.fmean(series[start : start + size]) for start in range(0, 4 * size, size)]
        may_be = interval([self._measured.score(0, part) for part in parts], _CAREFUL)
        return "worse than the best for certain" if may_be.high < bound else ""

    def _note(self, trial: Trial, measurement: Measurement) -> None:
        run = self._measured.add(trial, measurement)
        if trial.phase != "confirm":
            self._teach(self._search, run)
            return
        rounds = self._rounds
        if rounds is None:
            raise BadInputError(f"trial {trial.name!r} is of a round, but there are no finalists")
        self._planned(trial.round)  # before the result is known, as when it was asked for
        rounds.tell(trial.round, trial.point, run.figures)

    # -- phases ----------------------------------------------------------------------------------------

    def _next_noise(self) -> Trial | None:
        if self._waits("noise"):
            return None
        runs = [run for run in self._measured.runs if run.trial.phase == "noise"]
        wanted = 1 if self._trials is not None and self._trials < 8 else _NOISE_RUNS
        if len(runs) >= wanted or any(run.figures is None for run in runs):
            return None
        return self._make(self._default, "noise", len(runs) + 1, "noise")

    def _next_search(self) -> Trial | None:
        if (self._side_by_side == 1 and self._pending) or self._search_over:
            return None
        if len(self._goals) > 1:
            self._search = self._weighted_search()
        point = self._search.ask()
        self._exhausted = point is None and not self._pending
        return None if point is None else self._make(point, "search")

    def _new_search(self) -> Search:
        options = {"repeats": True, "negligible": self._effect / 50} if self._kind == "model_based" else {}
        return make(self._kind, self._space, "maximize", self._seed, **options)

    def _weighted_search(self) -> Search:
        """With two goals: a search for the best by random weights, other ones each time.

        Knowles, "ParEGO: a hybrid algorithm with on-line landscape approximation for expensive multiobjective
        optimization problems" (2006). All weights together find the whole front.
        """
        search = self._new_search()
        for run in self._measured.runs:
            if run.trial.phase != "confirm":
                self._teach(search, run)
        for trial in self._pending.values():
            search.pending[key_of(trial.point)] = dict(trial.point)
        return search

    def _teach(self, search: Search, run: Run) -> None:
        value = None
        if run.figures:
            scores = [self._measured.score(goal, figure) for goal, figure in enumerate(run.figures)]
            if len(scores) > 1:
                weight = random.Random(f"{self._seed} {len(self._measured.runs)}").random()
                sides = [weight * scores[0], (1 - weight) * scores[1]]
                scores = [min(sides) + 0.05 * sum(sides)]
            value = math.exp(scores[0])
        measurement = run.measurement
        search.tell(run.trial.point, value, cause=measurement.cause, seconds=measurement.seconds)

    def _next_round(self) -> Trial | None:
        if self._waits("noise") or self._waits("search") or self._rounds is None:
            return None
        running = {each.round for each in self._pending.values() if each.phase == "confirm"}
        for number in range(1, max(self._rounds.last, *running, 0) + 1 if running else self._rounds.last + 1):
            for point in self._planned(number):
                if key_of(point) not in self._started(number):
                    return self._make(point, "confirm", number, f"round-{number}")
        number = max(self._rounds.last, *running) + 1 if running else self._rounds.last + 1
        if len(running) >= self._side_by_side or not self._planned(number):
            return None
        return self._make(self._planned(number)[0], "confirm", number, f"round-{number}")

    @property
    def _rounds(self) -> Confirmation | None:
        """The rounds; made from the finalists when first asked for. None if there is nothing to compare."""
        if self._confirmation is None:
            baseline = self._baseline
            if baseline is None:
                return None
            seconds = None if self._seconds is None else (self._seconds - self._spent) * self._side_by_side
            finalists = choose(
                self._search, self._measured, baseline, effect=self._effect, trials=self.left, seconds=seconds
            )
            if not finalists:
                return None
            self._confirmation = Confirmation(
                baseline,
                finalists,
                len(self._goals),
                self._measured.score,
                confidence=self._confidence,
                effect=self._effect,
                seed=self._seed,
            )
        return self._confirmation

    def _planned(self, number: int) -> list[dict[str, object]]:
        """The points of a round, as they were when it began."""
        if number not in self._plans and self._rounds is not None:
            self._plans[number] = self._rounds.plan(number)
        return self._plans[number]

    def _started(self, number: int) -> set[str]:
        """The keys of the points that have run, or run now, in a round."""
        pending = (each for each in self._pending.values() if each.phase == "confirm" and each.round == number)
        told = self._rounds.told(number) if self._rounds else {}
        return {*told, *(key_of(each.point) for each in pending)}

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
        return "" if self._pending else self._enough

    @property
    def _enough(self) -> str:
        if self.left == 0:
            return f"the budget of {self._trials} trials is spent"
        if self._seconds is not None and self._spent >= self._seconds:
            return f"the budget of {self._seconds:g} s is spent"
        if self._pending or self._next_noise() or not self._search_over:
            return ""
        if self._baseline is None:
            return "nothing works"
        if self._rounds is None:
            return "no other point is expected to be better"
        unfinished = any(
            key_of(point) not in self._started(number)
            for number in range(1, self._rounds.last + 1)
            for point in self._planned(number)
        )
        return "" if unfinished or self._planned(self._rounds.last + 1) else "no difference that matters is undecided"

    @property
    def left(self) -> int | None:
        """How many more trials may start at most; None: unknown."""
        done = len(self._measured.runs) + len(self._pending)
        return None if self._trials is None else max(0, self._trials - done)

    @property
    def _spent(self) -> float:
        return self._restored + self._clock() - self._began

    @property
    def _search_over(self) -> bool:
        """Whether the search has had its share of the budget, or expects nothing better."""
        if self._confirmation is not None or self._exhausted:
            return True
        if self.left is not None and self._trials is not None and self._trials >= 8:
            reserve = min(max(2 * ROUNDS, _RESERVE * self._trials), self._trials / 2)
            if self.left <= reserve:
                return True
        if self._seconds is not None:
            best = self._search.best
            pair = sum(self._measured.seconds(point) for point in (self._default, best.point)) if best else 0.0
            reserve = min(max(ROUNDS * pair / self._side_by_side, _RESERVE * self._seconds), self._seconds / 2)
            if self._spent + reserve >= self._seconds:
                return True
        if self._space.size <= _SMALL and any(map(self._search.open, self._space.points())):
            return False
        return not self._search.promising

    # -- what is known ---------------------------------------------------------------------------------

    @property
    def _baseline(self) -> Point | None:
        """The default; the first point that works if that does not; None if nothing works."""
        working = self._measured.working()
        return self._default if self._measured.scores(self._default) else next(iter(working), None)

    @property
    def answer(self) -> Answer:
        """What is known now."""
        promising = max(estimates(self._search, self._measured), key=lambda each: each[0], default=None)
        return answering.answer(
            self._measured,
            self._default,
            self._baseline,
            promising[2] if promising else None,
            self._confirmation,
            self._effect,
        )


def _space(choices: Mapping[str, Sequence[object]]) -> Space:
    return Space(tuple(Parameter(name=name, choices=tuple(values)) for name, values in choices.items()))


def _named(names: str | Sequence[str], direction: Direction) -> list[Objective]:
    return [Objective(name, direction) for name in ([names] if isinstance(names, str) else names)]
