"""DeepSpeed's own autotuner with our scheduler, by a changed import."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.conftest import clean_environ
from tests.kit import needs
from tests.unit.deepspeed.conftest import CONTRACT

PORTED = f"""
import sys
sys.modules["mlflow"] = None  # where MLflow is installed, DeepSpeed's autotuner demands MLFLOW_RUN_ID
import deepspeed.autotuning.autotuner as reference
from bireme.deepspeed import runner
from bireme.deepspeed.scheduler import ResourceManager
reference.ResourceManager = ResourceManager
words = ["--autotuning", "tune", "--num_gpus", "1", "--num_nodes", "1"]
args = runner.parse_args([*words, {str(CONTRACT)!r}, "--deepspeed_config", "ds.json"])
tuner = reference.Autotuner(args, {{"localhost": [0, 1]}})
tuner.tune()
tuner.write_optimal_config()
"""


@pytest.mark.slow
@pytest.mark.torch
def test_it_finds_the_best_on_our_scheduler(stage, tmp_path):
    needs.module("deepspeed.autotuning.autotuner")
    config = {
        "train_micro_batch_size_per_gpu": [4, 8],
        "optimizer": {"type": "Adam"},
        "zero_optimization": {"stage": [0, 1]},
        "autotuning": {"enabled": True, "tuner_type": "gridsearch"},
    }
    (tmp_path / "ds.json").write_text(json.dumps(config))
    tuner = subprocess.Popen(
        [sys.executable, "-c", PORTED],
        cwd=tmp_path,
        env=clean_environ(DS_ACCELERATOR="cpu"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    stage.started.append(tuner)
    out, _ = tuner.communicate(timeout=280)
    assert tuner.returncode == 0, out.decode()
    results = tmp_path / "autotuning_results"
    measured = {path.parent.name: json.loads(path.read_text())["throughput"] for path in results.glob("*/metrics.json")}
    assert len(measured) == 4 and max(measured, key=measured.__getitem__) == "z0_gas1_tmbspg8"
    best = json.loads((results / "ds_config_optimal.json").read_text())
    assert (best["train_micro_batch_size_per_gpu"], best["zero_optimization"]["stage"]) == (8, 0)
