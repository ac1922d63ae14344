"""What to run next, and when it is enough: DeepSpeed's autotuning as a state machine. Pure: nothing is started here.

In three phases, of which the first two are needed only where micro-batches are to be found:

1. **profile**: one short run tells the number of parameters and the memory of activations.
2. **wall**: for each stage, the largest micro-batch that fits, by `Boundary`; each run is a measurement as well.
3. **search**: the configurations that are left, in the order of ``tuner_type``.

*How much is tried.* ``gridsearch`` measures every configuration that was listed, as the reference does with lists of
micro-batches. ``tuner_num_trials`` and ``tuner_early_stopping`` bound the search for ``random`` and ``model_based``,
for the default spaces of ``fast: false``, and wherever the configuration names them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from bireme.tune.deepspeed.batch import TRAIN
from bireme.tune.deepspeed.config import SECTION
from bireme.tune.deepspeed.results import METRICS, Metrics, ModelInfo, model_info, value_of
from bireme.tune.deepspeed.space import TuningSpace
from bireme.tune.deepspeed.walls import Walls
from bireme.tune.ending import Ending
from bireme.tune.search import Budget, Search, make
from bireme.tune.space import Point
from bireme.value import Value

PROFILE = "profile_model_info"

Kind = Literal["profile", "wall", "search"]


class Trial(Value):
    """An experiment: a name that no other of the study has, and its point (that of the profiling run is empty).

    ``seconds``: how long it will take, as far as earlier ones tell.
    """

    name: str
    point: Mapping[str, object]
    kind: Kind = "search"
    seconds: float | None = None


class Row(Value):
    """A trial that has ended. ``value``: its figure in the study's metric; None: there is none, and ``reason`` why."""

    trial: Trial
    ending: Ending
    value: float | None
    reason: str = ""


class Past(Value):
    """A trial that ended in an earlier run of the study."""

    trial: Trial
    ending: Ending
    info: ModelInfo | None = None


