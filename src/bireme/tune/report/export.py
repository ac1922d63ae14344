"""Exports of a study: JSON, its trials as CSV, and runs of MLflow. Runs that MLflow already has stay as they are."""

from __future__ import annotations

import csv
import hashlib
import io
import re
import time
from importlib.util import find_spec
from typing import Any

from bireme.tune.report.effects import effects
from bireme.tune.report.text import status
from bireme.tune.report.view import MEASURED, StudyView, TrialView, shown_value, time_use

_FORMULA = re.compile(r"[=+\-@\t\r\n＝＋－＠]")  # noqa: RUF001  # spreadsheets take the wide ones too
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
EXPERIMENT = "bireme tune"
_STUDY, _TRIAL = "bireme.study", "bireme.trial"
_NO_NAME = re.compile(r"[^\w\-. /]")
_PAGE = 1000


def study_record(study: StudyView, now: float) -> dict[str, Any]:
    """All that is known of a study, for JSON; ``now``: seconds since the epoch."""
    used = time_use(study.trials, now)
    return {
        **{name: value for name, value in study.as_dict().items() if name != "forecast"},  # the status has it
        "noise": study.answer.noise,
        "status": status(study, now),
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


# -- MLflow ------------------------------------------------------------------------------------------


def log_to_mlflow(study: StudyView) -> str:
    """Log the trials that have ended to the server of MLFLOW_TRACKING_URI; return why that failed, or ""."""
    if find_spec("mlflow") is None:
        return "MLFLOW_TRACKING_URI is set, but MLflow is not installed: pip install mlflow"
    try:
        _log_study(study)
    except Exception as error:  # any of a network and of a server; the report is written anyway
        return f"the study was not logged to MLflow: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return ""


def _log_study(study: StudyView) -> None:
    from mlflow import MlflowClient

    client = MlflowClient()
    known = client.get_experiment_by_name(EXPERIMENT)
    experiment = known.experiment_id if known is not None else client.create_experiment(EXPERIMENT)
    began = next((trial.began for trial in study.trials if trial.began is not None), 0.0)
    key = hashlib.blake2b(f"{study.folder} {began}".encode(), digest_size=8).hexdigest()
    logged = {run.data.tags.get(_TRIAL, ""): run for run in _runs(client, experiment, key)}
    parent = logged.get("") or client.create_run(
        experiment,
        start_time=_milliseconds(began),
        run_name=study.folder.rpartition("/")[2],
        tags={_STUDY: key, "bireme.command": study.command},
    )
    for trial in study.ended:
        if trial.name not in logged:
            _log_trial(client, experiment, trial, {_STUDY: key, "mlflow.parentRunId": parent.info.run_id})
    _log_answer(client, parent.info.run_id, study)


def _runs(client: Any, experiment: str, key: str) -> list[Any]:
    found, token = [], None
    while True:
        page = client.search_runs(
            [experiment], filter_string=f"tags.`{_STUDY}` = '{key}'", max_results=_PAGE, page_token=token
        )
        found += page
        token = page.token
        if not token:
            return found


def _log_trial(client: Any, experiment: str, trial: TrialView, tags: dict[str, str]) -> None:
    from mlflow.entities import Metric, Param

    own = {**tags, _TRIAL: trial.name, "bireme.phase": trial.phase, "bireme.end": trial.cause}
    if trial.reason:
        own["bireme.reason"] = trial.reason[:5000]
    run = client.create_run(experiment, start_time=_milliseconds(trial.began), run_name=trial.name, tags=own)
    when = _milliseconds(trial.ended) or 0
    client.log_batch(
        run.info.run_id,
        metrics=[Metric(_name(name), value, when, 0) for name, value in trial.figures.items()],
        params=[Param(_name(name), shown_value(value)[:500]) for name, value in trial.point.items()],
    )
    client.set_terminated(run.info.run_id, "FINISHED" if trial.cause == MEASURED else "FAILED", end_time=when or None)


def _log_answer(client: Any, run: str, study: StudyView) -> None:
    answer = study.answer
    if answer.noise is not None:
        client.log_metric(run, "noise", answer.noise)
    for name, value in (("ratio", answer.ratio), ("ratio low", answer.low), ("ratio high", answer.high)):
        if value is not None:
            client.log_metric(run, name, value)
    if answer.best is not None:
        client.set_tag(run, "bireme.best", study.configurations[answer.best].text)
    client.set_tag(run, "bireme.confirmed", str(answer.confirmed).lower())
    if study.state == "over":
        client.set_terminated(run)


def _name(name: str) -> str:
    """A name that MLflow allows."""
    return _NO_NAME.sub("_", name)[:250] or "_"


def _milliseconds(when: float | None) -> int | None:
    return None if when is None else int(when * 1000)
