"""The only reader of a study's journal: of both kinds, as any version wrote them, while they run and after.

A record is one of::

    {"study": {…}}      what identifies the study; a study that begins in place of another one follows in the same file.
                        With "keeps": the trials of that one which still hold, and what is different in their records
    {"run": {…}}        what may differ from one start of the command to the next, such as budgets
    {"finalists": […]}  what the paired rounds compare, written before them; "of": what they were chosen of,
                        "shares": the part of the allowed error that each has
    {"start": NAME, …}  a trial has started, on which slots and when
    {"end": NAME, …}    a trial has ended; if it was run again, its last end counts
    {"gave up": NAME, …}  the infrastructure has failed a trial too often; the next start of the command runs it again
    {"answer": {…}}     what is known when the command ends, and "why" it does; with "over": why the study is over
    {"moved to": N}     an earlier study of DeepSpeed is being moved to folders with this number
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from bireme.errors import BadInputError
from bireme.tune.store import journal
from bireme.tune.study.trial import Phase, Trial, TrialResult

JOURNAL = "journal"
PLACES = ("tuning", "autotuning_results")
"""The folders in which the tuner keeps a study if nobody names another one."""

Record = Mapping[str, Any]


class StudyRecords:
    """The last study of a journal.

    Attributes:
        begun: what identifies it; None: no study has begun.
        run: what the last start of the command added.
        starts: the last start of each trial, by name.
        ends: the last end of each trial, by name, in the order of these ends.
        gave_up: the trials that could not be run, by name.
        finalists: the record of what the rounds compare; {}: no round has begun, or an earlier version has run it.
        over: why the study is over; "": it is not, or trials were started after.
        conclusion: the record of the last end of the command, if no trial has started or ended since then.
        finished: whether it was ever over.
        moved_to: the number of the folders to which it is being moved; 0: none.
    """

    def __init__(self, records: Iterable[Record]) -> None:
        self.begun: Record | None = None
        self.moved_to = 0
        self.starts, self.ends = dict[str, Record](), dict[str, Record]()
        self._begin(None)
        for record in records:
            self.take(record)

    def _begin(self, identity: Record | None) -> None:
        self.begun, self.run = identity, dict[str, Any]()
        self.gave_up = dict[str, Record]()
        self.over, self.finished = "", False
        self.conclusion: Record = {}
        self.finalists: Record = {}

    def keep(self, keeps: Mapping[str, Record]) -> None:
        """Leave out all trials that have ended but these, and add to the records of their ends."""
        self.starts = {name: start for name, start in self.starts.items() if name in keeps or name not in self.ends}
        self.ends = {name: {**end, **keeps[name]} for name, end in self.ends.items() if name in keeps}

    def take(self, record: Record) -> None:
        """Take the next record."""
        if "study" in record:
            self._begin(record["study"])
            self.starts = {name: self.starts[name] for name in self.starts if name in self.ends}
            self.keep(record.get("keeps", {}))
            self.moved_to = 0
        elif "run" in record:
            self.run = record["run"]
        elif "finalists" in record:
            self.finalists = record
        elif "start" in record:
            self.starts.pop(record["start"], None)
            self.starts[record["start"]] = record
            self.gave_up.pop(record["start"], None)
            self.over, self.conclusion = "", {}
        elif "end" in record:
            self.ends.pop(record["end"], None)
            self.ends[record["end"]] = record
            self.conclusion = {}
        elif "gave up" in record:
            self.gave_up[record["gave up"]] = record
            self.conclusion = {}
        elif "over" in record or "answer" in record:
            self.over, self.conclusion = str(record.get("over") or ""), record
            self.finished = self.finished or "over" in record
        self.moved_to = record.get("moved to", self.moved_to)

    @property
    def identity(self) -> Record:
        """What identifies the study, and what may differ from one start to the next."""
        return {**(self.begun or {}), **self.run}

    @property
    def answer(self) -> Record | None:
        """What was known at the last end of the command, if that still holds."""
        answer: Record | None = self.conclusion.get("answer")
        return answer

    @property
    def kind(self) -> Literal["program", "deepspeed"]:
        """What is tuned."""
        return "deepspeed" if "config" in (self.begun or {}) else "program"

    def is_earlier(self, end: Record) -> bool:
        """Whether a trial was measured before the study began, or of the program before it was edited."""
        edited = end.get("script") and self.run.get("script_digest") not in (None, "", end["script"])
        return bool(end.get("earlier") or end.get("phase") == "known" or edited)

    @property
    def units(self) -> dict[str, str]:
        """The base units of metrics, by name."""
        return {str(name): str(unit) for end in self.ends.values() for name, unit in (end.get("units") or {}).items()}

    @property
    def elapsed(self) -> float:
        """Seconds that the study had taken at its last end."""
        return max((float(end.get("elapsed", 0.0)) for end in self.ends.values()), default=0.0)


def trial_of(record: Record) -> Trial:
    """The trial of the record of its end."""
    phase: Phase = record.get("phase") or record.get("kind") or "search"
    return Trial(
        name=record["end"],
        point=record["point"],
        phase=phase,
        round=record.get("round") or 0,
        block=record.get("block") or "",
    )


def result_of(record: Record) -> TrialResult:
    """The result of a trial, of the record of its end."""
    return TrialResult.from_record(record["ending"])


def read(path: str) -> tuple[StudyRecords, bool]:
    """Read a journal; also returns whether its study is running."""
    running = journal.is_open(path)  # first: a study that ends now has written its last record
    return StudyRecords(journal.read(path)), running


def find(folder: str = "") -> str:
    """The journal in a folder; "": of the only study that there is in the usual folders, or in any other one here."""
    hint = "name the results folder of a study, which holds its journal"
    if folder:
        path = os.path.join(os.path.expanduser(folder), JOURNAL)
        if not os.path.exists(path):
            raise BadInputError(f"no study in {folder}: there is no {path}", hint=hint)
        return path
    usual = [each for each in PLACES if os.path.isfile(os.path.join(each, JOURNAL))]
    found = usual or sorted(each.name for each in os.scandir(".") if os.path.isfile(os.path.join(each.path, JOURNAL)))
    if len(found) > 1:
        raise BadInputError(f"there are several studies here: {', '.join(found)}", hint=hint)
    if not found:
        raise BadInputError(f"no study here: neither in {' nor in '.join(PLACES)}", hint=hint)
    return os.path.join(found[0], JOURNAL)
