"""Ctrl+C at any moment: exit code 130, and nothing is left; neither processes nor files."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest

from tests.conftest import clean_environ
from tests.run.conftest import wait_for

SILENT = "import time\ntime.sleep(1000)\n"
CODES = {
    # before the interpreter has installed its own handler, the signal itself ends the process: a shell says 130 too
    signal.SIGINT: {130, -signal.SIGINT},
    signal.SIGTERM: {143, -signal.SIGTERM},
    signal.SIGHUP: {129, -signal.SIGHUP},
    signal.SIGKILL: {-signal.SIGKILL},
}


def start_time(stage, program, env) -> float:
    """Seconds from the start of the command to the end of a job whose ranks do nothing."""
    begin = time.monotonic()
    process = stage.start("run", "-q", "--num_gpus", "2", program, env=env)
    process.communicate(timeout=60)
    assert process.returncode == 0
    return time.monotonic() - begin


def in_start_of_interpreter(err: bytes) -> bool:
    """Whether Python was still on its way to the first statement of ours, which makes Ctrl+C quiet."""
    ours = [line for line in err.decode().splitlines() if "/src/bireme/" in line or "from bireme" in line]
    return b"Traceback" in err and all(any(text in line for text in FIRST) for line in ours)


def last_words(process, press) -> bytes:
    """What it says on stderr to its end.

    A Ctrl+C that is raised in a callback of Python's import system is only printed: it has to be pressed again.
    """
    try:
        return process.communicate(timeout=60)[1]
    except subprocess.TimeoutExpired:
        press()
        err = process.communicate(timeout=60)[1]
        assert b"Exception ignored in" in err and b"KeyboardInterrupt" in err, err.decode()
        return err


FIRST = ("bireme/__init__.py", "bireme/__main__.py", "bireme/interrupt.py", "from bireme.interrupt import")


def interrupted(stage, script, tmp_path, signum, times):
    tmp = tmp_path / "tmp"
    tmp.mkdir()
    env = clean_environ(TMPDIR=str(tmp))
    whole = start_time(stage, script("", "empty.py"), env)
    dice = random.Random(int(signum))
    for _ in range(times):
        process = stage.start("run", "-q", "--num_gpus", "2", "--save_pid", "--no_python", "sleep", "1000", env=env)
        delay = dice.uniform(0, 1.2 * whole)
        time.sleep(delay)  # the moment is what the test is about
        process.send_signal(signum)
        err = last_words(process, partial(process.send_signal, signum))
        case = f"{signum.name} after {delay:.4f} of {whole:.4f} s: {process.returncode} {err.decode()}"
        if not in_start_of_interpreter(err):
            assert process.returncode in CODES[signum], case
            assert b"Traceback" not in err, case
        left = stage.left(within=30 if signum == signal.SIGKILL else 0)
        assert not left, f"{case} {left}"
        assert os.listdir(tmp) == [], case
        assert not Path(f"/tmp/{process.pid}.deepspeed").exists(), case


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM], ids=lambda s: s.name)
def test_at_a_few_random_moments(stage, script, tmp_path, signum):
    interrupted(stage, script, tmp_path, signum, 5)


@pytest.mark.slow
@pytest.mark.parametrize("signum", CODES, ids=lambda s: s.name)
def test_at_many_random_moments(stage, script, tmp_path, signum):
    interrupted(stage, script, tmp_path, signum, 25)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM], ids=lambda s: s.name)
def test_while_a_rank_fails(stage, script, signum):
    """The cause that came first stays: the interrupt only hastens the end."""
    program = script(
        "import os, signal, sys, time\n"
        "if os.environ['RANK'] == '1': sys.exit(3)\n"
        "signal.signal(signal.SIGTERM, lambda *_: print('stopping', flush=True))\n"
        "signal.signal(signal.SIGINT, lambda *_: print('interrupted', flush=True))\n"
        "while True: time.sleep(0.05)\n"  # not longer: a signal that comes just before a sleep begins is heard after it
    )
    process = stage.start("run", "-q", "--num_gpus", "2", "--grace", "2", program)
    process.stdout.readline()
    process.send_signal(signum)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 3, err
    assert b"rank 1" in err


def test_many_signals_at_once(stage, script):
    process = stage.start("run", "-q", "--num_gpus", "2", script("print('ready', flush=True)\n" + SILENT))
    process.stdout.readline()
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGINT, signal.SIGUSR1) * 5:
        process.send_signal(signum)
    _, err = process.communicate(timeout=30)
    # the last ones may come when the job is over, and nobody takes them any more
    assert process.returncode in (143, 130, 129) or -process.returncode in signal.valid_signals(), err
    assert b"Traceback" not in err


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda s: s.name)
@pytest.mark.parametrize("whom", ["command", "group"])
def test_while_the_environment_script_runs(stage, script, tmp_path, signum, whom):
    source = tmp_path / "activate"
    source.write_text(f"touch {tmp_path}/begun\nsleep 1000\n")
    process = stage.start("run", "-q", "--venv_script", source, script(SILENT))
    wait_for((tmp_path / "begun").exists, "the script to begin")
    (os.killpg if whom == "group" else os.kill)(process.pid, signum)
    _, err = process.communicate(timeout=30)
    assert process.returncode in CODES[signum]
    assert b"Traceback" not in err
    assert not stage.left(within=30)
