"""Reading the files that DeepSpeed writes, also after it was killed while writing."""

from __future__ import annotations

import json

import pytest

from bireme.tune.deepspeed.results import METRICS, Metrics, ModelInfo, read_metrics, read_model_info, value_of

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
    assert value_of(read_metrics(path), name) == (value, "")
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
    with open(path, "w") as file:
        file.write(text)
    value, reason = value_of(read_metrics(path), "throughput")
    assert value is None
    assert said in reason


def test_latency_of_zero_does_not_win():
    assert value_of(Metrics({"latency": 0.0}), "latency")[0] is None


def test_the_run_ended_early(tmp_path):
    value, reason = value_of(read_metrics(str(tmp_path / "metrics.json")), "throughput")
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
