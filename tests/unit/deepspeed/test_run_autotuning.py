"""``run_autotuning``, called by programs that have parsed the launcher's command line themselves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bireme.deepspeed import runner
from tests.unit.deepspeed.conftest import CONTRACT, Made

ONE = ("--hostfile", "hosts", "--num_gpus", "1", "--num_nodes", "1")


@pytest.fixture
def tune(make: Made, tmp_path):
    """Tune over two micro-batches."""

    def run(active_resources, *script: str, options=ONE, mode="tune") -> None:
        config = {"train_micro_batch_size_per_gpu": [4, 8], "autotuning": {"enabled": True}}
        (tmp_path / "ds.json").write_text(json.dumps(config))
        (tmp_path / "hosts").write_text("localhost slots=8\n")  # whatever cores there are
        words = ["--autotuning", mode, *options, str(CONTRACT), "--deepspeed_config", "ds.json", *script]
        runner.run_autotuning(runner.parse_args(words), active_resources)

    return run


def best(folder: Path) -> dict[str, object]:
    return json.loads((folder / "autotuning_results" / "ds_config_optimal.json").read_text())


def test_it_tunes_on_the_slots_that_are_active(tune, tmp_path, capfd):
    tune({"localhost": [0, 1]})
    assert best(tmp_path)["train_batch_size"] == 8
    out = capfd.readouterr().out
    assert "starts on localhost:0\n" in out and "starts on localhost:1\n" in out, "side by side"
    assert "real job 0" not in out
    assert "--deepspeed_config" in (tmp_path / "autotuning_results/cmd_optimal.txt").read_text()


def test_slots_4_and_5_are_these_and_not_0_and_1(tune, tmp_path, capfd):
    tune({"localhost": [4, 5]}, options=("--hostfile", "hosts", "--num_gpus", "2"))
    assert "starts on localhost:4,5\n" in capfd.readouterr().out
    for name in ("z0_gas1_tmbspg8", "z0_gas2_tmbspg4"):
        assert "devices 4,5 " in (tmp_path / "autotuning_results" / name / "stdout.log").read_text()


def test_run_runs_the_real_job_and_comes_back(tune, tmp_path, capfd):
    """DeepSpeed runs the configuration of the best experiment, which ends after some steps."""
    tune({"localhost": [0, 1]}, mode="run")
    out = capfd.readouterr().out
    assert out.count("real job 0 8") == 1
    assert "autotuning" not in best(tmp_path)


def test_it_ends_with_the_code(tune):
    with pytest.raises(SystemExit) as ended:
        tune({"localhost": [0]}, "--fail", "all")
    assert ended.value.code == 1


def test_bad_input_is_a_value_error(tune, tmp_path):
    with pytest.raises(ValueError, match="9 slots on one node requested"):
        tune({"localhost": [0]}, options=("--num_gpus", "9"))
    assert not (tmp_path / "autotuning_results").exists()
