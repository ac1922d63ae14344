"""Runs a trial as an experiment: writes its files and command, and judges its end."""

from __future__ import annotations

import os
from collections.abc import Mapping

from bireme.resources import extension_locks
from bireme.tune.deepspeed.files import StudyFiles
from bireme.tune.deepspeed.results import ModelInfo, read_metrics, read_model_info
from bireme.tune.deepspeed.step_timing import last_step, samples_per_second
from bireme.tune.deepspeed.trial_command import experiment_args, fits_argument
from bireme.tune.deepspeed.tuning import Trial, Tuning
from bireme.tune.execution.adapter import Setting, TrialRuns
from bireme.tune.execution.diagnosis import diagnose
from bireme.tune.execution.experiment import End, LaunchRequest, tail
from bireme.tune.execution.slots import SlotReservation
from bireme.tune.study.trial_result import TrialResult

_EVERY = 0.2
"""Seconds between two checks whether a run has reported: PyTorch takes a second to end, a fifth of a short run."""

_SLACK = 2
"""A run this many steps past ``end_profile_step`` ignores tuning: DeepSpeed would have exited after one step."""


class Trials(TrialRuns[Trial]):
    """The study's adapter for a DeepSpeed script.

    Args:
        mappings: ``arg_mappings``, from keys of the configuration to flags of the script.
        by_file: whether the script gets the path of its configuration, not the configuration itself.
        circumstances: kept in the journal with each result (`bireme.tune.deepspeed.resume`).
    """

    def __init__(
        self,
        tuning: Tuning,
        setting: Setting,
        files: StudyFiles,
        *,
        mappings: Mapping[str, str],
        by_file: bool,
        circumstances: Mapping[str, object],
    ) -> None:
        super().__init__(tuning, setting)
        self._tuning, self._files, self._circumstances = tuning, files, circumstances
        self._mappings, self._by_file = mappings, by_file
        self._found: dict[str, ModelInfo] = {}

    def _predicted(self, trial: Trial) -> float | None:
        return trial.seconds

    def _file(self, name: str, file: str) -> str:
        return self._files.result(name, file)

    def starting(self, name: str) -> Mapping[str, object]:
        """The trial's configuration and phase, for those who look at a study while it runs."""
        trial = self._pending[name]
        return {"point": dict(trial.point), "phase": trial.phase, **({"round": trial.round} if trial.round else {})}

    # -- before --------------------------------------------------------------------------------------

    def launch_request(self, name: str, reservation: SlotReservation, place: int) -> LaunchRequest:
        """Return what to start for a trial, and write its files."""
        trial, shape = self._pending[name], self._setting.shape
        written = self._file(name, "model_info.json" if trial.profile else "metrics.json")
        written = os.path.relpath(written) if self._setting.ships else written
        ds_config = self._tuning.ds_config(trial, written)
        ds_config["steps_per_print"] = 1  # a log line for each step, which gives its time
        path = self._file(name, "ds_config.json") if self._by_file or not fits_argument(ds_config) else ""
        args = experiment_args(self._setting.args, ds_config, self._mappings, path=path)
        files = [self._file(name, file) for file in ("ds_config.json", "exp.json")]
        words = self._words(name, reservation, place, args, self._carried(files, [written], ""))
        width = {"num_nodes": shape.nodes, "num_gpus": shape.slots}
        if not trial.paired:
            self._files.write_experiment(name, ds_config, **width)
        self._files.write_start(name, ds_config, ("bireme", "run", *words), **width, slots=reservation.include())
        return self._request(name, words).replace(is_measured=lambda: self._is_measured(name), every=_EVERY)

    def _is_measured(self, name: str) -> bool:
        """Whether a run has reported its metrics, or is past the steps in which it should have.

        A DeepSpeed engine that then does not exit, such as the pipeline engine, ignores tuning.
        """
        if read_metrics(self._file(name, "metrics.json")).values:
            return True
        steps = last_step(tail(self._file(name, "stdout.log")))
        return steps > self._tuning.last_step(self._pending[name]) + _SLACK

    # -- after ---------------------------------------------------------------------------------------

    def judge(self, name: str, end: End) -> TrialResult:
        """Read the figures of a run that has ended, and decide its result."""
        metrics = read_metrics(self._file(name, "metrics.json"))
        figures, reason = metrics.values, metrics.reason
        if self._pending[name].profile:
            info = self._found[name] = read_model_info(self._file(name, "model_info.json"))
            figures, reason = {"num_params": float(info.params or 0)}, info.reason
        if end.is_measured:
            return self._ended_by_us(name, end, figures, reason)
        if self._pending[name].paired and self._tuning.by_clock and self._samples(name) is not None:
            reason = ""  # with too little data for more steps, the clock has measured what there was
        result = diagnose(end, figures, reason, tail(self._file(name, "stderr.log")))
        if result.cause == "no metric" and not self._is_deepspeed(name):
            hint = "the script's output does not mention DeepSpeed: does it call deepspeed.initialize?"
            return result.replace(reason=f"{result.reason}; {hint}")
        if result.cause == "timed out" and (locks := extension_locks.stale(self._setting.environ)):
            removal = extension_locks.removal(locks[0])
            return result.replace(reason=f"{result.reason}; perhaps it waited for a stale lock of PyTorch: {removal}")
        return result.replace(samples=self._samples(name)) if result.cause == "ok" else result

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
        return TrialResult(cause="ok", seconds=end.seconds, metrics=dict(figures), samples=samples)

    def _is_deepspeed(self, name: str) -> bool:
        """Whether a run has left a sign of DeepSpeed: a file of figures, or its name in the output."""
        if any(os.path.exists(self._file(name, file)) for file in ("metrics.json", "model_info.json")):
            return True
        logs = (tail(self._file(name, file)) for file in ("stdout.log", "stderr.log"))
        return any("deepspeed" in log.lower() for log in logs)

    def _samples(self, name: str) -> float | None:
        trial = self._pending[name]
        if trial.profile:
            return None
        output = self._file(name, "stdout.log")
        return samples_per_second(output, self._tuning.samples(trial), self._tuning.first_step)

    def tell(self, name: str, result: TrialResult) -> Mapping[str, object]:
        """Report a result to the study; returns what the journal keeps beside it."""
        trial, info = self._ended(name), self._found.pop(name, None)
        self._tuning.tell(name, result, info)
        facts: dict[str, object] = {"point": dict(trial.point), "kind": trial.phase, **self._circumstances}
        if trial.round:
            facts["round"] = trial.round
        return facts if info is None else {**facts, "info": info.as_dict()}
