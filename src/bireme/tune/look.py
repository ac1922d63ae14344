"""Reads the study in a folder, of either kind, also while it runs: its journal, and what is known now."""

from __future__ import annotations

import os

from bireme.errors import BadInputError
from bireme.tune.deepspeed import deepspeed_study as of_deepspeed
from bireme.tune.program import program_study as of_program
from bireme.tune.report.secrets import Secrets
from bireme.tune.report.view import StudyView, view
from bireme.tune.store import records
from bireme.tune.study.trial import Answer, Forecast


def read_study(folder: str = "") -> tuple[StudyView, Secrets]:
    """The view of the last study in a folder, and what hides secrets in its logs; "": of the only study here."""
    path = records.find(folder)
    known, running = records.read(path)
    if known.begun is None:
        raise BadInputError("no study has begun yet", hint="look again when its first trial runs", where=path)
    if known.kind == "deepspeed":
        known = of_deepspeed.in_common_words(known)
    answer, forecast = said_of(known)
    shown = forecast if running else None
    return view(os.path.abspath(os.path.dirname(path)), known, answer, running=running, forecast=shown)


def said_of(known: records.StudyRecords) -> tuple[Answer, Forecast | None]:
    """The answer that the tuner has written when it ended; else what it would say now, and its forecast."""
    if known.answer is not None:
        return Answer.from_record(known.answer), None
    study = of_deepspeed.study_of(known) if known.kind == "deepspeed" else of_program.study_of(known)
    return (study.answer, study.forecast) if study else (Answer(best=None, baseline={}), None)
