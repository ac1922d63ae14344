"""One round of a study: a search over some points within a budget. Decides when a round has tried enough.

``gridsearch`` measures everything that the configuration lists, as DeepSpeed does with lists of micro-batches, unless
the section sets a bound. ``random``, and any search among the default choices of a stage, obeys ``tuner_num_trials``
and ``tuner_early_stopping``. ``model_based`` obeys ``tuner_num_trials``, and ``tuner_early_stopping`` only if the
section sets it: otherwise it stops when no remaining configuration is expected to be better by one percent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from bireme.tune.deepspeed.config import SECTION, Config
from bireme.tune.deepspeed.results import METRICS, ModelInfo
from bireme.tune.samplers import make
from bireme.tune.samplers.model_based import NEGLIGIBLE
from bireme.tune.samplers.sampler import Observation, SearchBudget, observe
from bireme.tune.space.points import Point, Points, key_of
from bireme.tune.study import trial as study_results
from bireme.tune.study.trial import Phase
from bireme.tune.study.trial_result import TrialResult
from bireme.value import Value

_COUNTED = 5000
"""In larger spaces the remaining points are not counted."""


class Trial(study_results.Trial):
    """An experiment with one configuration; the point of the profiling run is empty.

    Attributes:
        seconds: its predicted duration; None if unknown.
    """

    seconds: float | None = None

    @property
    def profile(self) -> bool:
        """Whether it is the profiling run, which measures nothing."""
        return self.phase == "profile"


class CompletedTrial(Value):
    """A trial that has ended.

    Attributes:
        value: its figure in the study's metric; None if it has none.
        reason: why it has none.
    """

    trial: Trial
    result: TrialResult
    value: float | None
    reason: str = ""

    @property
    def out_of_memory(self) -> bool:
        """Whether it ran out of memory."""
        return self.result.cause == "out of memory"


class RecordedTrial(Value):
    """A trial that ended in an earlier run of the study. ``info``: what a profiling run found."""

    trial: Trial
    result: TrialResult
    info: ModelInfo | None = None


class Round:
    """A search over points, some of which may be measured already.

    Args:
        completed: the trials that have ended, those of this round included, in the order of their ends.
        spent: earlier trials that count against ``tuner_num_trials``.
        excluded: whether a point must not be tried; None: all may.
    """

    def __init__(
        self,
        phase: Phase,
        points: Points,
        config: Config,
        completed: Iterable[CompletedTrial] = (),
        spent: int = 0,
        excluded: Callable[[Point], bool] | None = None,
    ) -> None:
        self.phase, self.points = phase, points
        self._section, self._given = config.autotuning, given_keys(config)
        self._sampler = make(self._section.tuner_type, excluded=excluded)
        self._sign = 1.0 if METRICS[self._section.metric].direction == "maximize" else -1.0
        self.finished: dict[str, Observation] = {}
        self.pending: dict[str, Point] = {}
        self._before: float | None = None
        self._spent = spent
        self._own: list[float | None] = []
        for done in completed:
            if done.trial.point in points:
                self.tell(done)

    def tell(self, done: CompletedTrial) -> None:
        """Report the result of a trial of this round or an earlier one."""
        value = None if done.value is None else self._sign * done.value
        self.pending.pop(key_of(done.trial.point), None)
        observe(self.finished, done.trial.point, value)
        cost = None if value is None else -value
        if done.trial.phase == self.phase:
            self._own.append(cost)
        elif cost is not None:
            self._before = cost if self._before is None else min(cost, self._before)

    def ask(self) -> Point | None:
        """The next point, then pending; None if there is none now."""
        point = None if self.enough else self._sampler.propose(self.points, self.finished, self.pending)
        if point is not None:
            self.pending[key_of(point)] = point
        return point

    @property
    def enough(self) -> str:
        """Why nothing more is tried, although points may be left; "" if the budget allows more."""
        budget = self._budget
        pending: list[float | None] = [None] * (len(self.pending) + self._spent)
        before = [self._before] if self._before is not None else []
        reason = SearchBudget(budget.trials).spent([*self._own, *pending])
        reason = reason or SearchBudget(None, budget.patience).spent([*before, *self._own])
        if not reason and self._stops_itself and not self._promising:
            return f"no remaining configuration is expected to be better by {NEGLIGIBLE:.0%} (model_based)"
        return reason

    @property
    def left(self) -> int | None:
        """How many more trials it may start at most; None if unknown."""
        trials = self._budget.trials
        most = None if trials is None else max(0, trials - self._spent - len(self._own) - len(self.pending))
        if self.points.size > _COUNTED:
            return most
        known = self._sampler.known(self.points, self.finished, self.pending)
        points = sum(map(known.open, self.points.points()))
        return points if most is None else min(points, most)

    @property
    def _promising(self) -> bool:
        return self._sampler.promising(self.points, self.finished, self.pending)

    @property
    def _stops_itself(self) -> bool:
        return self._section.tuner_type == "model_based" and "tuner_early_stopping" not in self._given

    @property
    def _budget(self) -> SearchBudget:
        section, given = self._section, self._given
        whole = section.tuner_type == "gridsearch" and self.phase == "search"
        trials = None if whole and "tuner_num_trials" not in given else section.tuner_num_trials
        patient = (whole and "tuner_early_stopping" not in given) or self._stops_itself
        return SearchBudget(trials, None if patient else section.tuner_early_stopping)


def given_keys(config: Config) -> Mapping[str, object]:
    """The keys that the ``autotuning`` section sets."""
    given = config.data.get(SECTION)
    return given if isinstance(given, Mapping) else {}
