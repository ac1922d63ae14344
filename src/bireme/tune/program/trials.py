"""Runs a trial of a program as an experiment: delivers its point, follows its figures, and judges its end."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from bireme import isolated
from bireme.errors import BAD_INPUT, BadInputError
from bireme.planning.exports import TRIAL
from bireme.tune.blocks import Blocks
from bireme.tune.diagnosis import diagnose
from bireme.tune.experiment import End, LaunchRequest, tail
from bireme.tune.figure_reader import Reader
from bireme.tune.figures import Measure, Readings
from bireme.tune.launching import Launch
from bireme.tune.memory_use import MemoryUse
from bireme.tune.program.delivery import Courier
from bireme.tune.program.files import ProgramFiles
from bireme.tune.scheduler import Task
from bireme.tune.slots import Shape, SlotReservation
from bireme.tune.study import Measurement, Study, Trial
from bireme.tune.trial_result import TrialResult
from bireme.tune.warm_up import steady_part
from bireme.value import Value

_CANNOT_START = (126, 127)
"""Exit codes of a program that cannot be executed, or is not found."""

_EVERY, _EVERY_MEMORY = 0.25, 0.05
"""Seconds between two looks at the figures of a running trial, and at its memory."""


class TrialOptions(Value):
    """How trials are run.

    Attributes:
        shape: the slots that each needs.
        environ: the environment of each ``bireme run``.
        limit: seconds after which a trial is stopped; None: never.
        elapsed: seconds that earlier runs of the study took.
    """

    shape: Shape
    environ: Mapping[str, str]
    limit: float | None = None
    elapsed: float = 0.0


class ProgramTrials:
    """The study's adapter (`bireme.tune.study_run.Adapter`) for any program.

    Args:
        study: decides which point is tried next.
        measure: what is measured.
        courier: delivers the values of a point.
        launch: what all trials have in common.
        files: the study's folder.
        options: how trials are run.
        results: of earlier trials, by name.
        trials: the earlier trials, by name.
        units: the base units of figures, by name, as far as they are known.
        clock: seconds of a monotonic clock.

    Attributes:
        results: of all trials that have ended, by name, in the order of their ends.
        trials: all trials that have been started, by name.
        units: the base units of figures, by name.
    """

    def __init__(
        self,
        study: Study,
        measure: Measure,
        courier: Courier,
        launch: Launch,
        files: ProgramFiles,
        options: TrialOptions,
        results: Mapping[str, TrialResult],
        trials: Mapping[str, Trial],
        units: Mapping[str, str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.results, self.trials = dict(results), dict(trials)
        self.units: dict[str, str] = dict(units)
        self.study, self.measure = study, measure
        self._courier, self._launch, self._files, self._options = courier, launch, files, options
        self._clock, self._begin = clock, clock() - options.elapsed
        self._pending: dict[str, Trial] = {}
        self._readers: dict[str, Reader] = {}
        self._read: dict[str, Readings] = {}
        self._ranks: dict[str, float | None] = {}
        self._cannot_start: set[str] = set()
        self._launching: float | None = None  # the most seconds that the launch of a trial took; None: unknown
        self._warm_up = 0  # the most readings that the warm-up of a trial had
        self._memory = MemoryUse(measure.memory)
        self._blocks: Blocks[Trial] = Blocks(study.ask)

    @property
    def elapsed(self) -> float:
        """Seconds that the study has taken, earlier runs of it included."""
        return self._clock() - self._begin

    @property
    def over(self) -> str:
        """Why nothing is left to try; "" while something is left or pending."""
        return self.study.over

    def next(self) -> Task | None:
        """The next trial as an experiment to run; None if there is nothing to start now."""
        trial = self._blocks.next()
        if trial is None:
            return None
        self._pending[trial.name] = self.trials[trial.name] = trial
        return Task(
            key=trial.name,
            shape=self._options.shape,
            seconds=self._predicted(),
            pinned=self._blocks.pinned(trial),
        )

    def _predicted(self) -> float | None:
        """The predicted duration of a trial: the mean of those that worked."""
        worked = [result.seconds for result in self.results.values() if result.cause == "ok"]
        return sum(worked) / len(worked) if worked else None

    # -- before --------------------------------------------------------------------------------------

    def starting(self, name: str) -> Mapping[str, object]:
        """The trial's point and phase, for those who look at a study while it runs."""
        trial = self._pending[name]
        return {"point": dict(trial.point), "phase": trial.phase}

    def launch_request(self, name: str, reservation: SlotReservation, place: int) -> LaunchRequest:
        """Return what to start for a trial, and write its files.

        Args:
            name: the trial's name.
            reservation: its slots.
            place: a low number that no other running experiment has, another one at each attempt.
        """
        trial, options = self._pending[name], self._options
        self._blocks.started(trial, reservation)
        folder = self._files.trial(name)
        delivered = self._courier.deliver(trial.point, folder, name)
        report = self._files.trial(name, "outcome.json")
        limit = () if options.limit is None else ("--time_limit", f"{options.limit:g}")
        exports = [word for export in (f"{TRIAL}={name}", *delivered.exports) for word in ("--export", export)]
        words = self._launch.command(
            name,
            reservation,
            place,
            options=("--timestamps", "--output", "prefix", "--report", report, *limit, *exports),
            args=delivered.args,
        )
        self._files.write_start(name, ("bireme", "run", *words), delivered.files)
        self._readers[name] = Reader(
            self.measure, self._files.trial(name, "stdout.log"), self._files.trial(name, "stderr.log"), name=name
        )
        self._memory.begin(name, [slot for _, slots in reservation.places for slot in slots])
        return LaunchRequest(
            argv=isolated.command("bireme", "run", *words),
            env=options.environ,
            cwd=os.getcwd(),
            stdout=self._files.trial(name, "stdout.log"),
            stderr=self._files.trial(name, "stderr.log"),
            report=report,
            grace=self._launch.grace,
            hopeless=lambda seconds: self._hopeless(name, seconds),
            every=_EVERY_MEMORY if self.measure.memory else _EVERY,
        )

    def _hopeless(self, name: str, seconds: float) -> str:
        self._memory.look()
        reader = self._readers[name]
        reader.update()
        values = reader.values(self.measure.goals[0].name)
        warm_up = max(self._warm_up, steady_part(values).left_out) if values else 0
        running = 0.0 if self._launching is None else seconds - self._launching
        return self.study.hopeless(name, running, values[warm_up:])

    # -- after ---------------------------------------------------------------------------------------

    def judge(self, name: str, end: End) -> TrialResult:
        """Read the figures of a run that has ended, and decide its result."""
        readings = self._read[name] = self._readers.pop(name).finish(end.report, self._memory.end(name, end.report))
        self._ranks[name] = _seconds_of_ranks(end)
        if (end.exit_code == BAD_INPUT and end.report is None) or end.exit_code in _CANNOT_START:
            self._cannot_start.add(name)
        result = diagnose(end, readings.figures, readings.problem, tail(self._files.trial(name, "stderr.log")))
        if result.cause == "ok" and (broken := self.measure.over(readings.figures)):
            return result.replace(cause="over limit", reason=broken)
        return result

    def settling(self, reservation: SlotReservation, end: End) -> float:
        """Seconds until a run has certainly left nothing on other nodes."""
        return self._launch.settling(reservation, end.report)

    def tell(self, name: str, result: TrialResult) -> Mapping[str, object]:
        """Report a result to the study; returns what the journal keeps beside it.

        Raises:
            BadInputError: the first trial shows that the study is described wrongly, so that no trial could count.
        """
        trial, readings, ranks = self._pending[name], self._read.pop(name), self._ranks.pop(name)
        if not self.results and (result.cause == "no metric" or name in self._cannot_start):
            raise BadInputError(result.reason, hint=f"the output of the trial is in {self._files.trial(name)}")
        del self._pending[name]
        self._blocks.ended(name)
        self.results[name] = result
        self.units.update(readings.units)
        parts = _parts(readings, result.seconds, ranks)
        self._launching = max(self._launching or 0.0, parts["launch"])
        self._warm_up = max(self._warm_up, readings.warm_up.get(self.measure.goals[0].name, 0))
        self.study.tell(name, measurement_of(result))
        return {
            **recorded(trial),
            "elapsed": round(self.elapsed, 3),
            "figures": dict(result.metrics),
            "units": dict(readings.units),
            **_in_short(readings),
            **({"notes": list(readings.notes)} if readings.notes else {}),
            "parts": parts,
        }

    def drop(self, name: str) -> None:
        """A trial was not measured: it may be proposed again."""
        del self._pending[name]
        self._blocks.ended(name)
        self.study.drop(name)

    def give_up(self, name: str) -> None:
        """The infrastructure failed a trial too often: it is not proposed again in this run."""
        del self._pending[name]
        self._blocks.ended(name)
        self.study.give_up(name)


