"""Runs a whole DeepSpeed tuning study: reads the configuration, resumes or starts, and writes the best one found."""

from __future__ import annotations

import os
from collections.abc import Callable

from bireme.errors import BadInputError
from bireme.resources import extension_locks
from bireme.tune.deepspeed.config import Config, read_config
from bireme.tune.deepspeed.config_space import STAGE, read_space
from bireme.tune.deepspeed.files import StudyFiles
from bireme.tune.deepspeed.finals import Care
from bireme.tune.deepspeed.resume import circumstances, in_common_words, resume
from bireme.tune.deepspeed.stale_files import sweep
from bireme.tune.deepspeed.trial_command import find_config, real_job
from bireme.tune.deepspeed.trials import Trials
from bireme.tune.deepspeed.tuning import Tuning
from bireme.tune.execution.adapter import Setting
from bireme.tune.execution.runner import Callback, Conclusion, StudyRun
from bireme.tune.execution.slot_scheduler import Scheduler
from bireme.tune.report.text import summary, table
from bireme.tune.report.view import StudyView, view
from bireme.tune.store.folder import hide
from bireme.tune.store.journal import Journal
from bireme.tune.store.lock import ExperimentsLock
from bireme.tune.store.records import JOURNAL, StudyRecords
from bireme.tune.study.trial import Answer
from bireme.value import Value

LOCK = "experiments.lock"


class Request(Value):
    """What the user asked for.

    Attributes:
        real: the command of the real job up to the script, such as ``("bireme", "run", …, script)``.
        by_file: whether the script gets the path of its configuration, not the configuration itself.
        capacity: bytes of memory of a GPU; None if unknown.
        care: how sure the answer must be; None: every configuration is run once.
    """

    setting: Setting
    real: tuple[str, ...]
    by_file: bool = False
    capacity: int | None = None
    care: Care | None = Care()


class Result(Value):
    """The outcome of a study."""

    conclusion: Conclusion
    summary: str
    best: tuple[str, ...]
    files: StudyFiles


class Living:
    """A study that runs, for its display; ``known``: what its journal says."""

    def __init__(self, files: StudyFiles, known: StudyRecords, tuning: Tuning) -> None:
        self._files, self._known, self._tuning = files, known, tuning
        self.forecast = None  # a study that has begun knows how many trials are left

    def view(self, *, answered: bool) -> StudyView:
        """What is known of it now."""
        answer = self._tuning.answer if answered else Answer(best=None, baseline={})
        return view(self._files.results_dir, in_common_words(self._known), answer, running=True, hide=False)[0]

    @property
    def left(self) -> int | None:
        """How many trials may still end at most; None if not known yet."""
        return self._tuning.left


def autotune(request: Request, show: Callable[[Living], Callback]) -> Result:
    """Start or resume a study, and run it to its end.

    Raises:
        BadInputError: the configuration is wrong, or the folder is in use or holds another study; nothing was started.
        BiremeError: a file cannot be written; the results of finished experiments are kept.
    """
    config = read_config(find_config(request.setting.args).path)
    world = request.setting.shape.size
    space = read_space(config, world, request.setting.args)
    scheduler = Scheduler(request.setting.launch.pool.slots, order=request.setting.order, backfill=True)
    if reason := scheduler.impossible(request.setting.shape):
        raise BadInputError(
            f"no experiment can run: {reason}", hint="--num_nodes and --num_gpus set the size of an experiment"
        )
    files = StudyFiles.at(config.autotuning.results_dir, config.autotuning.exps_dir)
    files.prepare()
    for folder in (files.results_dir, files.exps_dir) if request.setting.ships else ():
        hide(folder)
    journal = Journal.open(os.path.join(files.results_dir, JOURNAL))
    try:
        with ExperimentsLock(os.path.join(files.results_dir, LOCK)) as lock:
            now = circumstances(request.setting.limit, request.setting.launch.script)
            known = StudyRecords(journal.records)
            journal.follower = known.take
            overwrite = config.autotuning.overwrite
            earlier, notes = resume(journal, files, _identity(config, request), now, overwrite=overwrite)
            care = _care(request)
            journal.append({"run": care.as_dict() if care else {"confidence": None}}, sync=False)
            tuning = Tuning(space, world, capacity=request.capacity, earlier=earlier, care=care)
            callback = show(Living(files, known, tuning))
            for note in (journal.note, *notes, tuning.warning, *extension_locks.warnings(request.setting.environ)):
                callback.note(note)
            if not lock.taken():
                callback.note("waiting for experiments of an earlier tuner to end")
                lock.wait()
            sweep(files)
            trials = Trials(
                tuning,
                request.setting,
                files,
                mappings=config.autotuning.arg_mappings or {},
                by_file=request.by_file,
                circumstances=now.as_dict(),
            )
            conclusion = StudyRun(trials, scheduler, journal, callback, keep=(lock.fileno(),)).run()
            return _conclude(request, config, tuning, known, conclusion, journal, files)
    finally:
        journal.close()


