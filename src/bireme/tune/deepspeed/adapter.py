"""A study of a DeepSpeed configuration: what identifies it, its trials, how it resumes, and the real job.

An experiment that measured or ran out of memory depends only on its configuration, and is never run again. One that
failed or timed out also depends on its circumstances: it is run again if the script has changed or the limit is longer.
"""

from __future__ import annotations

import hashlib
import os
import statistics
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from bireme.errors import BadInputError, few
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
from bireme.tune.store.folder import SUMMARY
from bireme.tune.store.journal import Journal
from bireme.tune.store.records import Record, StudyRecords, result_of
from bireme.tune.store.resume import restore
from bireme.tune.study.budget import CONFIRM, share
from bireme.tune.study.observations import Measurements
from bireme.tune.study.search import Proposal
from bireme.tune.study.study import Study
from bireme.tune.study.trial import Trial
from bireme.tune.study.trial_result import TrialResult
from bireme.value import Value

_EVERY = 0.2
"""Seconds between two looks whether a run has measured: PyTorch takes a second to end, a fifth of a short run."""

_SLACK = 2
"""A run this many steps past ``end_profile_step`` ignores tuning: DeepSpeed would have exited after one step."""

_LONGER = 0.15
"""A repeated run measures for this part of the time that the first run took, start included."""

_MOST_STEPS = 100
"""And for no more steps."""

_CONCLUSIVE = ("ok", "out of memory", "over limit", "pruned")
"""Causes after which an experiment is never run again, whatever its circumstances."""

_IDENTITY = {
    "config": "configuration",
    "script": "script",
    "args": "list of arguments",
    "nodes": "width",
    "slots": "width",
}

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
        self._now = circumstances(setting.limit, setting.launch.script)
        self.folders = (self._files.results_dir, self._files.exps_dir)
        share(confirm or CONFIRM)  # a wrong one is refused before anything starts
        self.bounds = {
            "confidence": confidence,
            "effect": effect,
            "seconds": seconds,
            "confirm": confirm,
            "side_by_side": setting.side_by_side,
            "goals": [goal_of(self.section.metric).as_dict()],
            "script_digest": self._now.script,
        }

    def prepare(self) -> None:
        """Create the folders."""
        self._files.prepare()

    def resume(self, journal: Journal) -> tuple[StudyRecords, tuple[str, ...]]:
        """Resume the study of the journal, or begin one."""
        identity = {
            "config": dict(self._config.data),
            "script": self.setting.launch.script,
            "args": list(self.setting.args),
            "nodes": self.setting.shape.nodes,
            "slots": self.setting.shape.slots,
        }
        known, notes = resume(journal, self._files, identity, self._now, overwrite=self.section.overwrite)
        return in_common_words(known), notes

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

    def _predicted(self, trial: Trial) -> float | None:
        """The mean of the trials of its ZeRO stage that worked, or of all."""
        worked = [run for run in self.study.finished.searched if run.result.cause == "ok"]
        alike = [run for run in worked if run.trial.point[STAGE] == trial.point.get(STAGE)] or worked
        return sum(run.result.seconds for run in alike) / len(alike) if alike else None

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
        slots = reservation.include()
        self._files.write_start(name, ds_config, words, args, exp_id=number, **width, slots=slots)
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
        end, first = self.section.end_profile_step, next(iter(self.study.finished.of(trial.point)), None)
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
        self.study.tell(name, result)
        figures = told(result, self.section.metric)
        return {**trial.as_dict(), "elapsed": round(self.elapsed, 3), **figures, **self._now.as_dict()}


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


# -- an earlier run of it ----------------------------------------------------------------------------


class Circumstances(Value):
    """``limit``: seconds that an experiment may take; None: any. ``script``: digest of its content; "" if unknown."""

    limit: float | None = None
    script: str = ""

    def changed(self, record: Record) -> str:
        """Why the experiment of this record is run again, or ""."""
        cause, script = record["ending"]["cause"], record.get("script", "")
        if cause in _CONCLUSIVE:
            return ""
        if cause == "timed out" and (self.limit is None or self.limit > (record.get("limit") or 0.0)):
            return "--experiment_limit is longer"
        return "the script has changed" if self.script and script and self.script != script else ""


