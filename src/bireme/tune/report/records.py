"""A study as JSON, and its trials as CSV."""

from __future__ import annotations

import csv
import io
import time
from typing import Any

from bireme.tune.report.effects import effects
from bireme.tune.report.reading import shown_value
from bireme.tune.report.status import status
from bireme.tune.report.study_record import StudyRecord
from bireme.tune.report.time_use import time_use

_FORMULA = ("=", "+", "-", "@")


def study_record(study: StudyRecord, now: float) -> dict[str, Any]:
    """All that is known of a study, for JSON; ``now``: seconds since the epoch."""
    used = time_use(study.trials, now)
    return {
        **study.as_dict(),
        "status": status(study, now).as_dict(),
        "effects": [one.as_dict() for goal in study.goals for one in effects(study, goal)],
        "time": used.as_dict(),
    }


def trials_csv(study: StudyRecord) -> str:
    """The trials as CSV, one a line. An empty cell: unknown, or the parameter was not active."""
    figures = list(dict.fromkeys(name for trial in study.trials for name in trial.figures))
    names = list(dict.fromkeys(name for each in study.configurations for name in each.point))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    head = ["trial", "configuration", "phase", "round", "began", "seconds", "end", "reason", "slots"]
    writer.writerow([*head, *(f"figure {name}" for name in figures), *(f"parameter {name}" for name in names)])
    for trial in study.trials:
        began = "" if trial.began is None else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(trial.began))
        # The reason is what a program has written: a spreadsheet must not take it for a formula.
        reason = f"'{trial.reason}" if trial.reason.startswith(_FORMULA) else trial.reason
        row = [
            trial.name,
            trial.config,
            trial.phase,
            trial.round or "",
            began,
            trial.seconds or "",
            trial.cause,
            reason,
        ]
        values = [shown_value(trial.point[name]) if name in trial.point else "" for name in names]
        writer.writerow([*row, trial.place, *(trial.figures.get(name, "") for name in figures), *values])
    return out.getvalue()
