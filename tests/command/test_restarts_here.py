"""``--restarts``: the whole job is restarted until it succeeds or no restarts are left."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys

import pytest

from tests.conftest import clean_environ, read_lines

FAILS = """
import os, sys, time
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
with open(f"{os.environ['RANK']}.attempts", "a") as file:
    print(attempt, os.environ["TORCHELASTIC_MAX_RESTARTS"], file=file)
print("attempt", attempt, flush=True)
if attempt < int(sys.argv[1]):
    if os.environ["RANK"] == "1":
        while not os.path.exists("0.attempts") or len(open("0.attempts").readlines()) <= attempt:
            time.sleep(0.01)
        raise ValueError(f"no luck in attempt {attempt}")
    time.sleep(60)
if len(sys.argv) > 2:
    time.sleep(60)
"""


@pytest.fixture
def job(script, tmp_path, stage):
    path = script(FAILS)

    def words(*options: object, until: int, args: tuple[str, ...] = ()) -> list[str]:
        return ["run", "--num_gpus", "2", *map(str, options), str(path), str(until), *args]

    return words


def attempts(folder, rank: int = 0) -> list[str]:
    return (folder / f"{rank}.attempts").read_text().splitlines()


def test_the_job_is_started_again_until_it_works(job, tmp_path, stage):
    done = stage.run(*job("--restarts", 3, until=2), cwd=tmp_path, code=0)
    assert attempts(tmp_path, 0) == attempts(tmp_path, 1) == ["0 3", "1 3", "2 3"], "all ranks, each time"
    assert [line for line in done.stderr.splitlines() if "bireme: restart" in line] == [
        "bireme: restart 1 of 3", "bireme: restart 2 of 3"
    ]  # fmt: skip
    assert "ValueError: no luck in attempt 0" in done.stderr and "ValueError: no luck in attempt 1" in done.stderr


def test_a_restart_says_nothing_again(job, tmp_path, stage):
    (tmp_path / "adam").mkdir()
    (tmp_path / "adam" / "lock").touch()
    env = clean_environ(TORCH_EXTENSIONS_DIR=str(tmp_path))
    said = stage.run(*job("--restarts", 2, until=2), cwd=tmp_path, env=env, code=0).stderr
    for words in ("is a stale lock of PyTorch", "OMP_NUM_THREADS=", "no accelerator found"):
        assert said.count(words) <= 1, said
    assert "is a stale lock of PyTorch" in said


def test_one_that_always_fails_ends_with_its_code_and_report(job, tmp_path, stage):
    done = stage.run(*job("--restarts", 2, until=99), cwd=tmp_path, code=1)
    assert attempts(tmp_path) == ["0 2", "1 2", "2 2"]
    assert done.stderr.rstrip().splitlines()[-2].endswith("ValueError: no luck in attempt 2")


def test_without_it_there_is_no_restart(script, tmp_path, stage):
    path = script("import os; assert os.environ['TORCHELASTIC_RESTART_COUNT'] == '0'; raise SystemExit(3)")
    done = stage.run("run", path, cwd=tmp_path)
    assert done.returncode == 3 and "restart" not in done.stderr


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_who_stops_the_job_wants_no_other(job, tmp_path, stage, signum):
    process = stage.start(*job("--restarts", 5, until=1, args=("wait",)), cwd=tmp_path)
    read_lines(process, 2, "attempt 1")
    process.send_signal(signum)
    assert process.wait(60) == 128 + signum
    assert attempts(tmp_path) == ["0 5", "1 5"]
    assert stage.left() == {}


STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", os.getpid(), flush=True)
while not os.path.exists("go"):
    time.sleep(0.01)
if os.environ["RANK"] == "0":
    sys.exit(3)
time.sleep(60)
"""


