"""Runs a trial as an experiment: writes its files and command, and judges its end."""

from __future__ import annotations

import os
from collections.abc import Mapping

from bireme.resources import extension_locks
from bireme.tune.deepspeed.command import experiment_args, fits_argument
from bireme.tune.deepspeed.config import SECTION
from bireme.tune.deepspeed.files import REPEATED, StudyFiles, facts_of_deepspeed
from bireme.tune.deepspeed.results import (
    METRICS,
    PROFILE,
    last_step,
    read_metrics,
    read_model_info,
    samples_per_second,
    told,
    with_goal,
)
from bireme.tune.deepspeed.space import STAGE
from bireme.tune.deepspeed.stages import Stages
from bireme.tune.execution.adapter import Setting, TrialRuns
from bireme.tune.execution.diagnosis import diagnose
from bireme.tune.execution.experiment import End, LaunchRequest, tail
from bireme.tune.execution.slots import SlotReservation
from bireme.tune.study.study import Study
from bireme.tune.study.trial import Trial
from bireme.tune.study.trial_result import TrialResult

_EVERY = 0.2
"""Seconds between two looks whether a run has measured: PyTorch takes a second to end, a fifth of a short run."""

_SLACK = 2
"""A run this many steps past ``end_profile_step`` ignores tuning: DeepSpeed would have exited after one step."""

_LONGER = 0.15
"""A repeated run measures for this part of the time that the first run took, start included."""

_MOST_STEPS = 100
"""And for no more steps."""


