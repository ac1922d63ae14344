"""Runs a whole study, whatever is tuned: resumes or begins it in its folder, and writes what it has found."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from bireme.errors import BadInputError
from bireme.job import JobSpec, Program
from bireme.tune.execution.adapter import Adapter, RealJob, Setting
from bireme.tune.execution.slot_scheduler import Scheduler
from bireme.tune.execution.study_run import Callback, Conclusion, StudyRun
from bireme.tune.report.text import summary
from bireme.tune.report.view import StudyView, view
from bireme.tune.store.folder import PRIVATE, SUMMARY, ExperimentsLock, hide, write_text
from bireme.tune.store.journal import Journal
from bireme.tune.store.records import JOURNAL, StudyRecords
from bireme.tune.study.trial import Answer
from bireme.value import Value


class Result(Value):
    """The outcome of a study; ``baseline``: its job, if ``job`` is not confirmed to be better."""

    conclusion: Conclusion
    answer: Answer
    summary: str
    job: RealJob
    baseline: RealJob
    folder: str


class Living:
    """A study that runs, for its display; ``known``: what its journal says."""

    def __init__(self, adapter: Adapter, known: StudyRecords) -> None:
        self.adapter, self._known = adapter, known

    def view(self, *, answered: bool) -> StudyView:
        """What is known of it now; ``answered``: also what is best, which may take some time to say."""
        answer = self.adapter.study.answer if answered else Answer(best=None, baseline={})
        return view(self.adapter.folders[0], self._known, answer, running=True, hide=False)[0]


def _unsent(setting: Setting) -> Sequence[str]:
    """What the user is to know of files that ``--ship`` does not send; said once, not by each trial."""
    from bireme.ship import source

    trials = JobSpec(program=Program(""), ship=source.GIT, ship_limit=sys.maxsize)
    return source.find(trials, setting.environ).notes


def tune(adapter: Adapter, show: Callable[[Living], Callback]) -> Result:
    """Start or resume a study, and run it to its end.

    Raises:
        BiremeError: a file cannot be written; the results of finished trials are kept.
    """
    setting = adapter.setting
    scheduler = Scheduler(setting.launch.pool.slots, order=setting.order, backfill=True)
    if reason := scheduler.impossible(setting.shape):
        raise BadInputError(f"no trial can run: {reason}", hint="--num_nodes and --num_gpus set the size of a trial")
    adapter.prepare()
    for folder in adapter.folders if setting.ships else ():
        hide(folder)
    unsent = _unsent(setting) if setting.ships else ()
    journal = Journal.open(os.path.join(adapter.folders[0], JOURNAL))
    try:
        with ExperimentsLock(os.path.join(adapter.folders[0], adapter.lock)) as lock:
            known, notes = adapter.resume(journal)
            journal.follower = known.take
            journal.append({"run": dict(adapter.bounds)}, sync=False)
            notes = [*notes, *adapter.begin(known)]
            callback = show(Living(adapter, known))
            for note in (journal.note, *unsent, *notes):
                callback.note(note)
            if not lock.taken():
                callback.note("waiting for trials of an earlier tuner to end")
                lock.wait()
            adapter.clean_up()
            launch, keep = setting.launch, (lock.fileno(),)
            templates = None
            if launch.preloads:
                from bireme.tune.execution.template_places import TemplatePlaces

                templates = TemplatePlaces(launch.pool, keep)
            conclusion = StudyRun(adapter, scheduler, journal, callback, keep=keep, templates=templates).run()
            return _conclude(adapter, known, conclusion, journal)
    finally:
        journal.close()


def _conclude(adapter: Adapter, known: StudyRecords, conclusion: Conclusion, journal: Journal) -> Result:
    """Write the summary and the command of the real job, whether the study is over or was interrupted."""
    answer = adapter.study.answer
    why = "it was interrupted" if conclusion.signum else conclusion.stop_reason or "some trials could not be run"
    job = RealJob() if answer.best is None else adapter.write_best(answer.best)
    unsure = answer.runs and not answer.confirmed
    baseline = adapter.write_baseline(answer.baseline) if unsure else RealJob()
    # Without "over" it is not finished, and so not overwritten.
    over = {"over": conclusion.stop_reason} if conclusion.stop_reason and not conclusion.signum else {}
    facts = {"answer": answer.as_dict(), "command": list(job.command), "why": why, **adapter.left_out}
    record = {**over, **facts}
    journal.follower = None
    known.take(record)
    seen = view(adapter.folders[0], known, answer, running=False, hide=False)[0]
    text = summary(seen, adapter.table())
    write_text(os.path.join(adapter.folders[0], SUMMARY), text, mode=PRIVATE)
    journal.append(record)  # last: a study is over when its results are written
    folder = adapter.folders[0]
    return Result(conclusion=conclusion, answer=answer, summary=text, job=job, baseline=baseline, folder=folder)
