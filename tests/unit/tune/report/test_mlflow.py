"""MLflow: a study is logged once, however often the report is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from bireme.tune.look import read_study
from bireme.tune.report import export
from tests.kit import needs
from tests.unit.tune.report.studies import finished

pytestmark = [pytest.mark.slow, needs.modules("mlflow")]


def test_a_study_is_logged_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path / 'runs'}")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    study, _ = read_study(str(finished(tmp_path / "tuning", 6, logs=False)))
    for _ in range(2):
        assert export.log_to_mlflow(study) == ""
    from mlflow import MlflowClient

    client = MlflowClient()
    experiment = client.get_experiment_by_name(export.EXPERIMENT)
    assert experiment is not None
    runs = {run.data.tags.get("bireme.trial", ""): run for run in client.search_runs([experiment.experiment_id])}
    assert len(runs) == len(study.ended) + 1 == len(client.search_runs([experiment.experiment_id]))
    assert runs[""].data.tags["bireme.confirmed"] == "true" and runs[""].data.metrics["ratio"] > 1.5
    trial = runs["t00001"]
    assert trial.data.params["batch"] == "32" and trial.data.metrics["samples/s"] > 450
    assert trial.data.tags["mlflow.parentRunId"] == runs[""].info.run_id


def test_a_server_that_does_not_answer_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nonsense://no-such-server")
    study, _ = read_study(str(finished(tmp_path / "tuning", 2, logs=False)))
    said = export.log_to_mlflow(study)
    assert said.startswith("the study was not logged to MLflow: ") and "\n" not in said
