"""Runs a trial of a program as an experiment: delivers its point, follows its figures, and judges its end."""

from __future__ import annotations

import os
from collections.abc import Mapping

from bireme.errors import BAD_INPUT, BadInputError
from bireme.planning.exports import TRIAL
from bireme.tune.define.declarations import TRIAL as TRIAL_WORD
from bireme.tune.execution.adapter import Setting, TrialRuns
from bireme.tune.execution.diagnosis import diagnose
from bireme.tune.execution.experiment import End, LaunchRequest, tail
from bireme.tune.execution.slots import SlotReservation
from bireme.tune.metrics.memory import MemoryUse
from bireme.tune.metrics.metric import Measure, Readings
from bireme.tune.metrics.reader import Reader
from bireme.tune.metrics.warm_up import steady_part
from bireme.tune.program.delivery import Courier
from bireme.tune.program.files import FETCHED, ProgramFiles
from bireme.tune.study.study import Study, Trial
from bireme.tune.study.trial_result import TrialResult

_CANNOT_START = (126, 127)
"""Exit codes of a program that cannot be executed, or is not found."""

_EVERY, _EVERY_MEMORY = 0.25, 0.05
"""Seconds between two polls of the figures of a running trial, and at its memory."""


class ProgramTrials(TrialRuns):
    """The study's adapter for any program.

    Args:
        elapsed: seconds that earlier runs of the study have taken.
    """

    def __init__(
        self,
        study: Study,
        measure: Measure,
        courier: Courier,
        setting: Setting,
        files: ProgramFiles,
        elapsed: float,
    ) -> None:
        super().__init__(study, setting, elapsed)
        self.measure, self._courier, self._files = measure, courier, files
        self._readers: dict[str, Reader] = {}
        self._read: dict[str, Readings] = {}
        self._ranks: dict[str, float | None] = {}
        self._cannot_start: set[str] = set()
        self._launching: float | None = None  # the most seconds that the launch of a trial took; None: unknown
        self._warm_up = 0  # the most readings that the warm-up of a trial had
        self._memory = MemoryUse(measure.memory)

    def _predicted(self, trial: Trial) -> float | None:
        """The mean of those that worked."""
        worked = [run.result.seconds for run in self._study.finished.runs if run.result.cause == "ok"]
        return sum(worked) / len(worked) if worked else None

    def _file(self, name: str, file: str) -> str:
        return self._files.trial(name, file)

    # -- before --------------------------------------------------------------------------------------

    def launch_request(self, name: str, reservation: SlotReservation, place: int) -> LaunchRequest:
        """Return what to start for a trial, and write its files."""
        trial = self._pending[name]
        delivered = self._courier.deliver(trial.point, self._files.trial(name), name)
        exports = [word for export in (f"{TRIAL}={name}", *delivered.exports) for word in ("--export", export)]
        folder = self._files.trial(name)
        files = [os.path.join(folder, file) for file in delivered.files]
        sources = (source for source in self.measure.sources.values() if source.kind == "file")
        results = [source.path.replace(f"{{{TRIAL_WORD}}}", name) for source in sources]
        options = (*exports, *self._carried(files, results, os.path.join(folder, FETCHED)))
        words = self._words(name, reservation, place, delivered.args, options)
        self._files.write_start(name, ("bireme", "run", *words), delivered.files)
        self._readers[name] = Reader(
            self.measure,
            self._file(name, "stdout.log"),
            self._file(name, "stderr.log"),
            directory=os.path.join(folder, FETCHED) if self._setting.ships else ".",
            name=name,
        )
        self._memory.begin(name, [slot for _, slots in reservation.places for slot in slots])
        return self._request(name, words).replace(
            prune_reason=lambda seconds: self._prune_reason(name, seconds),
            every=_EVERY_MEMORY if self.measure.memory else _EVERY,
        )

    def _prune_reason(self, name: str, seconds: float) -> str:
        self._memory.look()
        reader = self._readers[name]
        reader.update()
        values = reader.values(self.measure.goals[0].name)
        warm_up = max(self._warm_up, steady_part(values).left_out) if values else 0
        running = 0.0 if self._launching is None else seconds - self._launching
        return self._study.reason_to_prune(name, running, values[warm_up:])

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

    def tell(self, name: str, result: TrialResult) -> Mapping[str, object]:
        """Report a result to the study; returns what the journal keeps beside it.

        Raises:
            BadInputError: the first trial shows that the study is described wrongly, so that no trial could count.
        """
        trial, readings, ranks = self._pending[name], self._read.pop(name), self._ranks.pop(name)
        undescribed = result.cause == "no metric" and not readings.diverged
        first = not any(run.result.counts for run in self._study.finished.runs)
        if first and (undescribed or name in self._cannot_start):
            raise BadInputError(result.reason, hint=f"the output of the trial is in {self._files.trial(name)}")
        self._ended(name)
        parts = _parts(readings, result.seconds, ranks)
        self._launching = max(self._launching or 0.0, parts["launch"])
        self._warm_up = max(self._warm_up, readings.warm_up.get(self.measure.goals[0].name, 0))
        self._study.tell(name, result)
        return {
            **{each: value for each, value in trial.as_dict().items() if each != "name"},
            "elapsed": round(self.elapsed, 3),
            "figures": dict(result.metrics),
            "units": dict(readings.units),
            **_in_short(readings),
            **({"notes": list(readings.notes)} if readings.notes else {}),
            "parts": parts,
        }


def _seconds_of_ranks(end: End) -> float | None:
    """How long the slowest rank took; None if the run left no report."""
    ends = (end.report or {}).get("ends")
    seconds = [each.get("seconds") for each in ends if isinstance(each, dict)] if isinstance(ends, list) else []
    return max((float(value) for value in seconds if isinstance(value, (int, float))), default=None)


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