def _seconds_of_ranks(end: End) -> float | None:
    """How long the slowest rank took; None if the run left no report."""
    ends = (end.report or {}).get("ends")
    seconds = [each.get("seconds") for each in ends if isinstance(each, dict)] if isinstance(ends, list) else []
    return max((float(value) for value in seconds if isinstance(value, (int, float))), default=None)


def measurement_of(result: TrialResult) -> Measurement:
    """What a result tells the study."""
    return Measurement(cause=result.cause, figures=dict(result.metrics), seconds=result.seconds, reason=result.reason)


def recorded(trial: Trial) -> Mapping[str, object]:
    """A trial in the journal; `read_trial` reads it back."""
    return {"point": dict(trial.point), "phase": trial.phase, "round": trial.round, "block": trial.block}


_SHOWN = 200
"""Readings of a series that the journal keeps; of a longer one, evenly spaced."""


def _in_short(readings: Readings) -> dict[str, object]:
    """The series and their warm-up, for the journal."""
    series, warm_up = {}, {}
    for name, all_of in readings.series.items():
        every = -(-len(all_of) // _SHOWN)
        series[name] = [value for _, value in all_of[::every]]
        warm_up[name] = readings.warm_up.get(name, 0) // every
    return {"series": series, "warm_up": warm_up}


def _parts(readings: Readings, seconds: float, ranks: float | None) -> dict[str, float]:
    """What the time of a trial went into: launch, warm-up (of the first goal's series) and measuring."""
    ranks = seconds if ranks is None else min(ranks, seconds)
    warm = 0.0
    for name, all_of in readings.series.items():
        times = [when for when, _ in all_of if when is not None]
        begin = readings.warm_up.get(name, 0)
        if begin < len(times):
            warm = min(max(0.0, times[begin] - (seconds - ranks)), ranks)
        break
    parts = {"launch": seconds - ranks, "warm_up": warm, "measuring": ranks - warm}
    return {name: round(part, 3) for name, part in parts.items()}