def test_who_stops_the_job_while_it_fails_wants_no_other(script, tmp_path, stage):
    words = ("run", "--restarts", "5", "--num_gpus", "2", "--grace", "60")
    process = stage.start(*words, script(STUBBORN), cwd=tmp_path)
    fds = [os.pidfd_open(int(line.split()[-1])) for line in read_lines(process, 2, "ready")]
    (tmp_path / "go").touch()
    ended, _, _ = select.select(fds, [], [], 60)
    assert len(ended) == 1
    process.send_signal(signal.SIGTERM)
    for fd in set(fds) - set(ended):
        signal.pidfd_send_signal(fd, signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode in (3, 143), "the guardian may see the rank's end after the signal"
    assert b"bireme: restart" not in err
    for fd in fds:
        os.close(fd)


SIGNALS = """
import os, signal, sys
from bireme.job import JobSpec, Program
from bireme.launching import placement

def told(*_):
    os.kill(os.getpid(), signal.SIGTERM)

spec = JobSpec(Program(sys.argv[1], ("99", "wait")), num_gpus=2, restarts=5, checkpoint_signal=sys.argv[2])
outcome = placement.launch(spec, os.environ, told)
print(outcome.cause, outcome.exit_code)
"""


@pytest.mark.parametrize(("checkpoint", "end"), [("", "signal 143"), ("USR1", "preempted 78")])
def test_a_signal_between_two_attempts_is_that_of_the_next(script, tmp_path, stage, checkpoint, end):
    """The attempt begins, and hears of it at once."""
    command = [sys.executable, script(SIGNALS, "signals.py"), script(FAILS), checkpoint]
    done = subprocess.run(command, cwd=tmp_path, env=clean_environ(), capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1:] == [end], done.stderr
    assert len(attempts(tmp_path, 1)) <= 2 and stage.left() == {}


def test_a_hostfile_that_is_gone_meanwhile(script, tmp_path, stage):
    """The end is that of the attempt before, and the report is written."""
    (tmp_path / "hosts").write_text("localhost slots=1\n")
    program = script("import os, sys\nos.unlink('hosts')\nsys.exit(3)\n")
    words = ("--restarts", "3", "--hostfile", "hosts", "--report", "report.json", program)
    done = stage.run("run", *words, cwd=tmp_path, code=3)
    assert "  cannot restart it: hosts: cannot be read: No such file or directory" in done.stderr
    assert json.loads((tmp_path / "report.json").read_text())["exit_code"] == 3


def test_the_time_limit_is_that_of_all_attempts(job, tmp_path, stage):
    done = stage.run(*job("--restarts", 5, "--time_limit", 10, until=1, args=("wait",)), cwd=tmp_path)
    assert done.returncode == 124 and "stopped after the time limit of 10 s" in done.stderr
    assert attempts(tmp_path) == ["0 5", "1 5"]


LIMITS = """
import os, sys
from bireme.job import JobSpec, Program
from bireme.launching import placement

spec = JobSpec(Program(sys.argv[1], ("99",)), num_gpus=2, restarts=2, time_limit=1000.0, output="none")
placement.launch(spec, os.environ, lambda _, again: print(again.time_limit))
"""


def test_each_attempt_has_what_is_left(tmp_path, script):
    """Of the limit: less in each."""
    words = [sys.executable, "-c", LIMITS, str(script(FAILS))]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    first, second = map(float, done.stdout.split())
    assert 900 < second < first < 1000


@pytest.mark.parametrize("words", [("--restarts", "-1"), ("--restarts", "x"), ("--restarts", "1", "--native_ranks")])
def test_bad_input(tmp_path, stage, words):
    done = stage.run("run", *words, "--hosts", "localhost:1", __file__, cwd=tmp_path)
    assert done.returncode == 2 and "--restarts" in done.stderr


def test_a_restart_repeats_no_messages(stage, script):
    done = stage.run("run", "--num_gpus", "2", "--restarts", "2", script("import sys; sys.exit(3)"))
    assert done.returncode == 3 and "restart 2 of 2" in done.stderr
    for said in ("2 ranks on the CPU", "OMP_NUM_THREADS="):
        assert done.stderr.count(said) == 1, done.stderr
