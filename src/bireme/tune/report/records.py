"""A study as JSON, and its trials as CSV."""

from __future__ import annotations

import csv
import io
import re
import time
from typing import Any

from bireme.tune.report.effects import effects
from bireme.tune.report.status import status
from bireme.tune.report.time_use import time_use
from bireme.tune.report.view import StudyView, shown_value

_FORMULA = re.compile(r"[=+\-@\t\r\n＝＋－＠]")  # noqa: RUF001  # spreadsheets take the wide ones too
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


def study_record(study: StudyView, now: float) -> dict[str, Any]:
    """All that is known of a study, for JSON; ``now``: seconds since the epoch."""
    used = time_use(study.trials, now)
    return {
        **study.as_dict(),
        "noise": study.answer.noise,
        "status": status(study, now).as_dict(),
        "effects": [one.as_dict() for goal in study.goals for one in effects(study, goal)],
        "time": used.as_dict(),
    }


def trials_csv(study: StudyView) -> str:
    """The trials as CSV, one a line. An empty cell: unknown, or the parameter was not active."""
    figures = list(dict.fromkeys(name for trial in study.trials for name in trial.figures))
    names = list(dict.fromkeys(name for each in study.configurations for name in each.point))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    head = ["trial", "configuration", "phase", "round", "began", "seconds", "end", "reason", "slots"]
    writer.writerow([*head, *(f"figure {name}" for name in figures), *(f"parameter {name}" for name in names)])
    for trial in study.trials:
        began = "" if trial.began is None else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(trial.began))
        row = [
            trial.name,
            trial.config,
            trial.phase,
            trial.round or "",
            began,
            trial.seconds or "",
            trial.cause,
            trial.reason,
        ]
        values = [shown_value(trial.point[name]) if name in trial.point else "" for name in names]
        row += [trial.place, *(trial.figures.get(name, "") for name in figures), *values]
        writer.writerow(map(_harmless, row))
    return out.getvalue()


def _harmless(cell: object) -> object:
    """A cell that a spreadsheet does not take for a formula; it may be what a program has written."""
    if not isinstance(cell, str):
        return cell
    is_formula = _FORMULA.match(cell) and not _NUMBER.fullmatch(cell)
    return ("'" if is_formula else "") + cell.replace("\r", "\n")  # csv quotes only line ends of its own
