"""``--time_limit``: a job that takes too long is stopped by the usual ladder, with its own exit code."""

from __future__ import annotations

from tests.conftest import PROGRAMS


def test_time_limit(stage):
    done = stage.run("run", "--num_gpus", "2", "--time_limit", "0.5", PROGRAMS / "scene.py", "wait", code=124)
    assert "stopped after the time limit of 0.5 s" in done.stderr
    assert "2 ranks were stopped because of it" in done.stderr
    assert not stage.left()


def test_a_failure_before_the_limit_stays_the_cause(stage, script):
    stage.run("run", "--time_limit", "1000", script("raise SystemExit(3)"), code=3)
