"""A study: which trial comes next, and what is certain after those that have ended. Starts no processes.

It measures the noise (the default against itself), searches, and runs the finalists again in paired rounds. The next
trial depends on the results alone, so a study that was interrupted goes on as if it had not been.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

from bireme.errors import BadInputError
from bireme.tune.comparison import Interval
from bireme.tune.confirmation import Confirmation
from bireme.tune.search import Direction, Search, make
from bireme.tune.space import Parameter, Point, Points, Space, key_of
from bireme.tune.study_results import Answer, Compared, Goal, Measurement, Objective, Phase, Trial
from bireme.value import Value

__all__ = ["Answer", "Compared", "Goal", "Measurement", "Objective", "Study", "Trial"]

_NOISE_RUNS = 2
_FINALISTS = 4
_IGNORED = ("stopped", "infrastructure")
"""Causes that say nothing about the point: the trial is run again."""


class _Done(Value):
    trial: Trial
    measurement: Measurement
    figures: tuple[float, ...] | None


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
        self._search: Search = make(search, self._space, "maximize", seed)
        self._default: dict[str, object] = dict(getattr(self._space, "default", None) or self._space.point(0))
        self._done: list[_Done] = []
        self._pending: dict[str, Trial] = {}
        self._asked: dict[str, float] = {}
        self._names: set[str] = set()
        self._began = clock()
        self._restored = 0.0
        self._confirmation: Confirmation | None = None
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
        self._done.append(_Done(trial, Measurement("infrastructure"), None))

    def hopeless(self, name: str, seconds: float, series: Sequence[float]) -> str:
        """Why a running trial cannot win any more; "" as long as it may.

        Args:
            name: the trial's.
            seconds: it has run for.
            series: the figures of the first goal since its warm-up.
        """
        return ""

    def _note(self, trial: Trial, measurement: Measurement) -> None:
        figures = None
        if measurement.cause in ("ok", "pruned"):
            missing = [goal.name for goal in self._goals if self._figure(goal, measurement) is None]
            if missing:
                raise BadInputError(f"trial {trial.name!r} has no figure {missing[0]!r}")
            figures = tuple(self._figure(goal, measurement) or 0.0 for goal in self._goals)
        self._done.append(_Done(trial, measurement, figures))
        if trial.phase == "confirm":
            rounds = self._rounds
            if rounds is None:
                raise BadInputError(f"trial {trial.name!r} is of a round, but no finalists are known")
            self._planned(trial.round)
            rounds.tell(trial.round, trial.point, figures)
        else:
            known = [each.figures[0] for each in self._done if each.figures and each.trial.point == trial.point]
            scores = [self._score(0, figure) for figure in known]
            self._search.tell(trial.point, math.exp(statistics.fmean(scores)) if scores else None)

    # -- phases ----------------------------------------------------------------------------------------

    def _next_noise(self) -> Trial | None:
        runs = [each for each in self._done if each.trial.phase == "noise"]
        if any(each.figures is None for each in runs) or self._waits("noise"):
            return None
        number = len(runs) + 1
        return self._make(self._default, "noise", number, "noise") if number <= _NOISE_RUNS else None

    def _next_search(self) -> Trial | None:
        if self._confirmation or self._search_over or (self._side_by_side == 1 and self._pending):
            return None
        point = self._search.ask()
        return None if point is None else self._make(point, "search")

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
            baseline, finalists = self._baseline, self._finalists
            if baseline is None or not finalists:
                return None
            self._confirmation = Confirmation(
                baseline,
                finalists,
                len(self._goals),
                self._score,
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

    # -- what is known ---------------------------------------------------------------------------------

    @property
    def over(self) -> str:
        """Why nothing is left to start; "" while something is left or pending."""
        return "" if self._pending else self._enough

    @property
    def _enough(self) -> str:
        if self._trials is not None and len(self._done) + len(self._pending) >= self._trials:
            return f"the budget of {self._trials} trials is spent"
        if self._seconds is not None and self._spent >= self._seconds:
            return f"the budget of {self._seconds:g} s is spent"
        if self._next_noise() or not self._search_over or self._waits("search") or self._waits("noise"):
            return ""
        if self._baseline is None:
            return "nothing works"
        if self._rounds is None:
            return "no other point is as promising as the baseline"
        unfinished = any(
            key_of(point) not in self._started(number)
            for number in range(1, self._rounds.last + 1)
            for point in self._planned(number)
        )
        return "" if unfinished or self._planned(self._rounds.last + 1) else "nothing is left that matters"

    @property
    def left(self) -> int | None:
        """How many more trials may start at most; None: unknown."""
        return None if self._trials is None else max(0, self._trials - len(self._done) - len(self._pending))

    @property
    def _spent(self) -> float:
        return self._restored + self._clock() - self._began

    @property
    def _search_over(self) -> bool:
        """Whether the search has had its share, or expects nothing better."""
        if self._confirmation is not None:
            return True
        searched = len(self._done) + sum(each.phase != "confirm" for each in self._pending.values())
        if self._trials is not None and searched >= self._trials - max(8, 3 * self._trials // 10) and searched > 2:
            return True
        if self._seconds is not None and self._spent >= 0.7 * self._seconds:
            return True
        small = self._space.size <= 12
        return not (small or self._search.promising) or len(self._search.observations) >= self._space.size

    @property
    def _known(self) -> dict[str, tuple[dict[str, object], float]]:
        """The points with figures, and the mean score of each, by key; paired rounds are left out."""
        scores: dict[str, list[float]] = {}
        points: dict[str, dict[str, object]] = {}
        for each in self._done:
            if each.figures and each.measurement.cause == "ok" and each.trial.phase != "confirm":
                points[key_of(each.trial.point)] = dict(each.trial.point)
                scores.setdefault(key_of(each.trial.point), []).append(self._score(0, each.figures[0]))
        return {key: (point, statistics.fmean(scores[key])) for key, point in points.items()}

    @property
    def _baseline(self) -> dict[str, object] | None:
        """The default; the first point that works if that does not; None if nothing works."""
        known = self._known
        return known.get(key_of(self._default), next(iter(known.values()), (None, 0.0)))[0]

    @property
    def _finalists(self) -> list[dict[str, object]]:
        """The most promising points, without the baseline."""
        ranked = sorted(self._known.values(), key=lambda each: -each[1])
        return [point for point, _ in ranked if point != self._baseline][:_FINALISTS]

    @property
    def answer(self) -> Answer:
        """What is known now."""
        baseline, rounds, known = self._baseline, self._confirmation, self._known
        if baseline is None:
            return Answer(best=None, baseline=self._default, text="nothing works")
        promising = max(known.values(), key=lambda each: each[1])[0]
        failed = next((each.measurement for each in self._done if each.trial.point == self._default), None)
        answer = Answer(
            best=baseline,
            baseline=baseline,
            promising=promising,
            noise=self._noise,
            default_failed="" if baseline == self._default or failed is None else failed.reason or failed.cause,
            text="no other point is shown to be better than the baseline",
        )
        if rounds is None:
            return answer
        leader = rounds.leader
        versus = rounds.versus(leader)
        answer = answer.replace(
            promising=leader if versus.mean > 0 else baseline,
            rounds=versus.count,
            compared=tuple(
                _compared(point, goal.name, rounds.versus(point, goal=number))
                for point in rounds.finalists
                for number, goal in enumerate(self._goals)
            ),
        )
        if versus.low <= 0:
            return answer
        sure = _compared(leader, self._goals[0].name, versus)
        ties = [
            point
            for point in rounds.finalists
            if point != leader and not rounds.failed(point) and rounds.versus(leader, point).low <= 0
        ]
        return answer.replace(
            best=leader,
            confirmed=True,
            ratio=sure.ratio,
            low=sure.low,
            high=sure.high,
            ties=tuple(ties),
            text=f"{sure.ratio:.3g} x the baseline, at least {sure.low:.3g} x",
        )

    @property
    def _noise(self) -> float | None:
        """The relative standard deviation of a run, by all points that ran several times."""
        scores: dict[str, list[float]] = {}
        for each in self._done:
            if each.figures and each.measurement.cause == "ok":
                scores.setdefault(key_of(each.trial.point), []).append(self._score(0, each.figures[0]))
        freedom = sum(len(each) - 1 for each in scores.values())
        squares = sum((score - statistics.fmean(each)) ** 2 for each in scores.values() for score in each)
        return math.sqrt(squares / freedom) if freedom else None

    def _figure(self, goal: Goal, measurement: Measurement) -> float | None:
        """The figure of a goal; None if it is missing or no finite number."""
        figure = measurement.figures.get(goal.name, measurement.seconds if goal.name == "time" else None)
        return figure if figure is not None and math.isfinite(figure) else None

    def _score(self, number: int, figure: float) -> float:
        """A figure as a score: more is better, and a difference of 0.01 is one percent."""
        return math.log(figure) * (1 if self._goals[number].direction == "maximize" else -1)


def _compared(point: Point, goal: str, versus: Interval) -> Compared:
    """An interval of score differences as ratios."""
    return Compared(
        point=point,
        goal=goal,
        ratio=math.exp(versus.mean),
        low=math.exp(versus.low),
        high=math.exp(versus.high) if math.isfinite(versus.high) else None,
        rounds=versus.count,
    )


def _space(choices: Mapping[str, Sequence[object]]) -> Space:
    return Space(tuple(Parameter(name, tuple(values)) for name, values in choices.items()))


def _named(names: str | Sequence[str], direction: Direction) -> list[Objective]:
    return [Objective(name, direction) for name in ([names] if isinstance(names, str) else names)]