def circumstances(limit: float | None, script: str) -> Circumstances:
    """The present circumstances. A script that is not a file (a module, a program on PATH) is not read."""
    if not os.path.isfile(script):
        return Circumstances(limit)
    try:
        with open(script, "rb") as file:
            return Circumstances(limit, hashlib.blake2b(file.read(), digest_size=16).hexdigest())
    except OSError:  # another user may run it and be able to read it
        return Circumstances(limit)


def resume(
    journal: Journal, files: StudyFiles, identity: Record, now: Circumstances, *, overwrite: bool
) -> tuple[StudyRecords, tuple[str, ...]]:
    """Resume the last study of a journal, or begin a new one.

    The last study is resumed if it is the same one and unfinished. With ``overwrite``, a finished study is kept in
    folders beside; without, it is resumed if it is the same one, and so gives its results. Any other study is refused.

    Args:
        identity: what identifies the study, as JSON reads it back.
        overwrite: ``autotuning.overwrite``.

    Returns:
        (what is known of the study, notes for the user).
    """
    known = StudyRecords(journal.records)
    if known.begun == identity and not (known.finished and overwrite):
        return known, _taken_over(known, now, files)
    if known.begun is not None:
        _must_not_be_in_the_way(known, identity, files, overwrite)
    note = ""
    if known.begun is not None and not known.finished:
        note = "removed an unfinished study in which no experiment had ended"
        files.clear()
    elif overwrite and not files.empty:  # or of another program: its results would be taken for ours if nothing works
        number = known.moved_to or files.first_free()
        journal.append({"moved to": number})  # if this is interrupted, the rest goes to the same folders
        note = _move(files, files.beside(number))
    journal.append({"study": identity})
    return StudyRecords([{"study": identity}]), (note,) if note else ()


def _taken_over(known: StudyRecords, now: Circumstances, files: StudyFiles) -> tuple[str, ...]:
    """Leave out what is run again; returns notes for the user."""
    again = {name: reason for name, record in known.ends.items() if (reason := now.changed(record))}
    known.keep({name: {} for name in known.ends if name not in again})
    notes = [f"resuming the study: {len(known.ends)} of its experiments have ended"] if known.ends or again else []
    for reason in dict.fromkeys(again.values()):
        notes.append(f"running again, because {reason}: {few([name for name in again if again[name] == reason])}")
    failed = sum(record["ending"]["cause"] == "failed" for record in known.ends.values())
    if failed:
        notes.append(f"{failed} of them failed and are not run again; remove {files.results_dir} to start afresh")
    return tuple(notes)


def _must_not_be_in_the_way(known: StudyRecords, identity: Record, files: StudyFiles, overwrite: bool) -> None:
    """Raise BadInputError if the folder holds results of another study that must not be overwritten."""
    if known.ends and not known.finished:
        begun = known.begun or {}
        different = [word for key, word in _IDENTITY.items() if begun.get(key) != identity.get(key)]
        other = " and ".join(dict.fromkeys(different))
        what = f"an unfinished study with another {other}: {len(known.ends)} of its experiments have ended"
        raise BadInputError(
            f"{files.results_dir} holds {what}",
            hint=f"use the {other} of that study, set autotuning.results_dir to another folder, or remove this one",
        )
    if known.finished and not overwrite:
        raise BadInputError(
            f"{files.results_dir} holds the results of another study",
            hint="set autotuning.results_dir to another folder, or autotuning.overwrite to true",
            where="autotuning.overwrite",
        )


def _move(files: StudyFiles, to: StudyFiles) -> str:
    """Move the files of an earlier study beside; returns the note about it."""
    try:
        ended = time.localtime(os.stat(os.path.join(files.results_dir, SUMMARY)).st_mtime)
        when = time.strftime(" of %Y-%m-%d %H:%M", ended)
    except OSError:
        when = ""
    files.move(to)
    return f"the results of the earlier study{when} are now in {to.results_dir}"


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