class Tuning:
    """The study's decisions.

    Args:
        space: what may be tried.
        world: ranks of an experiment.
        capacity: memory of a GPU in bytes; None: not known, or there is none.
        seed: for searches that draw.
        past: what has ended already, in that order.
    """

    def __init__(
        self, space: TuningSpace, world: int, *, capacity: int | None = None, seed: int = 0, past: Iterable[Past] = ()
    ) -> None:
        self.space, self.section = space, space.config.autotuning
        self.metric = METRICS[self.section.metric]
        self._rows: dict[str, Row] = {}
        self._pending: dict[str, Trial] = {}
        self._given_up: dict[str, Trial] = {}
        self._over = ""
        self._seed = seed
        self._walls = Walls(space, world, capacity, _given_info(space))
        self._profile = self._wants_profile()
        self._search: Search | None = None
        for each in past:
            self._note(each.trial, each.ending, each.info)

    # -- what to run ---------------------------------------------------------------------------------

    def next(self) -> Trial | None:
        """The next trial, pending from now on; None: nothing to start now."""
        self._over = ""
        trial = self._candidate()
        if trial is not None:
            self._pending[trial.name] = trial
        return trial

    def _candidate(self) -> Trial | None:
        if self._profile:
            return None if PROFILE in self._pending else Trial(PROFILE, {}, "profile")
        if self.space.micro is None and self._search is None:
            point = self._walls.propose()
            if point is not None:
                return self._trial(point, "wall")
            if self._pending:
                return None  # what they find decides what is searched
        return self._from_search()

    def _from_search(self) -> Trial | None:
        search = self._search = self._search or self._make_search()
        if spent := self._spent(search):
            self._end(spent)
            return None
        point = search.ask()
        if point is None:
            self._end("every configuration was measured" if self._rows else "there is nothing to try")
            return None
        return self._trial(point, "search")

    def _trial(self, point: Point, kind: Kind) -> Trial:
        seconds = [row.ending.seconds for row in self._rows.values() if row.ending.cause == "ok"]
        mean = sum(seconds) / len(seconds) if seconds else None
        return Trial(self.space.name(point), point, kind, mean)

    def _make_search(self) -> Search:
        found = None if self.space.micro is not None else self._walls.sizes()
        points = self.space.space(found)
        search = make(self.section.tuner_type, points, self.metric.direction, self._seed)
        search.rule_out(lambda point: bool(self.space.impossible(point)))
        search.rule_out(self._walls.ruled_out)
        for row in self._rows.values():
            if row.trial.point in points:
                search.tell(row.trial.point, row.value, violated=_violated(row))
        return search

    def _spent(self, search: Search) -> str:
        """Why no more is to be tried, or ""."""
        costs = [
            None if row.value is None else search.cost(row.value)
            for row in self._rows.values()
            if row.trial.kind == "search"
        ]
        budget = self._budget()
        reason = budget.spent(costs)
        if not reason and budget.trials is not None:
            return Budget(budget.trials).spent([None] * (len(costs) + len(self._pending)))
        return reason

    def _budget(self) -> Budget:
        given = self.space.config.data.get(SECTION)
        named = given if isinstance(given, Mapping) else {}
        free = self.section.tuner_type == "gridsearch" and self.section.fast
        return Budget(
            None if free and "tuner_num_trials" not in named else self.section.tuner_num_trials,
            None if free and "tuner_early_stopping" not in named else self.section.tuner_early_stopping,
        )

    def _end(self, reason: str) -> None:
        """Nothing more will be started; over, once nothing is pending."""
        if not any(row.value is not None for row in self._rows.values()) and not self._pending:
            reason = "no configuration worked"
        self._over = reason

    # -- what became of it ---------------------------------------------------------------------------

    def tell(self, name: str, ending: Ending, info: ModelInfo | None = None) -> Row:
        """A pending trial has ended, in a way that tells something of its configuration.

        Args:
            name: its name.
            ending: how it ended.
            info: what the profiling run has found.
        """
        return self._note(self._pending.pop(name), ending, info)

    def _note(self, trial: Trial, ending: Ending, info: ModelInfo | None) -> Row:
        if trial.kind == "profile":
            self._profile = False
            self._walls.learn(info)
            row = Row(trial, ending, None, ending.reason)
        else:
            row = self._row(trial, ending)
            self._walls.tell(trial.point, row)
            if self._search is not None:
                self._search.tell(trial.point, row.value, violated=_violated(row))
        self._rows[trial.name] = row
        return row

    def _row(self, trial: Trial, ending: Ending) -> Row:
        if ending.cause != "ok":
            return Row(trial, ending, None, ending.reason)
        value, reason = value_of(Metrics(dict(ending.metrics)), self.section.metric)
        return Row(
            trial, ending if value is not None else ending.replace(cause="no metric", reason=reason), value, reason
        )

    def drop(self, name: str) -> None:
        """A pending trial came to nothing through no fault of its own: it may be asked for again."""
        trial = self._pending.pop(name)
        if self._search is not None:
            self._search.forget(trial.point)
        self._walls.forget(trial.point)

    def give_up(self, name: str) -> None:
        """It cannot be run for now: it is not tried again in this run, and says nothing of its configuration."""
        self._given_up[name] = self._pending.pop(name)
        self._profile = self._profile and name != PROFILE

    # -- what there is to see ------------------------------------------------------------------------

    @property
    def over(self) -> str:
        """Why the study is over; "" while something is pending, left to try, or could not be run."""
        return "" if self._pending or self._given_up else self._over

    @property
    def given_up(self) -> tuple[str, ...]:
        """The names of those that could not be run."""
        return tuple(self._given_up)

    @property
    def rows(self) -> tuple[Row, ...]:
        """All trials that have ended, in that order, the profiling run not among them."""
        return tuple(row for row in self._rows.values() if row.trial.kind != "profile")

    @property
    def best(self) -> Row | None:
        """The best so far, the earliest of equals."""
        return self.best_of(self._rows.values())

    def best_of(self, rows: Iterable[Row]) -> Row | None:
        """The best of some, the earliest of equals; None: none has a figure."""
        return min((row for row in rows if row.value is not None), key=self.cost, default=None)

    def cost(self, row: Row) -> float:
        """Its figure, so turned that less is better."""
        value = row.value or 0.0
        return -value if self.metric.direction == "maximise" else value

    @property
    def first_step(self) -> int:
        """The step with which measuring begins, counted from 1."""
        return self.section.start_profile_step

    @property
    def left(self) -> int | None:
        """How many trials may still come, those that run included; None: not known yet."""
        if self.space.micro is None and self._search is None:
            return None
        search = self._search or self._make_search()
        points = sum(1 for point in search.space.points() if search.open(point)) if search.space.size < 10_000 else None
        trials = self._budget().trials
        if trials is not None:
            done = sum(1 for row in self._rows.values() if row.trial.kind == "search")
            points = trials - done - len(self._pending) if points is None else min(points, trials - done)
        return None if points is None else max(0, 0 if self._over else points) + len(self._pending)

    @property
    def skipped(self) -> tuple[str, ...]:
        """What was not tried, and why, in a few lines."""
        return self._walls.skipped

    # -- an experiment -------------------------------------------------------------------------------

    def ds_config(self, trial: Trial, path: str = "") -> dict[str, object]:
        """The configuration of a trial, a new one each time.

        Args:
            trial: the trial.
            path: the file that the engine is to write, and then end; "": the real job.
        """
        if trial.kind == "profile":
            return self.space.profile_config(path)
        return self.space.ds_config(trial.point, metric_path=path)

    def samples(self, trial: Trial) -> int:
        """How many samples there are in a step (``train_batch_size``)."""
        samples = self.space.ds_config(trial.point)[TRAIN]
        assert isinstance(samples, int)
        return samples

    def _wants_profile(self) -> bool:
        asked = (self.section.model_info or {}).get("profile") is True
        return (self.space.micro is None or asked) and not self._walls.knows_model


def _given_info(space: TuningSpace) -> ModelInfo | None:
    """What the configuration itself says of the model."""
    given = dict(space.config.autotuning.model_info or {})
    info = model_info(given)
    return info if info.params else None


def _violated(row: Row) -> float:
    return 1.0 if row.ending.cause == "out of memory" else 0.0
