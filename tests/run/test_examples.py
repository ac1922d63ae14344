"""The examples do what the README promises: real trainings on two CPU ranks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import needs

EXAMPLES = Path(__file__).parents[2] / "examples"


pytestmark = pytest.mark.timeout(900)


def accuracy(done) -> float:
    assert done.returncode == 0, done.stderr
    (found,) = re.findall(r"test accuracy (\S+)", done.stdout)
    return float(found)


@pytest.mark.slow
@pytest.mark.torch
@needs.modules("torch", "sklearn")
def test_digits(stage):
    done = stage.run("run", "--accelerator", "cpu", "--num_gpus", "2", EXAMPLES / "digits_ddp.py", timeout=600)
    assert accuracy(done) > 0.95
    assert len(re.findall(r"^\[\S+:0\] epoch +\d+ +loss ", done.stdout, re.MULTILINE)) > 3


@pytest.mark.slow
@pytest.mark.torch
@needs.modules("torch", "sklearn", "deepspeed")
def test_deepspeed_zero1(stage):
    config = EXAMPLES / "ds_config.json"
    words = ["--accelerator", "cpu", "--num_gpus", "2", EXAMPLES / "deepspeed_zero1.py", "--deepspeed_config", config]
    assert accuracy(stage.run("run", *words, timeout=800)) > 0.95
