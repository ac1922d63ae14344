"""The examples do what the README promises: real trainings on two CPU ranks. `test_the_demo` runs the first one."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests import needs

EXAMPLES = Path(__file__).parents[2] / "examples"


def accuracy(done: subprocess.CompletedProcess[str]) -> float:
    """What rank 0 has said at its end."""
    found = re.findall(r"test accuracy (\S+)", done.stdout)
    assert len(found) == 1, done.stderr
    return float(found[0])


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(900)
@needs.modules("torch", "sklearn", "deepspeed")
def test_deepspeed_zero1(stage):
    words = ["--deepspeed_config", EXAMPLES / "ds_config.json", "--epochs", "1"]
    command = ["run", "--accelerator", "cpu", "--num_gpus", "2", EXAMPLES / "deepspeed_zero1.py", *words]
    done = stage.run(*command, timeout=800)
    assert done.returncode == 0, done.stderr
    assert accuracy(done) > 0.85
