"""Runs a whole study of a program: resumes or starts it, and writes the answer and the command of the real job."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping

from bireme.errors import BadInputError
from bireme.planning.exports import TUNER
from bireme.tune.define.declarations import TRIAL
from bireme.tune.define.spec import StudySpec
from bireme.tune.execution.adapter import Setting
from bireme.tune.execution.runner import Callback, Conclusion, StudyRun
from bireme.tune.execution.slot_scheduler import Scheduler
from bireme.tune.metrics import memory as memory_use
from bireme.tune.metrics.metric import Measure
from bireme.tune.program.delivery import Courier
from bireme.tune.program.files import LOCK, ProgramFiles, digests
from bireme.tune.program.resume import restore
from bireme.tune.program.trials import ProgramTrials
from bireme.tune.report.text import summary
from bireme.tune.report.view import StudyView, view
from bireme.tune.store import warm_start
from bireme.tune.store.folder import hide
from bireme.tune.store.journal import Journal
from bireme.tune.store.lock import ExperimentsLock
from bireme.tune.store.records import JOURNAL, Record, StudyRecords
from bireme.tune.store.resume import Successor, resume
from bireme.tune.study.study import Answer, Study
from bireme.value import Value


class Request(Value):
    """What the user asked for.

    Attributes:
        real: the command of the real job up to the program's arguments, for some exports.
    """

    study: StudySpec
    setting: Setting
    real: Callable[[tuple[str, ...]], tuple[str, ...]]


class ProgramResult(Value):
    """The outcome of a study.

    Attributes:
        best: the command of the real job; empty if nothing worked.
        exports: the words in it that set environment variables to the values found.
    """

    conclusion: Conclusion
    answer: Answer
    summary: str
    best: tuple[str, ...]
    exports: tuple[str, ...]
    files: ProgramFiles


class Living:
    """A study that runs, for its display; ``known``: what its journal says."""

    def __init__(self, files: ProgramFiles, known: StudyRecords, study: Study) -> None:
        self._files, self._known, self._study = files, known, study

    def view(self, *, answered: bool) -> StudyView:
        """What is known of it now."""
        answer = self._study.answer if answered else Answer(best=None, baseline={})
        return view(self._files.results_dir, self._known, answer, running=True, hide=False)[0]

    @property
    def left(self) -> int | None:
        """How many trials may still end at most."""
        return self._study.left

    @property
    def more_rounds(self) -> int | None:
        """About how many more rounds decide everything."""
        return self._study.more_rounds


def tune(request: Request, show: Callable[[Living], Callback]) -> ProgramResult:
    """Start or resume a study, and run it to its end.

    Raises:
        BadInputError: it is described wrongly, or the folder is in use or holds another study; nothing was started, or
            one trial at most.
        BiremeError: a file cannot be written; the results of finished trials are kept.
    """
    memory_use.check(request.study.measure, local=request.setting.launch.pool.local)
    side_by_side = _side_by_side(request)
    _keep_files_apart(request.study.measure, side_by_side)
    courier = Courier(request.study.declaration, request.setting.args)
    scheduler = Scheduler(request.setting.launch.pool.slots, order=request.setting.order, backfill=True)
    if reason := scheduler.impossible(request.setting.shape):
        raise BadInputError(f"no trial can run: {reason}", hint="--num_nodes and --num_gpus set the size of a trial")
    files = ProgramFiles.at(request.study.results_dir)
    earlier = [_told(path, files, request) for path in request.study.warm_start]
    files.prepare()
    if request.setting.ships:
        hide(files.results_dir)
    journal = Journal.open(files.path(JOURNAL))
    try:
        with ExperimentsLock(files.path(LOCK)) as lock:
            identity = _identity(request, courier)
            following = Successor(identity, request.study.declaration.space)
            known, notes = resume(journal, identity, following, files.results_dir)
            journal.follower = known.take
            for record in (each for made, _ in earlier for each in made if each["end"] not in known.ends):
                journal.append(record, sync=False)
            journal.append({"run": _bounds(request)}, sync=False)
            study = _study(request, known, side_by_side)
            trials = ProgramTrials(study, request.study.measure, courier, _marked(request), files, known)
            callback = show(Living(files, known, study))
            for each in (journal.note, *notes, *(note for _, note in earlier)):
                callback.note(each)
            if not lock.taken():
                callback.note("waiting for trials of an earlier tuner to end")
                lock.wait()
            conclusion = StudyRun(trials, scheduler, journal, callback, keep=(lock.fileno(),)).run()
            return _conclude(request, courier, study, known, conclusion, journal, files)
    finally:
        journal.close()


def _marked(request: Request) -> Setting:
    """How trials are run: their ranks are found on this machine by this tuner's mark, where memory is measured."""
    launch = request.setting.launch
    mark = ("--export", f"{TUNER}={memory_use.mark()}") if request.study.measure.memory else ()
    return request.setting.replace(launch=launch.replace(words=(*launch.words, *mark)))


