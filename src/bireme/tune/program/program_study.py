"""A study of any program: what identifies it, its files, its trials, and the command of the real job.

Each file is written completely or not at all

::

    DIR/journal                     the record from which a study resumes (`bireme.tune.store.journal`)
    DIR/trials/NAME/cmd.txt         the command of a trial
    DIR/trials/NAME/std{out,err}.log  the output of its ranks
    DIR/trials/NAME/outcome.json    the report of its run
    DIR/trials/NAME/…               its copies of the files in which parameters vary; in folders 2, 3, … if others
                                    have the same name
    DIR/trials/NAME/fetched/…       the JSON files of its figures, with --ship
    DIR/summary.txt                 the table and the answer
    DIR/cmd_best.txt                the command that runs the job with the best configuration
    DIR/best/…                      its files
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec

from bireme import drafts
from bireme.errors import BAD_INPUT, BadInputError
from bireme.planning.environment import TRIAL, TUNER
from bireme.tune.define.declarations import TRIAL as TRIAL_WORD
from bireme.tune.define.spec import StudySpec
from bireme.tune.execution.adapter import Adapter, RealJob, Setting
from bireme.tune.execution.diagnosis import diagnose
from bireme.tune.execution.experiment import End, LaunchRequest, tail
from bireme.tune.execution.slot_scheduler import SlotReservation
from bireme.tune.metrics import memory_use
from bireme.tune.metrics.metric import Measure, Readings
from bireme.tune.metrics.reader import Reader
from bireme.tune.metrics.warm_up import steady_part
from bireme.tune.program.delivery import Courier
from bireme.tune.space import expressions
from bireme.tune.space.points import Condition, Parameter, Point, Points, Space
from bireme.tune.store.folder import PRIVATE, SUMMARY, make_folder, prepare, write_command, write_text
from bireme.tune.store.journal import Journal
from bireme.tune.store.records import JOURNAL, Record, StudyRecords
from bireme.tune.store.resume import ProgramSuccessor, digest_of, read_results, restore
from bireme.tune.study.pruner import halving
from bireme.tune.study.study import Study
from bireme.tune.study.trial import Goal, Objective, TrialResult
from bireme.value import Value

BEST_COMMAND = "cmd_best.txt"
FETCHED = "fetched"
DEFAULT = "tuning"

_CANNOT_START = (126, 127)
"""Exit codes of a program that cannot be executed, or is not found."""

_AT_STEPS = ("pattern", "reported")
"""Figures that are known while a trial runs."""

_EVERY, _EVERY_MEMORY = 0.25, 0.05
"""Seconds between two polls of the figures of a running trial, and at its memory."""


class ProgramFiles(Value):
    """The results folder of a study; `at` makes it absolute."""

    results_dir: str

    @classmethod
    def at(cls, results_dir: str) -> ProgramFiles:
        """A relative folder is below the working directory; ``~`` is the user's own."""
        return cls(os.path.join(os.getcwd(), os.path.expanduser(results_dir or DEFAULT)))

    def path(self, *parts: str) -> str:
        """A file of the study."""
        return os.path.join(self.results_dir, *parts)

    def trial(self, name: str, *parts: str) -> str:
        """A trial's folder, or a file in it."""
        return self.path("trials", name, *parts)

    def prepare(self) -> None:
        """Create the folder."""
        another = "choose another folder: --results_dir DIR"
        prepare(self.results_dir, hint=another)
        if not os.path.exists(self.path(JOURNAL)):
            for name in ("trials", SUMMARY, BEST_COMMAND, "best", "baseline"):
                if os.path.isfile(self.path(name)) or (os.path.isdir(self.path(name)) and os.listdir(self.path(name))):
                    raise BadInputError(f"{self.path(name)} exists, but does not belong to a study", hint=another)
        make_folder(self.path("trials"))

    def write_start(self, name: str, command: Sequence[str], files: Mapping[str, str]) -> None:
        """Write the files of a trial's folder before its start, and remove those of an earlier attempt."""
        make_folder(self.trial(name))
        for file in ("stdout.log", "stderr.log"):
            drafts.remove(self.trial(name, file))
        self.write_copies(self.trial(name), files, sync=False)
        write_command(self.trial(name, "cmd.txt"), command, sync=False)

    def write_best(self, command: Sequence[str]) -> None:
        """Write the command of the real job."""
        write_command(self.path(BEST_COMMAND), command)

    def write_copies(self, folder: str, files: Mapping[str, str], *, sync: bool = True) -> None:
        """Write copies of files into a folder of the study."""
        make_folder(self.path(folder))
        for file, text in files.items():
            path = self.path(folder, file)
            make_folder(os.path.dirname(path))
            write_text(path, text, mode=PRIVATE, sync=sync)


