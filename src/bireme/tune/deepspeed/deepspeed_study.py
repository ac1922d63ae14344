"""A study of a DeepSpeed configuration: what identifies it, its trials, how it resumes, and the real job."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from bireme.resources import extension_locks
from bireme.tune.deepspeed.command import experiment_args, find_config, fits_argument, real_job
from bireme.tune.deepspeed.config import SECTION, Document, check_config, read_config
from bireme.tune.deepspeed.files import LOCK, REPEATED, StudyFiles, sweep
from bireme.tune.deepspeed.results import (
    METRICS,
    PROFILE,
    ModelInfo,
    goal_of,
    last_step,
    read_metrics,
    read_model_info,
    samples_per_second,
    told,
    with_goal,
)
from bireme.tune.deepspeed.space import STAGE, TuningSpace, read_space
from bireme.tune.deepspeed.stages import Stages
from bireme.tune.execution.adapter import Adapter, RealJob, Setting
from bireme.tune.execution.diagnosis import diagnose
from bireme.tune.execution.experiment import End, LaunchRequest, tail
from bireme.tune.execution.slot_scheduler import SlotReservation
from bireme.tune.report.text import table
from bireme.tune.space.points import Point, key_of
from bireme.tune.store.journal import Journal
from bireme.tune.store.records import Record, StudyRecords, result_of
from bireme.tune.store.resume import Successor, digest_of, restore
from bireme.tune.study.budget import CONFIRM, share
from bireme.tune.study.observations import Measurements
from bireme.tune.study.search import Proposal
from bireme.tune.study.study import Study
from bireme.tune.study.trial import Trial, TrialResult

_EVERY = 0.2
"""Seconds between two looks whether a run has measured: PyTorch takes a second to end, a fifth of a short run."""

_SLACK = 2
"""A run this many steps past ``end_profile_step`` ignores tuning: DeepSpeed would have exited after one step."""

_LONGER = 0.15
"""A repeated run measures for this part of the time that the first run took, start included."""

_MOST_STEPS = 100
"""And for no more steps."""

_NEAR = 0.25
"""Figures of single runs of one configuration differ by up to this part. What is worse by more does not win."""


class DeepSpeedStudy(Adapter):
    """The adapter of a study of a DeepSpeed configuration.

    Args:
        setting: how its trials are run.
        real: the command of the real job up to the script, such as ``("bireme", "run", …, script)``.
        by_file: whether the script gets the path of its configuration, not the configuration itself.
        capacity: bytes of memory of a GPU; None if unknown.
        confidence, effect, confirm: see `Study`; without confidence every configuration is run once.
        seconds: the budget of wall time; None: no limit.
    """

    lock = LOCK

    def __init__(
        self,
        setting: Setting,
        real: tuple[str, ...],
        *,
        by_file: bool = False,
        capacity: int | None = None,
        confidence: float | None = 0.95,
        effect: float = 0.02,
        seconds: float | None = None,
        confirm: str | None = None,
    ) -> None:
        super().__init__(setting)
        self.real, self.capacity, self._by_file = real, capacity, by_file
        self._config = read_config(find_config(setting.args).path)
        self.section = self._config.autotuning
        self.metric = METRICS[self.section.metric]
        self.space = read_space(self._config, setting.shape.size, setting.args)
        self._stages = Stages(self.space, setting.shape.size, capacity=capacity)
        self._files = StudyFiles.at(self.section.results_dir, self.section.exps_dir)
        self._script = digest_of(setting.launch.script, 16)
        self._measured_names: set[str] = set()  # of running trials that have measured
        self.folders = (self._files.results_dir, self._files.exps_dir)
        share(confirm or CONFIRM)  # a wrong one is refused before anything starts
        self.bounds = {
            "confidence": confidence,
            "effect": effect,
            "seconds": seconds,
            "confirm": confirm,
            "side_by_side": setting.side_by_side,
            "goals": [goal_of(self.section.metric).as_dict()],
            "script_digest": self._script,
        }

    def prepare(self) -> None:
        """Create the folders."""
        self._files.prepare()

    def resume(self, journal: Journal) -> tuple[StudyRecords, Sequence[str]]:
        """Resume the study of the journal, or begin one."""
        known, notes = super().resume(journal)
        return in_common_words(known), notes

    def _successor(self) -> DeepSpeedSuccessor:
        launch, shape, limit = self.setting.launch, self.setting.shape, self.setting.limit
        identity = {
            "config": dict(self._config.data),
            "script": launch.script,
            "args": list(self.setting.args),
            "nodes": shape.nodes,
            "slots": shape.slots,
        }
        overwrite = self.section.overwrite
        return DeepSpeedSuccessor(identity, self._files, script=self._script, limit=limit, overwrite=overwrite)

    def _study_of(self, known: StudyRecords) -> Study:
        study = make_study(self._stages, **_for_study(self.bounds))
        restore(study, known)
        self._numbers = {run.trial.name: number for number, run in enumerate(study.finished.runs)}
        return study

    def begin(self, known: StudyRecords) -> tuple[str, ...]:
        """Go on with what is known of the study; returns what the user is told."""
        return (*super().begin(known), self._stages.warning, *extension_locks.warnings(self.setting.environ))

    def clean_up(self) -> None:
        """Remove the drafts of an earlier tuner."""
        sweep(self._files)

    @property
    def search_left(self) -> int | None:
        """How many trials of the search may still end at most; None if not known yet."""
        return self._stages.left(self.study.finished, self.study.pending)

    @property
    def left_out(self) -> Mapping[str, object]:
        """Facts for the journal about what was not tried."""
        return {"skipped": list(self._stages.skipped(self.study.finished))}

    def table(self) -> str:
        """DeepSpeed's table."""
        return spaces(self.study, self._stages)

    def write_best(self, best: Point) -> RealJob:
        """Write the best configuration, and the command of the real job."""
        ds_config, mappings = self.space.ds_config(best), self.section.arg_mappings or {}
        *real, script = self.real
        sent = ("--ship_also", self._files.best_config) if self.setting.ships else ()
        command = real_job((*real, *sent, script), self.setting.args, self._files.best_config, ds_config, mappings)
        self._files.write_best(ds_config, command)
        return RealJob(command=command)

    @property
    def stop_reason(self) -> str:
        """Why nothing is left to try; "" while something is left or pending, or could not be run."""
        causes = {run.result.cause for run in self.study.finished.runs}
        return "" if "infrastructure" in causes else super().stop_reason

    def _file(self, name: str, file: str) -> str:
        return self._files.result(name, file)

    # -- before --------------------------------------------------------------------------------------

    def launch_request(self, name: str, reservation: SlotReservation, place: int) -> LaunchRequest:
        """Return what to start for a trial, and write its files."""
        trial, shape = self._pending[name], self.setting.shape
        written = self._file(name, "model_info.json" if name == PROFILE else "metrics.json")
        written = os.path.relpath(written) if self.setting.ships else written
        ds_config = self.ds_config(trial, written)
        ds_config["steps_per_print"] = 1  # a log line for each step, which gives its time
        path = self._file(name, "ds_config.json") if self._by_file or not fits_argument(ds_config) else ""
        args = experiment_args(self.setting.args, ds_config, self.section.arg_mappings, path=path)
        files = [self._file(name, file) for file in ("ds_config.json", "exp.json")]
        words = self._words(name, reservation, place, args, self._carried(files, [written], ""))
        width = {"num_nodes": shape.nodes, "num_gpus": shape.slots}
        if REPEATED not in name:
            self._files.write_experiment(name, ds_config, **width)
        number = self._numbers.setdefault(name, len(self._numbers))
        self._measured_names.discard(name)
        slots = reservation.include()
        self._files.write_start(name, ds_config, words, args, exp_id=number, **width, slots=slots)
        return self._request(name, words).replace(end_reason=lambda _: self._end_reason(name), every=_EVERY)

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
        end, first = self.section.end_profile_step, next(iter(self.study.finished.of(trial.point)), None)
        if trial.phase not in ("screen", "confirm") or not self.metric.clocked or first is None:
            return end
        if not first.result.samples:
            return end
        steps = _LONGER * first.result.seconds * first.result.samples / self.space.batch_of(trial.point)
        return max(end, self.section.start_profile_step + min(_MOST_STEPS, round(steps)))

    def _end_reason(self, name: str) -> str:
        """Why a run is ended: at two looks it has measured, or is past the steps in which it should have.

        A DeepSpeed engine that then does not exit, such as the pipeline engine, ignores tuning.
        """
        if not read_metrics(self._file(name, "metrics.json")).values:
            steps = last_step(tail(self._file(name, "stdout.log")))
            if steps <= self.last_step(self._pending[name]) + _SLACK:
                return ""
        seen = name in self._measured_names
        self._measured_names.add(name)
        return "it continued past end_profile_step and was ended" if seen else ""

    # -- after ---------------------------------------------------------------------------------------

    def judge(self, name: str, end: End) -> TrialResult:
        """Read the figures of a run that has ended, and decide its result."""
        if name == PROFILE:
            info = read_model_info(self._file(name, "model_info.json"))
            figures, reason = info.as_metrics(), info.reason
        else:
            metrics = read_metrics(self._file(name, "metrics.json"))
            figures, reason = metrics.values, metrics.reason
        if end.end_reason:
            return self._ended_by_us(name, end, figures, reason)
        if REPEATED in name and self.metric.clocked and self._samples(name) is not None:
            reason = ""  # with too little data for more steps, the clock has measured what there was
        result = diagnose(end, figures, reason, tail(self._file(name, "stderr.log")))
        if result.cause == "no metric" and not self._is_deepspeed(name):
            hint = "the script's output does not mention DeepSpeed: does it call deepspeed.initialize?"
            return result.replace(reason=f"{result.reason}; {hint}")
        if result.cause == "timed out" and (locks := extension_locks.stale(self.setting.environ)):
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
                reason=f"{reason}; {end.end_reason}",
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
        self.study.tell(name, result)
        figures = told(result, self.section.metric)
        now = {"limit": self.setting.limit, "script": self._script}
        return {**trial.as_dict(), "elapsed": round(self.elapsed, 3), **figures, **now}


