"""The memory estimate against the figures of the ZeRO paper, and against arithmetic."""

from __future__ import annotations

import pytest

from bireme.tune.deepspeed.memory import GIB, Layout, cannot_fit, layout_of, states
from bireme.tune.deepspeed.results import ModelInfo

PAPER = ModelInfo(params=7_500_000_000)


@pytest.mark.parametrize(("stage", "gigabytes"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_figure_1_of_the_paper(stage, gigabytes):
    """7.5 billion parameters on 64 ranks, K = 12 (arXiv 1910.02054, figure 1)."""
    needed = states(PAPER, Layout(stage, 64, half=True))
    assert needed / 1e9 == pytest.approx(gigabytes, abs=0.05)


def test_fp32():
    assert states(ModelInfo(params=100), Layout(0, 4)) == 400 + 400 + 800
    assert states(ModelInfo(params=100), Layout(1, 4)) == 400 + 400 + 200
    assert states(ModelInfo(params=100), Layout(2, 4)) == 400 + 100 + 200
    assert states(ModelInfo(params=100), Layout(3, 4)) == 100 + 100 + 200


def test_an_optimizer_that_keeps_less():
    assert states(ModelInfo(params=100), Layout(0, 4, moments=0)) == 400 + 400 + 0
    assert states(ModelInfo(params=100), Layout(1, 4, half=True, moments=1)) == 200 + 200 + 200


def test_model_parallelism_counts_once():
    """DeepSpeed divides by the world and then by the degree, as if there were more ranks than there are."""
    assert states(ModelInfo(params=800), Layout(3, 8, model_parallel=2)) == 16 * 800 // 8
    assert states(ModelInfo(params=800), Layout(0, 8, model_parallel=2)) == 16 * 800 // 2


def test_only_what_is_trained_has_gradients():
    assert states(ModelInfo(params=1000, trainable=10), Layout(0, 1, half=True)) == 2000 + 20 + 120


@pytest.mark.parametrize(
    ("stage", "optimizer", "param", "expected"),
    [
        (0, True, True, 200 + 200 + 1200),
        (1, True, True, 200 + 200 + 0),
        (2, True, True, 200 + 0 + 0),
        (3, True, False, 100 + 0 + 0),
        (3, False, True, 0 + 100 + 600),
    ],
)
def test_offload(stage, optimizer, param, expected):
    layout = Layout(stage, 2, half=True, offload_optimizer=optimizer, offload_param=param)
    assert states(ModelInfo(params=100), layout) == expected


def test_cannot_fit():
    model = ModelInfo(params=GIB // 16, activation=GIB // 4)
    assert "1.0 GiB" in cannot_fit(model, Layout(0, 1), GIB)
    assert cannot_fit(model, Layout(1, 8), GIB) == ""
    assert cannot_fit(ModelInfo(), Layout(0, 1), 1) == ""


@pytest.mark.parametrize(
    ("config", "layout"),
    [
        ({}, Layout(0, 4, 2)),
        ({"fp16": {"enabled": True}, "zero_optimization": {"stage": 2}}, Layout(2, 4, 2, half=True)),
        ({"bf16": {"enabled": True}, "fp16": {"enabled": False}}, Layout(0, 4, 2, half=True)),
        ({"fp16": {"enabled": "auto"}, "zero_optimization": None}, Layout(0, 4, 2, half=True)),
        ({"optimizer": {"type": "AdamW", "params": {"lr": 1}}}, Layout(0, 4, 2)),
        ({"optimizer": {"type": "SGD", "params": {"lr": 1, "momentum": 0.0}}}, Layout(0, 4, 2, moments=0)),
        ({"optimizer": {"type": "SGD", "params": {"momentum": 0.9}}}, Layout(0, 4, 2, moments=1)),
        ({"optimizer": {"type": "Lion"}}, Layout(0, 4, 2, moments=1)),
        (
            {
                "zero_optimization": {
                    "stage": 3,
                    "offload_param": {"device": "nvme"},
                    "offload_optimizer": {"device": "none"},
                }
            },
            Layout(3, 4, 2, offload_param=True),
        ),
        ({"zero_optimization": {"stage": 2, "cpu_offload": True}}, Layout(2, 4, 2, offload_optimizer=True)),
    ],
)
def test_layout_of_a_configuration(config, layout):
    assert layout_of(config, 4, 2) == layout