class Trials(TrialRuns):
    """The adapter of a study for a DeepSpeed script.

    Args:
        stages: the study's sampler.
        by_file: whether the script gets the path of its configuration, not the configuration itself.
        circumstances: kept in the journal with each result (`bireme.tune.deepspeed.tuning.Circumstances`).
    """

    def __init__(
        self,
        study: Study,
        stages: Stages,
        setting: Setting,
        files: StudyFiles,
        *,
        by_file: bool,
        circumstances: Mapping[str, object],
        elapsed: float = 0.0,
    ) -> None:
        super().__init__(study, setting, elapsed)
        self.stages, self.space, self.section = stages, stages.space, stages.section
        self.metric = METRICS[self.section.metric]
        self._files, self._circumstances, self._by_file = files, circumstances, by_file
        self._numbers = {run.trial.name: number for number, run in enumerate(study.finished.runs)}

    @property
    def stop_reason(self) -> str:
        """Why nothing is left to try; "" while something is left or pending, or could not be run."""
        causes = {run.result.cause for run in self._study.finished.runs}
        return "" if "infrastructure" in causes else super().stop_reason

    def _predicted(self, trial: Trial) -> float | None:
        """The mean of the trials of its ZeRO stage that worked, or of all."""
        worked = [run for run in self._study.finished.searched if run.result.cause == "ok"]
        alike = [run for run in worked if run.trial.point[STAGE] == trial.point.get(STAGE)] or worked
        return sum(run.result.seconds for run in alike) / len(alike) if alike else None

    def _file(self, name: str, file: str) -> str:
        return self._files.result(name, file)

    # -- before --------------------------------------------------------------------------------------

    def launch_request(self, name: str, reservation: SlotReservation, place: int) -> LaunchRequest:
        """Return what to start for a trial, and write its files."""
        trial, shape = self._pending[name], self._setting.shape
        written = self._file(name, "model_info.json" if name == PROFILE else "metrics.json")
        written = os.path.relpath(written) if self._setting.ships else written
        ds_config = self.ds_config(trial, written)
        ds_config["steps_per_print"] = 1  # a log line for each step, which gives its time
        path = self._file(name, "ds_config.json") if self._by_file or not fits_argument(ds_config) else ""
        args = experiment_args(self._setting.args, ds_config, self.section.arg_mappings, path=path)
        files = [self._file(name, file) for file in ("ds_config.json", "exp.json")]
        words = self._words(name, reservation, place, args, self._carried(files, [written], ""))
        width = {"num_nodes": shape.nodes, "num_gpus": shape.slots}
        if REPEATED not in name:
            self._files.write_experiment(name, ds_config, **width)
        facts = facts_of_deepspeed(self._files, name, ds_config, words[: len(words) - len(args) - 1])
        number = self._numbers.setdefault(name, len(self._numbers))
        self._files.write_start(
            name, ds_config, ("bireme", "run", *words), exp_id=number, **width, **facts, slots=reservation.include()
        )
        return self._request(name, words).replace(is_measured=lambda: self._is_measured(name), every=_EVERY)

    def ds_config(self, trial: Trial, path: str) -> dict[str, object]:
        """The configuration of a trial, a new one each time.

        Args:
            path: the file that DeepSpeed is to write before it exits.
        """
        if trial.phase == "profile":
            return self.space.profile_config(path)
        config = self.space.ds_config(trial.point, metric_path=path)
        section = config.get(SECTION)
        if isinstance(section, dict):
            section["end_profile_step"] = self.last_step(trial)
        return config

    def last_step(self, trial: Trial) -> int:
        """The step at whose end a trial has measured.

        A repeated run measures for longer: a few steps are soon over, and their time says little.
        """
        end, first = self.section.end_profile_step, next(iter(self._study.finished.of(trial.point)), None)
        if trial.phase not in ("screen", "confirm") or not self.metric.clocked or first is None:
            return end
        if not first.result.samples:
            return end
        steps = _LONGER * first.result.seconds * first.result.samples / self.space.batch_of(trial.point)
        return max(end, self.section.start_profile_step + min(_MOST_STEPS, round(steps)))

    def _is_measured(self, name: str) -> bool:
        """Whether a run has measured, or is past the steps in which it should have.

        A DeepSpeed engine that then does not exit, such as the pipeline engine, ignores tuning.
        """
        if read_metrics(self._file(name, "metrics.json")).values:
            return True
        steps = last_step(tail(self._file(name, "stdout.log")))
        return steps > self.last_step(self._pending[name]) + _SLACK

    # -- after ---------------------------------------------------------------------------------------

    def judge(self, name: str, end: End) -> TrialResult:
        """Read the figures of a run that has ended, and decide its result."""
        if name == PROFILE:
            info = read_model_info(self._file(name, "model_info.json"))
            figures, reason = info.as_metrics(), info.reason
        else:
            metrics = read_metrics(self._file(name, "metrics.json"))
            figures, reason = metrics.values, metrics.reason
        if end.is_measured:
            return self._ended_by_us(name, end, figures, reason)
        if REPEATED in name and self.metric.clocked and self._samples(name) is not None:
            reason = ""  # with too little data for more steps, the clock has measured what there was
        result = diagnose(end, figures, reason, tail(self._file(name, "stderr.log")))
        if result.cause == "no metric" and not self._is_deepspeed(name):
            hint = "the script's output does not mention DeepSpeed: does it call deepspeed.initialize?"
            return result.replace(reason=f"{result.reason}; {hint}")
        if result.cause == "timed out" and (locks := extension_locks.stale(self._setting.environ)):
            removal = extension_locks.removal(locks[0])
            return result.replace(reason=f"{result.reason}; perhaps it waited for a stale lock of PyTorch: {removal}")
        return self._measured(name, result.replace(samples=self._samples(name)))

    def _ended_by_us(self, name: str, end: End, figures: Mapping[str, float], reason: str) -> TrialResult:
        """The result of a run that the tuner ended; without figures of DeepSpeed our own clock gives the throughput."""
        samples = self._samples(name)
        if not figures and samples is not None:
            figures, reason = {"throughput": samples}, ""
        if reason:
            return TrialResult(
                cause="no metric",
                reason=f"{reason}; it continued past end_profile_step and was ended",
                seconds=end.seconds,
            )
        result = TrialResult(cause="ok", seconds=end.seconds, metrics=dict(figures), samples=samples)
        return self._measured(name, result)

    def _measured(self, name: str, result: TrialResult) -> TrialResult:
        """The result with the metric of the goal."""
        if name == PROFILE:
            return result
        return with_goal(result, self.section.metric, self.space.batch_of(self._pending[name].point))

    def _is_deepspeed(self, name: str) -> bool:
        """Whether a run has left a sign of DeepSpeed: a file of figures, or its name in the output."""
        if any(os.path.exists(self._file(name, file)) for file in ("metrics.json", "model_info.json")):
            return True
        logs = (tail(self._file(name, file)) for file in ("stdout.log", "stderr.log"))
        return any("deepspeed" in log.lower() for log in logs)

    def _samples(self, name: str) -> float | None:
        if name == PROFILE:
            return None
        output, point = self._file(name, "stdout.log"), self._pending[name].point
        return samples_per_second(output, self.space.batch_of(point), self.section.start_profile_step)

    def tell(self, name: str, result: TrialResult) -> Mapping[str, object]:
        """Report a result to the study; returns what the journal keeps beside it."""
        trial = self._ended(name)
        self._study.tell(name, result)
        figures = told(result, self.section.metric)
        return {**trial.as_dict(), "elapsed": round(self.elapsed, 3), **figures, **self._circumstances}
