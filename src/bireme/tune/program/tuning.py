"""A study of any program: what identifies it, what it measures, and the command of the real job."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping

from bireme.errors import BadInputError
from bireme.planning.exports import TUNER
from bireme.tune.define.declarations import TRIAL
from bireme.tune.define.spec import StudySpec
from bireme.tune.execution.adapter import Setting, TrialRuns
from bireme.tune.launcher import RealJob
from bireme.tune.metrics import memory as memory_use
from bireme.tune.metrics.metric import Measure
from bireme.tune.program.delivery import Courier
from bireme.tune.program.files import ProgramFiles, digests
from bireme.tune.program.trials import ProgramTrials
from bireme.tune.space.points import Point
from bireme.tune.store import warm_start
from bireme.tune.store.journal import Journal
from bireme.tune.store.lock import LOCK
from bireme.tune.store.records import Record, StudyRecords
from bireme.tune.store.resume import Successor, restore, resume
from bireme.tune.study.study import Study


class ProgramStudy:
    """What `bireme.tune.launcher` needs to know of a study of a program.

    Args:
        spec: the study.
        setting: how its trials are run.
        real: the command of the real job up to the program's arguments, for some exports.
    """

    folders: tuple[str, ...]
    bounds: Mapping[str, object]
    study: Study
    trials: TrialRuns
    left_out: Mapping[str, object] = {}
    search_left: int | None = None
    lock = LOCK

    def __init__(self, spec: StudySpec, setting: Setting, real: Callable[[tuple[str, ...]], tuple[str, ...]]) -> None:
        self._spec, self._real = spec, real
        self._measure, declaration = self._spec.measure, self._spec.declaration
        memory_use.check(self._measure, local=setting.launch.pool.local)
        _keep_files_apart(self._measure, setting.side_by_side)
        self._courier = Courier(declaration, setting.args)
        self._files = ProgramFiles.at(self._spec.results_dir)
        self.folders = (self._files.results_dir,)
        self._told = [self._read(path) for path in self._spec.warm_start]
        self.bounds = {
            name: self._spec.bounds[name] for name in ("confidence", "effect", "trials", "seconds", "confirm")
        }
        # Its ranks are found on this machine by this tuner's mark, where memory is measured.
        mark = ("--export", f"{TUNER}={memory_use.mark()}") if self._measure.memory else ()
        self.setting = setting.replace(launch=setting.launch.replace(words=(*setting.launch.words, *mark)))

    def _read(self, path: str) -> tuple[list[Record], str]:
        """The results in a table or a folder."""
        if os.path.realpath(path) == os.path.realpath(self.folders[0]):
            raise BadInputError("is the folder of this study, which goes on by itself", where=path)
        return warm_start.read(path, self._spec.declaration.space, self._measure)

    def prepare(self) -> None:
        """Create the folder."""
        self._files.prepare()

    def resume(self, journal: Journal) -> tuple[StudyRecords, tuple[str, ...]]:
        """Resume the study of the journal, or begin one."""
        identity = self._identity()
        known, notes = resume(journal, identity, Successor(identity, self._spec.declaration.space), self.folders[0])
        for record in (each for made, _ in self._told for each in made if each["end"] not in known.ends):
            journal.append(record, sync=False)
            known.take(record)
        return known, (*notes, *(note for _, note in self._told))

    def begin(self, known: StudyRecords) -> tuple[str, ...]:
        """Make the study and its trials of what is known."""
        space, goals = self._spec.declaration.space, self._measure.goals
        self.study = Study(space, goals, **self._spec.bounds, side_by_side=self.setting.side_by_side)
        restore(self.study, known)
        self.trials = ProgramTrials(self.study, self._measure, self._courier, self.setting, self._files, known.elapsed)
        return ()

    def clean_up(self) -> None:
        """Nothing is left of an earlier tuner."""

    def table(self) -> str:
        """Nothing stands before the summary."""
        return ""

    def _identity(self) -> Mapping[str, object]:
        """What identifies the study, as JSON reads it back: a study with the same identity is resumed."""
        launch, shape = self.setting.launch, self.setting.shape
        identity = {
            "program": launch.script,
            "args": list(self.setting.args),
            **self._spec.declaration.as_record(),
            "goals": [goal.as_dict() for goal in self._measure.goals],
            "limits": [limit.text for limit in self._measure.limits],
            "shape": [shape.nodes, shape.slots],
            "search": self._spec.search,
            "seed": self._spec.seed,
            "digests": {**self._courier.digests, **digests([launch.script])},
        }
        read: Mapping[str, object] = json.loads(json.dumps(identity))
        return read

    def write_best(self, best: Point) -> RealJob:
        """Write the command of the real job with the best point, and its files."""
        job = self._job(best, "best")
        self._files.write_best(job.command)
        return job

    def write_baseline(self, baseline: Point) -> RealJob:
        """Write the files that the job with the baseline reads."""
        return self._job(baseline, "baseline")

    def _job(self, point: Point, folder: str) -> RealJob:
        """The command of the real job with a point, whose files are written into a folder of the study."""
        delivered = self._courier.deliver(point, self._files.path(folder), folder)
        *real, script = self._real(delivered.exports)
        also = delivered.files if self.setting.ships else ()
        sent = (word for file in also for word in ("--ship_also", self._files.path(folder, file)))
        self._files.write_copies(folder, delivered.files)
        return RealJob(command=(*real, *sent, script, *delivered.args), exports=delivered.exports)


def _keep_files_apart(measure: Measure, side_by_side: int) -> None:
    """Refuse a file that trials side by side would read from each other."""
    for source in measure.sources.values():
        if side_by_side > 1 and source.kind == "file" and f"{{{TRIAL}}}" not in source.path:
            stem = source.path.removesuffix(".json")
            raise BadInputError(
                f"{side_by_side} trials run side by side, and each would write {source.path}",
                hint=f"let the program write {stem}-{{{TRIAL}}}.json, and name that in its arguments and in the goal",
            )