def _side_by_side(request: Request) -> int:
    """How many trials run at the same time."""
    shape, pool = request.setting.shape, request.setting.launch.pool
    return max(1, sum(len(slots) // shape.slots for slots in pool.slots.values()) // shape.nodes)


def _keep_files_apart(measure: Measure, side_by_side: int) -> None:
    """Refuse a file that trials side by side would read from each other."""
    for source in measure.sources.values():
        if side_by_side > 1 and source.kind == "file" and f"{{{TRIAL}}}" not in source.path:
            stem = source.path.removesuffix(".json")
            raise BadInputError(
                f"{side_by_side} trials run side by side, and each would write {source.path}",
                hint=f"let the program write {stem}-{{{TRIAL}}}.json, and name that in its arguments and in the goal",
            )


def _told(path: str, files: ProgramFiles, request: Request) -> tuple[list[Record], str]:
    """The results in a table or a folder."""
    if os.path.realpath(path) == os.path.realpath(files.results_dir):
        raise BadInputError("is the folder of this study, which goes on by itself", where=path)
    return warm_start.read(path, request.study.declaration.space, request.study.measure)


def _study(request: Request, known: StudyRecords, side_by_side: int) -> Study:
    study = Study(
        request.study.declaration.space,
        request.study.measure.goals,
        **request.study.bounds,
        side_by_side=side_by_side,
    )
    restore(study, known)
    return study


def _identity(request: Request, courier: Courier) -> Mapping[str, object]:
    """What identifies a study, as JSON reads it back: a study with the same identity is resumed."""
    identity = {
        "program": request.setting.launch.script,
        "args": list(request.setting.args),
        **request.study.declaration.as_record(),
        "goals": [goal.as_dict() for goal in request.study.measure.goals],
        "limits": [limit.text for limit in request.study.measure.limits],
        "shape": [request.setting.shape.nodes, request.setting.shape.slots],
        "search": request.study.search,
        "seed": request.study.seed,
        "digests": {**courier.digests, **digests([request.setting.launch.script])},
    }
    read: Mapping[str, object] = json.loads(json.dumps(identity))
    return read


def _bounds(request: Request) -> Mapping[str, object]:
    """What may differ when a study goes on, for those who look at it."""
    return {
        "confidence": request.study.confidence,
        "effect": request.study.effect,
        "trials": request.study.trials,
        "seconds": request.study.seconds,
    }


def _conclude(
    request: Request,
    courier: Courier,
    study: Study,
    known: StudyRecords,
    conclusion: Conclusion,
    journal: Journal,
    files: ProgramFiles,
) -> ProgramResult:
    """Write the summary and the command of the real job, whether the study is over or was interrupted."""
    answer = study.answer
    why = "it was interrupted" if conclusion.signum else conclusion.stop_reason or "some trials could not be run"
    best: tuple[str, ...] = ()
    exports: tuple[str, ...] = ()
    if answer.best is not None:
        delivered = courier.deliver(answer.best, files.path("best"), "best")
        exports = delivered.exports
        *real, script = request.real(exports)
        also = delivered.files if request.setting.ships else ()
        sent = (word for file in also for word in ("--ship_also", files.path("best", file)))
        best = (*real, *sent, script, *delivered.args)
        files.write_best(best, delivered.files)
    over = {"over": conclusion.stop_reason} if conclusion.stop_reason and not conclusion.signum else {}
    journal.append({**over, "answer": answer.as_dict(), "command": list(best), "why": why})
    text = summary(view(files.results_dir, known, answer, running=False, hide=False)[0])
    files.write_summary(text)
    return ProgramResult(conclusion=conclusion, answer=answer, summary=text, best=best, exports=exports, files=files)
