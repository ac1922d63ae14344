"""A study of a DeepSpeed configuration: what identifies it, how it resumes, and the command of the real job.

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
from bireme.tune.deepspeed.adapter import Trials
from bireme.tune.deepspeed.command import find_config, real_job
from bireme.tune.deepspeed.config import Document, check_config, read_config
from bireme.tune.deepspeed.files import LOCK, StudyFiles, sweep
from bireme.tune.deepspeed.results import METRICS, ModelInfo, goal_of, told, with_goal
from bireme.tune.deepspeed.space import STAGE, TuningSpace, read_space
from bireme.tune.deepspeed.stages import Stages
from bireme.tune.execution.adapter import Setting, TrialRuns
from bireme.tune.launcher import RealJob
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
from bireme.tune.study.trial import Answer
from bireme.value import Value

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


class DeepSpeedStudy:
    """What `bireme.tune.launcher` needs to know of a study of a DeepSpeed configuration.

    Args:
        setting: how its trials are run.
        real: the command of the real job up to the script, such as ``("bireme", "run", …, script)``.
        by_file: whether the script gets the path of its configuration, not the configuration itself.
        capacity: bytes of memory of a GPU; None if unknown.
        confidence, effect: see `Study`; without confidence every configuration is run once.
        seconds: the budget of wall time; None: no limit.
        confirm: see `Study`.

    Raises:
        BadInputError: the configuration is wrong.
    """

    lock = LOCK
    folders: tuple[str, ...]
    bounds: Mapping[str, object]
    study: Study
    trials: TrialRuns

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
        self.setting, self.real, self.capacity, self._by_file = setting, real, capacity, by_file
        self.config = read_config(find_config(setting.args).path)
        self._space = read_space(self.config, setting.shape.size, setting.args)
        self._stages = Stages(self._space, setting.shape.size, capacity=capacity)
        self._files = StudyFiles.at(self.config.autotuning.results_dir, self.config.autotuning.exps_dir)
        self._now = circumstances(setting.limit, setting.launch.script)
        self.folders = (self._files.results_dir, self._files.exps_dir)
        slots = sum(len(ids) for ids in setting.launch.pool.slots.values())
        side_by_side = max(1, slots // setting.shape.size)
        share(confirm or CONFIRM)  # a wrong one is refused before anything starts
        self.bounds = {
            "confidence": confidence,
            "effect": effect,
            "seconds": seconds,
            "confirm": confirm,
            "side_by_side": side_by_side,
            "goals": [goal_of(self.config.autotuning.metric).as_dict()],
            "script_digest": self._now.script,
        }

    def prepare(self) -> None:
        """Create the folders."""
        self._files.prepare()

    def resume(self, journal: Journal) -> tuple[StudyRecords, tuple[str, ...]]:
        """Resume the study of the journal, or begin one."""
        identity = {
            "config": dict(self.config.data),
            "script": self.setting.launch.script,
            "args": list(self.setting.args),
            "nodes": self.setting.shape.nodes,
            "slots": self.setting.shape.slots,
        }
        known, notes = resume(journal, self._files, identity, self._now, overwrite=self.config.autotuning.overwrite)
        return in_common_words(known), notes

    def begin(self, known: StudyRecords) -> tuple[str, ...]:
        """Make the study and its trials of what is known."""
        self.study = make_study(self._stages, **_for_study(self.bounds))
        restore(self.study, known)
        self.trials = Trials(
            self.study,
            self._stages,
            self.setting,
            self._files,
            by_file=self._by_file,
            circumstances=self._now.as_dict(),
            elapsed=known.elapsed,
        )
        return (self._stages.warning, *extension_locks.warnings(self.setting.environ))

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

    def write_baseline(self, baseline: Point) -> RealJob:
        """Nothing: without a default, the baseline is the best."""
        del baseline
        return RealJob()

    def write_best(self, best: Point) -> RealJob:
        """Write the best configuration, and the command of the real job."""
        ds_config, mappings = self._space.ds_config(best), self.config.autotuning.arg_mappings or {}
        *real, script = self.real
        sent = ("--ship_also", self._files.best_config) if self.setting.ships else ()
        command = real_job((*real, *sent, script), self.setting.args, self._files.best_config, ds_config, mappings)
        self._files.write_best(ds_config, command)
        return RealJob(command=command)


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

    Raises:
        BadInputError: the folder holds another study, which must not be overwritten.
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


def answer_of(known: StudyRecords) -> Answer:
    """What the study itself would answer, made again of its journal."""
    known, identity = in_common_words(known), known.identity
    space = _space_of(known)
    study = make_study(Stages(space, _world(identity)), **_for_study(identity))
    restore(study, known)
    return study.answer


def _for_study(bounds: Mapping[str, Any]) -> dict[str, Any]:
    names = ("confidence", "effect", "seconds", "confirm", "side_by_side")
    return {name: bounds[name] for name in names if name in bounds}


def _space_of(known: StudyRecords) -> TuningSpace:
    identity = known.identity
    config = check_config(Document("", dict(identity["config"]), {}))
    return read_space(config, _world(identity), identity["args"])


def _world(identity: Mapping[str, Any]) -> int:
    return int(identity["nodes"]) * int(identity["slots"])