def make_study(
    stages: Stages,
    *,
    confidence: float | None = 0.95,
    effect: float = 0.02,
    seconds: float | None = None,
    confirm: str | None = None,
    side_by_side: int = 1,
    clock: Callable[[], float] = time.monotonic,
) -> Study:
    """The study of a DeepSpeed configuration."""
    space, metric = stages.space, stages.section.metric

    def name(proposal: Proposal, taken: Collection[str]) -> str:
        return space.trial_name(proposal.point, proposal.phase, proposal.round, taken)

    return Study(
        space.points,
        [goal_of(metric)],
        confidence=confidence or 0.95,
        effect=effect,
        seconds=seconds,
        clock=clock,
        side_by_side=side_by_side,
        sampler=stages,
        names=name,
        has_default=False,
        near=_NEAR,
        besides=lambda finished: _preferred(finished, metric),
        confirm="off" if confidence is None else confirm,
    )


def _preferred(finished: Measurements, name: str) -> list[Point]:
    """What DeepSpeed's own figure prefers, if the clock does not say that it is far from the best."""
    metric, goal = METRICS[name], goal_of(name).name
    runs = [run for run in finished.searched if run.result.cause == "ok" and run.result.metrics.get(metric.key)]
    if not metric.clocked or not runs:
        return []
    sign = 1.0 if metric.direction == "maximize" else -1.0
    first = max(runs, key=lambda run: sign * run.result.metrics[metric.key])
    most = max(sign * run.result.metrics[goal] for run in runs)
    near = sign * first.result.metrics[goal] >= most - _NEAR * abs(most)
    return [first.trial.point] if near else []


