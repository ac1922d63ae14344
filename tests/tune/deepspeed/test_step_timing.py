"""Samples per second by the times of the lines of a log."""

from __future__ import annotations

import pytest

from bireme.tune.deepspeed.results import last_step, samples_per_second

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
