"""Decides whether an earlier study in the folder is resumed, moved aside or refused, and which experiments run again.

An experiment that measured or ran out of memory depends only on its configuration, and is never run again. One that
failed or timed out also depends on its circumstances: it is run again if the script has changed or the limit is longer.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Mapping
from copy import copy
from typing import Any

from bireme.errors import BadInputError
from bireme.tune.deepspeed.config import SECTION, Autotuning, check_config
from bireme.tune.deepspeed.config_space import read_space
from bireme.tune.deepspeed.files import StudyFiles
from bireme.tune.deepspeed.finals import Care
from bireme.tune.deepspeed.reading import Document
from bireme.tune.deepspeed.results import METRICS, Metrics, ModelInfo, value_of
from bireme.tune.deepspeed.rounds import RecordedTrial, Trial
from bireme.tune.deepspeed.tuning import Tuning
from bireme.tune.report.text import CLOCK, few
from bireme.tune.store.folder import SUMMARY
from bireme.tune.store.journal import Journal
from bireme.tune.store.records import StudyRecords, result_of
from bireme.tune.study.trial import Answer
from bireme.value import Value

CONCLUSIVE = ("ok", "out of memory", "over limit", "pruned")
"""Causes after which an experiment is never run again, whatever its circumstances."""

_IDENTITY = {
    "config": "configuration",
    "script": "script",
    "args": "list of arguments",
    "nodes": "width",
    "slots": "width",
}
_PIECE = 1 << 20

Record = Mapping[str, Any]


class Circumstances(Value):
    """``limit``: seconds that an experiment may take; None: any. ``script``: digest of its content; "" if unknown."""

    limit: float | None = None
    script: str = ""

    def changed(self, record: Record) -> str:
        """Why the experiment of this record is run again, or ""."""
        cause, script = record["ending"]["cause"], record.get("script", "")
        if cause in CONCLUSIVE:
            return ""
        if cause == "timed out" and (self.limit is None or self.limit > (record.get("limit") or 0.0)):
            return "--experiment_limit is longer"
        return "the script has changed" if self.script and script and self.script != script else ""


def circumstances(limit: float | None, script: str) -> Circumstances:
    """The present circumstances. A script that is not a file (a module, a program on PATH) is not read."""
    digest = hashlib.blake2b(digest_size=16)
    if not os.path.isfile(script):
        return Circumstances(limit)
    try:
        with open(script, "rb") as file:
            while piece := file.read(_PIECE):
                digest.update(piece)
    except OSError:  # another user may run it and be able to read it
        return Circumstances(limit)
    return Circumstances(limit, digest.hexdigest())


def resume(
    journal: Journal, files: StudyFiles, identity: Record, now: Circumstances, *, overwrite: bool
) -> tuple[tuple[RecordedTrial, ...], tuple[str, ...]]:
    """Resume the last study of a journal, or begin a new one.

    The last study is resumed if it is the same one and unfinished. With ``overwrite``, a finished study is kept in
    folders beside; without, it is resumed if it is the same one, and so gives its results. Any other study is refused.

    Args:
        identity: what identifies the study, as JSON reads it back.
        overwrite: ``autotuning.overwrite``.

    Returns:
        (the completed trials that count, notes for the user).

    Raises:
        BadInputError: the folder holds another study, which must not be overwritten.
    """
    known = StudyRecords(journal.records)
    begun, ends, finished, moved_to = known.begun, known.ends, known.finished, known.moved_to
    if begun == identity and not (finished and overwrite):
        return _resumed(ends, now, files)
    note = ""
    if begun is not None:
        _must_not_be_in_the_way(begun, identity, len(ends), files, finished, overwrite)
    if begun is not None and not finished:
        note = "removed an unfinished study in which no experiment had ended"
        files.clear()
    elif overwrite and not files.empty:  # or of another program: its results would be taken for ours if nothing works
        number = moved_to or files.first_free()
        journal.append({"moved to": number})  # if this is interrupted, the rest goes to the same folders
        note = _move(files, files.beside(number))
    journal.append({"study": identity})
    return (), (note,) if note else ()


def in_common_words(known: StudyRecords) -> StudyRecords:
    """The records with goals, and metrics with units, as those of a study of a program have them."""
    found = copy(known)
    name = str(known.identity["config"].get(SECTION, {}).get("metric") or Autotuning.metric)
    metric = METRICS[name]
    found.begun = {**known.identity, "goals": [{"name": name, "direction": metric.direction}]}
    found.ends = {}
    for trial, end in known.ends.items():
        ending = end["ending"]
        figures = dict(ending.get("metrics", {}))
        value, reason = value_of(Metrics(figures), name)
        figures.pop(metric.key, None)
        if value is None and ending["cause"] == "ok" and end["kind"] not in ("profile", "confirm"):
            ending = {**ending, "cause": "no metric", "reason": reason}
        figures = {name: value and value / metric.scale, CLOCK: ending.get("samples"), **figures}
        units = {name: metric.unit, CLOCK: "samples/s"}
        found.ends[trial] = {**end, "ending": ending, "phase": end["kind"], "figures": figures, "units": units}
    return found


def answer_of(known: StudyRecords) -> Answer:
    """What the study itself would answer, made again of its journal."""
    identity, world = known.identity, int(known.identity["nodes"]) * int(known.identity["slots"])
    space = read_space(check_config(Document("", dict(identity["config"]), {})), world, identity["args"])
    care = Care(**{name: identity[name] for name in Care._fields if identity.get(name) is not None})
    confirms = "confidence" not in identity or identity["confidence"] is not None
    tuning = Tuning(space, world, earlier=map(recorded_trial, known.ends.values()), care=care if confirms else None)
    if tuning.repeated or known.over:
        tuning.begin_rounds()
    return tuning.answer


# -- the same study ----------------------------------------------------------------------------------


def _resumed(
    ends: Mapping[str, Record], now: Circumstances, files: StudyFiles
) -> tuple[tuple[RecordedTrial, ...], tuple[str, ...]]:
    again = {name: reason for name, record in ends.items() if (reason := now.changed(record))}
    kept = [record for name, record in ends.items() if name not in again]
    notes = [f"resuming the study: {len(kept)} of its experiments have ended"] if ends else []
    for reason in dict.fromkeys(again.values()):
        notes.append(f"running again, because {reason}: {few([name for name in again if again[name] == reason])}")
    failed = sum(record["ending"]["cause"] == "failed" for record in kept)
    if failed:
        notes.append(f"{failed} of them failed and are not run again; remove {files.results_dir} to start afresh")
    return tuple(recorded_trial(record) for record in kept), tuple(notes)


# -- another, or one that is over --------------------------------------------------------------------


def _must_not_be_in_the_way(
    begun: Record, identity: Record, ended: int, files: StudyFiles, finished: bool, overwrite: bool
) -> None:
    """Raise BadInputError if the folder holds results of another study that must not be overwritten."""
    if ended and not finished:
        other = " and ".join(dict.fromkeys(_differences(begun, identity)))
        what = f"an unfinished study with another {other}: {ended} of its experiments have ended"
        raise BadInputError(
            f"{files.results_dir} holds {what}",
            hint=f"use the {other} of that study, set autotuning.results_dir to another folder, or remove this one",
        )
    if finished and not overwrite:
        raise BadInputError(
            f"{files.results_dir} holds the results of another study",
            hint="set autotuning.results_dir to another folder, or autotuning.overwrite to true",
            where="autotuning.overwrite",
        )


def _differences(begun: Record, identity: Record) -> Iterator[str]:
    return (word for key, word in _IDENTITY.items() if begun.get(key) != identity.get(key))


def _move(files: StudyFiles, to: StudyFiles) -> str:
    """Move the files of an earlier study beside; returns the note about it."""
    try:
        ended = time.localtime(os.stat(os.path.join(files.results_dir, SUMMARY)).st_mtime)
        when = time.strftime(" of %Y-%m-%d %H:%M", ended)
    except OSError:
        when = ""
    files.move(to)
    return f"the results of the earlier study{when} are now in {to.results_dir}"


def recorded_trial(record: Record) -> RecordedTrial:
    """The completed trial of the record of its end."""
    info = record.get("info")
    return RecordedTrial(
        Trial(name=record["end"], point=record["point"], phase=record["kind"], round=record.get("round", 0)),
        result_of(record),
        None if info is None else ModelInfo(**info),
    )