def spaces(study: Study, stages: Stages) -> str:
    """DeepSpeed's table: the best experiment of each ZeRO stage, and of all; "" before the first."""
    own, best = METRICS[stages.section.metric].key, study.answer.best
    points = {key_of(run.trial.point): run.trial.point for run in study.finished.searched if run.result.counts}
    rows = []
    for name, stage in [*((f"z{stage}", stage) for stage in sorted(stages.space.stages)), ("global", None)]:
        members = [point for point in points.values() if stage is None or point[STAGE] == stage]
        works = [(point, scores) for point in members if (scores := study.finished.scores(point))]
        first = max(works, key=lambda each: (each[0] == best, statistics.fmean(each[1])), default=None)
        if members:
            figures = [run.result.metrics.get(own) for run in study.finished.of(first[0])] if first else []
            value = next((f"{figure:.6g}" for figure in figures if figure is not None), "")
            rows.append((name, str(len(members)), value, stages.space.name(first[0]) if first else ""))
    return table(("tuning_space", "num_experiments", "best_metric_val", "best_exp_name"), rows) if rows else ""


# -- an earlier study in its folder --------------------------------------------------------------------


class DeepSpeedSuccessor(Successor):
    """A study of a DeepSpeed configuration, in whose folder an earlier one may be.

    A finished study is moved to folders beside, and run again, unless ``autotuning.overwrite`` forbids it.

    Args:
        script: the digest of the script; "": unknown.
        overwrite: ``autotuning.overwrite``.
    """

    must_agree = MappingProxyType(
        {
            "config": "configuration",
            "script": "script",
            "args": "list of arguments",
            "nodes": "width",
            "slots": "width",
        }
    )
    elsewhere = f"set {SECTION}.results_dir to another folder"

    def __init__(
        self, identity: Record, files: StudyFiles, *, script: str = "", limit: float | None = None, overwrite: bool
    ) -> None:
        super().__init__(identity, files.results_dir, limit=limit)
        self._files, self._script, self._overwrite = files, script, overwrite

    def replaces(self, known: StudyRecords) -> bool:
        """Whether it begins in place of an earlier study: also of a finished one, which is kept beside."""
        return (known.finished and self._overwrite) or super().replaces(known)

    def make_room(self, journal: Journal, known: StudyRecords) -> str:
        """Move what is finished, or of another program, to folders beside: its results would be taken for ours."""
        files = self._files
        if known.begun is not None and not (known.finished and self._overwrite):
            files.clear()
            return super().make_room(journal, known)
        if not self._overwrite or files.empty:
            return ""
        number = known.moved_to or files.first_free()
        journal.append({"moved to": number})  # if this is interrupted, the rest goes to the same folders
        return files.move(files.beside(number))

    def edited(self, begun: Record, end: Record) -> Sequence[str]:
        """The script, if a trial was run when it had another content."""
        script = end.get("script", "")
        return [self.identity["script"]] if self._script and script and self._script != script else []