def _care(request: Request) -> Care | None:
    """The user's wish, with as many rounds side by side as fit."""
    slots = sum(len(ids) for ids in request.setting.launch.pool.slots.values())
    return request.care and request.care.replace(side_by_side=max(1, slots // request.setting.shape.size))


def _identity(config: Config, request: Request) -> dict[str, object]:
    """What identifies a study, as JSON reads it back: a study with the same identity is resumed."""
    return {
        "config": dict(config.data),
        "script": request.setting.launch.script,
        "args": list(request.setting.args),
        "nodes": request.setting.shape.nodes,
        "slots": request.setting.shape.slots,
    }


# -- the end -----------------------------------------------------------------------------------------


def _conclude(
    request: Request,
    config: Config,
    tuning: Tuning,
    known: StudyRecords,
    conclusion: Conclusion,
    journal: Journal,
    files: StudyFiles,
) -> Result:
    """Write the summary and the best configuration, whether the study is over or was interrupted."""
    why = "it was interrupted" if conclusion.signum else conclusion.stop_reason or "some experiments could not be run"
    best: tuple[str, ...] = ()
    if tuning.winner is not None:
        ds_config = tuning.ds_config(tuning.winner.trial)
        mappings = config.autotuning.arg_mappings or {}
        *real, script = request.real
        sent = ("--ship_also", files.best_config) if request.setting.ships else ()
        best = real_job((*real, *sent, script), request.setting.args, files.best_config, ds_config, mappings)
        files.write_best(ds_config, best)
    over = (
        {"over": conclusion.stop_reason} if conclusion.stop_reason and not conclusion.signum else {}
    )  # so it may be overwritten
    left = {"skipped": list(tuning.skipped), "given up": list(tuning.given_up)}
    record = {**over, "answer": tuning.answer.as_dict(), "command": list(best), "why": why, **left}
    journal.follower = None
    known.take(record)
    seen = view(files.results_dir, in_common_words(known), tuning.answer, running=False, hide=False)[0]
    text = summary(seen, spaces(tuning))
    files.write_summary(text)
    journal.append(record)  # last: a study is over when its results are written
    return Result(conclusion=conclusion, summary=text, best=best, files=files)


def spaces(tuning: Tuning) -> str:
    """DeepSpeed's table: the best experiment of each stage, and of all; "" before the first."""
    groups = {
        f"z{stage}": [row for row in tuning.completed if row.trial.point[STAGE] == stage]
        for stage in sorted(tuning.space.stages)
    }
    rows = []
    for name, members in {**groups, "global": list(tuning.completed)}.items():
        best = tuning.best_of(members)
        if members:
            value = "" if best is None else f"{best.value:.6g}"
            rows.append((name, str(len(members)), value, "" if best is None else best.trial.name))
    return table(("tuning_space", "num_experiments", "best_metric_val", "best_exp_name"), rows) if rows else ""