class ProgramStudy(Adapter):
    """The adapter of a study of a program.

    Args:
        spec: the study.
        setting: how its trials are run.
        real: the command of the real job up to the program's arguments, for some exports.
    """

    def __init__(self, spec: StudySpec, setting: Setting, real: Callable[[tuple[str, ...]], tuple[str, ...]]) -> None:
        self._spec, self._real, self._measure = spec, real, spec.measure
        memory_use.check(self._measure, local=setting.launch.pool.local)
        _keep_files_apart(self._measure, setting.side_by_side)
        source = self._measure.goals[0].source
        if halving(spec.pruner, self._measure.goals) and source.kind not in _AT_STEPS:
            what, hint = f"{source.text} is known only at the end of a trial", "let the program print it at each step"
            raise BadInputError(what, hint=hint, where="--pruner")
        # Its ranks are found on this machine by this tuner's mark, where memory is measured.
        mark = ("--export", f"{TUNER}={memory_use.mark()}") if self._measure.memory else ()
        super().__init__(setting.replace(launch=setting.launch.replace(words=(*setting.launch.words, *mark))))
        self._courier = Courier(spec.declaration, setting.args)
        self._files = ProgramFiles.at(spec.results_dir)
        self.folders = (self._files.results_dir,)
        self._told = [self._read_results(path) for path in spec.warm_start]
        self.bounds = {name: spec.bounds[name] for name in ("confidence", "effect", "trials", "seconds", "confirm")}
        self._readers: dict[str, Reader] = {}
        self._read: dict[str, Readings] = {}
        self._ranks: dict[str, float | None] = {}
        self._cannot_start: set[str] = set()
        self._launching: float | None = None  # the most seconds that the launch of a trial took; None: unknown
        self._warm_up = 0  # the most readings that the warm-up of a trial had
        self._memory = memory_use.MemoryUse(self._measure.memory)

    def _read_results(self, path: str) -> tuple[list[Record], str]:
        """The results in a table or a folder."""
        if os.path.realpath(path) == os.path.realpath(self.folders[0]):
            raise BadInputError("is the folder of this study, which is resumed anyway", where=path)
        return read_results(path, self._spec.declaration.space, self._measure)

    def prepare(self) -> None:
        """Create the folder."""
        self._files.prepare()

    def resume(self, journal: Journal) -> tuple[StudyRecords, tuple[str, ...]]:
        """Resume the study of the journal, or begin one."""
        known, notes = super().resume(journal)
        for record in (each for made, _ in self._told for each in made if each["end"] not in known.ends):
            journal.append(record, sync=False)
            known.take(record)
        return known, (*notes, *(note for _, note in self._told))

    def _successor(self) -> ProgramSuccessor:
        space, limit = self._spec.declaration.space, self.setting.limit
        return ProgramSuccessor(self._identity(), self.folders[0], space, limit=limit)

    def _study_of(self, known: StudyRecords) -> Study:
        space, goals = self._spec.declaration.space, self._measure.goals
        study = Study(space, goals, **self._spec.bounds, side_by_side=self.setting.side_by_side)
        restore(study, known)
        return study

    def _identity(self) -> Mapping[str, object]:
        """What identifies the study, as JSON reads it back: a study with the same identity is resumed."""
        launch, shape = self.setting.launch, self.setting.shape
        script = digest_of(launch.script)
        identity = {
            "program": launch.script,
            "args": list(self.setting.args),
            **self._spec.declaration.as_record(),
            "goals": [goal.as_dict() for goal in self._measure.goals],
            "limits": [limit.text for limit in self._measure.limits],
            "shape": [shape.nodes, shape.slots],
            "search": self._spec.search,
            "seed": self._spec.seed,
            "digests": {**self._courier.digests, **({launch.script: script} if script else {})},
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
        sources = (source for source in self._measure.sources.values() if source.kind == "file")
        results = [source.path.replace(f"{{{TRIAL_WORD}}}", name) for source in sources]
        options = (*exports, *self._carried(files, results, os.path.join(folder, FETCHED)))
        words = self._words(name, reservation, place, delivered.args, options)
        self._files.write_start(name, ("bireme", "run", *words), delivered.files)
        self._readers[name] = Reader(
            self._measure,
            self._file(name, "stdout.log"),
            self._file(name, "stderr.log"),
            directory=os.path.join(folder, FETCHED) if self.setting.ships else ".",
            name=name,
        )
        self._memory.begin(name, [slot for _, slots in reservation.places for slot in slots])
        return self._request(name, words).replace(
            end_reason=lambda seconds: self._prune_reason(name, seconds),
            every=_EVERY_MEMORY if self._measure.memory else _EVERY,
        )

    def _prune_reason(self, name: str, seconds: float) -> str:
        self._memory.look()
        reader = self._readers[name]
        reader.update()
        values = reader.values(self._measure.goals[0].name)
        warm_up = max(self._warm_up, steady_part(values).left_out) if values else 0
        running = 0.0 if self._launching is None else seconds - self._launching
        return self.study.reason_to_prune(name, running, values, warm_up)

    # -- after ---------------------------------------------------------------------------------------

    def judge(self, name: str, end: End) -> TrialResult:
        """Read the figures of a run that has ended, and decide its result."""
        readings = self._read[name] = self._readers.pop(name).finish(end.report, self._memory.end(name, end.report))
        self._ranks[name] = _seconds_of_ranks(end)
        if (end.exit_code == BAD_INPUT and end.report is None) or end.exit_code in _CANNOT_START:
            self._cannot_start.add(name)
        result = diagnose(end, readings.figures, readings.problem, tail(self._files.trial(name, "stderr.log")))
        if result.cause == "ok" and (broken := self._measure.over(readings.figures)):
            return result.replace(cause="over limit", reason=broken)
        return result

    def tell(self, name: str, result: TrialResult) -> Mapping[str, object]:
        """Report a result to the study; returns what the journal keeps beside it."""
        trial, readings, ranks = self._pending[name], self._read.pop(name), self._ranks.pop(name)
        undescribed = result.cause == "no metric" and not readings.diverged
        first = not any(run.result.counts for run in self.study.finished.runs)
        if first and (undescribed or name in self._cannot_start):
            raise BadInputError(result.reason, hint=f"the output of the trial is in {self._files.trial(name)}")
        self._ended(name)
        parts = _parts(readings, result.seconds, ranks)
        self._launching = max(self._launching or 0.0, parts["launch"])
        goal = self._measure.goals[0].name
        self._warm_up = max(self._warm_up, readings.warm_up.get(goal, 0))
        # Also what it has reported since the last poll.
        self.study.reason_to_prune(name, result.seconds, [value for _, value in readings.series.get(goal, ())])
        steps = self.study.steps(name)
        self.study.tell(name, result)
        return {
            **{each: value for each, value in trial.as_dict().items() if each != "name"},
            "elapsed": round(self.elapsed, 3),
            "figures": dict(result.metrics),
            "units": dict(readings.units),
            **_in_short(readings),
            **steps,
            **({"notes": list(readings.notes)} if readings.notes else {}),
            **({"limit": self.setting.limit} if result.cause == "timed out" else {}),
            "parts": parts,
        }


def _keep_files_apart(measure: Measure, side_by_side: int) -> None:
    """Refuse a file that trials side by side would read from each other."""
    own = f"{{{TRIAL_WORD}}}"
    for source in measure.sources.values():
        if side_by_side > 1 and source.kind == "file" and own not in source.path:
            stem = source.path.removesuffix(".json")
            raise BadInputError(
                f"{side_by_side} trials run side by side, and each would write {source.path}",
                hint=f"let the program write {stem}-{own}.json, and name that in its arguments and in the goal",
            )


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


# -- for those who look at it ------------------------------------------------------------------------


def study_of(known: StudyRecords) -> Study | None:
    """The study itself, made again of its journal; None without NumPy."""
    identity = known.identity
    if not find_spec("numpy"):
        return None
    goals: list[Goal] = [Objective(each["name"], each.get("direction", "maximize")) for each in identity["goals"]]
    study = Study(
        _space(known),
        goals,
        search=identity.get("search", "model_based"),
        seed=identity.get("seed", 0),
        confidence=identity.get("confidence", 0.95),
        effect=identity.get("effect", 0.02),
        trials=identity.get("trials"),
        seconds=identity.get("seconds"),
        confirm=identity.get("confirm"),
        side_by_side=max(1, len({start.get("on") for start in known.starts.values()})),
    )
    restore(study, known)
    return study


def _space(known: StudyRecords) -> Points:
    """The space of the record; of a parameter with too many choices to be listed, the values that were tried."""
    tried: dict[str, dict[object, None]] = {}
    for end in known.ends.values():
        for name, value in end["point"].items():
            tried.setdefault(name, {})[value] = None
    record, parameters = known.identity, []
    for each in record.get("parameters") or ({"name": name} for name in tried):
        choices = Parameter.choices_of(each.get("choices"))
        if choices is None:
            choices = list(tried.get(each["name"], {}))
        default = each.get("default", choices[0] if choices else None)
        if default not in choices:
            choices = [default, *choices]
        given = {key: each[key] for key in ("ordered", "memory") if key in each}
        parameters.append(Parameter(name=each["name"], choices=choices, default=default, **given))
    choices_of = {each.name: each.choices for each in parameters}
    conditions = [Condition(name, expressions.parse(text, choices_of)) for name, text in record.get("conditions", ())]
    constraints = [expressions.parse(text, choices_of) for text in record.get("constraints", ())]
    return Space(parameters, conditions, constraints)
