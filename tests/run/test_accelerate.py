"""accelerate's own test of a launcher, run by ``bireme run`` with accelerate's options."""

from __future__ import annotations

import importlib.util

import pytest

from tests.conftest import clean_environ

pytestmark = [pytest.mark.slow, pytest.mark.torch]


def test_accelerates_own_script(stage):
    pytest.importorskip("accelerate", reason="accelerate is not installed: see the Makefile")
    script = importlib.util.find_spec("accelerate.test_utils.scripts.test_script")
    assert script is not None and script.origin is not None
    done = stage.run(
        *("run", "--num_processes", "2", "--num_machines", "1", "--cpu", "--mixed_precision", "no"),
        script.origin,
        env=clean_environ(),
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert "Test reinstantiated state" in done.stdout
    assert "distributed" in done.stdout.lower()
