"""The examples do what the README promises: real trainings on two CPU ranks. `test_the_demo` runs the first one,
and `test_real_training_goes_on` the elastic one.

They must also end well. When a thread of gloo drops its last tensor while Python shuts down, the process aborts
("terminate called without an active exception"): about one run in twenty on a busy machine. So none may be left then.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import PROGRAMS
from tests.kit import needs

EXAMPLES = Path(__file__).parents[2] / "examples"
WATCHED = PROGRAMS / "ends_without_gloo.py"
COMMAND = ("run", "--accelerator", "cpu", "--num_gpus", "2", WATCHED)


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
    done = stage.run(*COMMAND, EXAMPLES / "deepspeed_zero1.py", *words, timeout=800, code=0)
    assert accuracy(done) > 0.85