# -- for those who look at it ------------------------------------------------------------------------


def in_common_words(known: StudyRecords) -> StudyRecords:
    """The records of a study; what an earlier version wrote in DeepSpeed's words is translated."""
    if "goals" in known.run and all("figures" in end for end in known.ends.values()):
        return known
    space = _space_of(known)
    name = space.config.autotuning.metric
    known.run = {**known.run, "goals": [goal_of(name).as_dict()]}
    for trial, end in known.ends.items():
        if "figures" not in end:
            phase, result = end.get("phase") or end["kind"], result_of(end)
            if phase != "profile":
                result = with_goal(result, name, space.batch_of(end["point"]))
            elif end.get("info"):
                result = result.replace(metrics={**result.metrics, **ModelInfo(**end["info"]).as_metrics()})
            known.ends[trial] = {**end, "ending": result.as_dict(), "phase": phase, **told(result, name)}
    return known


def study_of(known: StudyRecords) -> Study:
    """The study itself, made again of its journal."""
    known, identity = in_common_words(known), known.identity
    space = _space_of(known)
    study = make_study(Stages(space, _world(identity)), **_for_study(identity))
    restore(study, known)
    return study


def _for_study(bounds: Mapping[str, Any]) -> dict[str, Any]:
    names = ("confidence", "effect", "seconds", "confirm", "side_by_side")
    return {name: bounds[name] for name in names if name in bounds}


def _space_of(known: StudyRecords) -> TuningSpace:
    identity = known.identity
    config = check_config(Document("", dict(identity["config"]), {}))
    return read_space(config, _world(identity), identity["args"])


def _world(identity: Mapping[str, Any]) -> int:
    return int(identity["nodes"]) * int(identity["slots"])
