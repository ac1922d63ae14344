"""Reading what DeepSpeed writes, also after it was killed while writing; and the times of the lines of a log."""

from __future__ import annotations

import json

import pytest

from bireme.tune.deepspeed.results import (
    METRICS,
    Metrics,
    ModelInfo,
    goal_of,
    last_step,
    read_metrics,
    read_model_info,
    samples_per_second,
    with_goal,
)
from bireme.tune.study.trial import TrialResult

WRITTEN = {
    "fwd": 4100.0,
    "bwd": 8000.0,
    "step": 900.0,
    "latency": 13000.0,
    "FLOPS_per_gpu": 1e9,
    "throughput": 615.0,
    "rank": 0,
}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "metrics.json"
    path.write_text(json.dumps(WRITTEN))
    return str(path)


def judged(path: str, name: str) -> tuple[float | None, str]:
    """The metric of a run that has written this file; or why there is none."""
    metrics = read_metrics(path)
    done = with_goal(TrialResult(metrics=metrics.values), name, 1)
    return done.metrics.get(goal_of(name).name), metrics.reason or done.reason


def test_figures(path):
    assert read_metrics(path) == Metrics({**WRITTEN, "rank": 0.0})


@pytest.mark.parametrize(
    ("name", "value", "direction"),
    [
        ("throughput", 615.0, "maximize"),
        ("flops", 1e9, "maximize"),
        ("FLOPS_per_gpu", 1e9, "maximize"),
        ("latency", 13000.0, "minimize"),
        ("forward", 4100.0, "minimize"),
        ("backward", 8000.0, "minimize"),
        ("step", 900.0, "minimize"),
    ],
)
def test_directions(path, name, value, direction):
    """DeepSpeed maximizes latency, and finds no "flops", for the engine calls it otherwise."""
    assert judged(path, name) == (value, "")
    assert METRICS[name].direction == direction


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("\n", "is empty"),
        (json.dumps(WRITTEN)[:-9], "damaged or incomplete"),
        ("[1]", "is not a JSON object"),
        ("{}", "contains no figures"),
        ('{"latency": 5}', "did not measure 'throughput'"),
        ('{"throughput": NaN, "latency": 5}', "did not measure 'throughput'"),
        ('{"throughput": Infinity, "latency": 5}', "did not measure 'throughput'"),
        ('{"throughput": "fast", "latency": 5}', "did not measure 'throughput'"),
        ('{"throughput": true, "latency": 5}', "did not measure 'throughput'"),
        ('{"throughput": 0}', "'throughput' is 0"),
        ('{"throughput": -3}', "'throughput' is -3"),
    ],
)
def test_no_metric(path, text, said):
    """Zero would win where less is better."""
    with open(path, "w") as file:
        file.write(text)
    value, reason = judged(path, "throughput")
    assert value is None
    assert said in reason


def test_the_run_ended_early(tmp_path):
    value, reason = judged(str(tmp_path / "metrics.json"), "throughput")
    assert value is None
    assert "without writing metrics.json" in reason


def test_not_readable(tmp_path):
    assert "cannot be read: not a regular file" in read_metrics(str(tmp_path)).reason


def test_model_info(tmp_path):
    path = tmp_path / "model_info.json"
    path.write_text('{"num_params": 335144976, "trainable_num_params": 335144970, "activation_mem_per_gpu": 324358144}')
    assert read_model_info(str(path)) == ModelInfo(335144976, 335144970, 324358144)


@pytest.mark.parametrize("text", ["{", "{}", '{"num_params": 0}', '{"num_params": "many"}', '{"num_params": NaN}'])
def test_model_info_that_says_nothing(tmp_path, text):
    path = tmp_path / "model_info.json"
    path.write_text(text)
    info = read_model_info(str(path))
    assert info.params is None
    assert info.reason


def test_activation_of_zero_is_not_known(tmp_path):
    """On a CPU the engine writes 0, and a wall of capacity / 0 samples there is not."""
    path = tmp_path / "model_info.json"
    path.write_text('{"num_params": 10, "activation_mem_per_gpu": 0}')
    assert read_model_info(str(path)) == ModelInfo(params=10)


# -- samples per second by the clock -----------------------------------------------------------------

TIMED = "[{s}.000 box:0] [Rank 0] time (ms) | fwd: 3.41 | bwd: 24.6 | step: 5.4\n"
MICRO = "[{s}.000 box:0] [Rank 0] time (ms) | fwd_microstep: 3.41 | bwd_microstep: 24.6\n"
NUMBERED = "[{s}.000 box:0] [2026-01-01] [INFO] [logging.py:107:log_dist] [Rank 0] step={n}, skipped=0, lr=[1]\n"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([TIMED.format(s=s) for s in range(5)], 16.0),
        ([line.format(s=s) for s in range(5) for line in (MICRO, MICRO, TIMED)], 16.0),
        ([NUMBERED.format(s=2 * n, n=n) for n in range(1, 5)], 8.0),
        ([line.format(s=n, n=n) for n in range(1, 6) for line in (NUMBERED, TIMED)], 16.0),
        ([TIMED.format(s=s) for s in range(3)], None),
        (["something else\n"], None),
    ],
)
def test_steps_after_the_warm_up_count(tmp_path, lines, expected):
    (tmp_path / "out").write_text("".join(lines))
    assert samples_per_second(str(tmp_path / "out"), 16, 3) == expected


def test_times_of_days(tmp_path):
    lines = [TIMED.format(s=seconds) for seconds in (86398, 86399, 86401)]
    (tmp_path / "out").write_text("".join(lines))
    assert samples_per_second(str(tmp_path / "out"), 10, 1) == pytest.approx(20 / 3)


def test_without_a_file_there_is_no_pace(tmp_path):
    assert samples_per_second(str(tmp_path / "none"), 16, 3) is None


def test_the_pipeline_engine_numbers_its_steps(tmp_path):
    lines = [f"[{n}.000 box:0] steps: {n} loss: 0.1234 iter time (s): 1.0 samples/sec: 16\n" for n in range(1, 6)]
    (tmp_path / "out").write_text("".join(lines))
    assert samples_per_second(str(tmp_path / "out"), 16, 3) == 16.0
    assert last_step("".join(lines)) == 5
    assert last_step("steps of no number\n") == 0


def test_a_pipeline_with_more_losses_than_one():
    line = "[1.000 box:0] steps: 7 loss: nan aux: 0.1000 z: 0.2000 iter time (s): 0.125 samples/sec: 128.000\n"
    assert last_step(line) == 7


def test_what_a_script_says_of_its_steps_is_not_the_engines(tmp_path):
    own = [f"[{n}.000 box:0] steps: {100 * n} loss: 2.3\n" for n in range(1, 6)]
    assert last_step("".join(own)) == 0
    (tmp_path / "out").write_text("".join(own))
    assert samples_per_second(str(tmp_path / "out"), 16, 3) is None
    timed = [TIMED.format(s=s) for s in range(1, 6)]
    (tmp_path / "out").write_text("".join(line for pair in zip(own, timed, strict=True) for line in pair))
    assert samples_per_second(str(tmp_path / "out"), 16, 3) == 16.0
