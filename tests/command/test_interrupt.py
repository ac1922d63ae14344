"""Ctrl+C at any moment: exit code 130, and no processes or files are left."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import TIMES, bireme_begun, clean_environ, wait_for

SILENT = "import time\ntime.sleep(1000)\n"
CODES = {
    signal.SIGINT: {130},
    # before the command has installed its own handler, the signal itself ends the process: a shell says 143 too
    signal.SIGTERM: {143, -signal.SIGTERM},
    signal.SIGHUP: {129, -signal.SIGHUP},
    signal.SIGKILL: {-signal.SIGKILL},
}

# Runs a module as ``python -m`` does, and tells on stderr which modules are looked for while Ctrl+C is Python's.
SPIES = """
import runpy, signal, sys

class Spy:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            print("early:", name, file=sys.stderr)

name, *sys.argv[1:] = sys.argv[1:]
sys.meta_path.insert(0, Spy)
runpy.run_module(name, run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(
    "module", ["bireme", "bireme.agent", "bireme.deepspeed.launch", "bireme.deepspeed.launcher_helper"]
)
def test_nothing_is_imported_before_ctrl_c_is_ours(module):
    """But our own few lines that say so: Python's own handler gives a traceback, or is forgotten in an import."""
    command = [sys.executable, "-c", SPIES, module, "--help"]
    done = subprocess.run(command, env=clean_environ(), capture_output=True, text=True, timeout=60)
    early = {line.split()[1] for line in done.stderr.splitlines() if line.startswith("early: ")}
    is_package = module in ("bireme", "bireme.agent")
    main = {f"{module}.__main__"} if is_package else {"bireme.deepspeed", "__future__"}
    assert early == {"bireme", module, *main, "bireme.isolated"}


def start_time(stage, program, env) -> float:
    """Seconds from the start of the command to the end of a job whose ranks do nothing."""
    begin = time.monotonic()
    process = stage.start("run", "-q", "--num_gpus", "2", program, env=env)
    process.communicate(timeout=60)
    assert process.returncode == 0
    return time.monotonic() - begin


def interrupted(stage, script, tmp_path, signum, times):
    tmp = tmp_path / "tmp"
    tmp.mkdir()
    env = clean_environ(TMPDIR=str(tmp))
    whole = start_time(stage, script("", "empty.py"), env)
    dice = random.Random()
    for number in range(times):
        begun = tmp_path / f"begun{number}"
        words = ("run", "-q", "--num_gpus", "2", "--save_pid", "--no_python", "sleep", "1000")
        process = stage.start_argv(bireme_begun(begun, *words), env=env)
        if signum == signal.SIGINT:
            wait_for(begun.exists, "the command")
        delay = dice.uniform(0, 1.2 * whole)
        time.sleep(delay)  # the moment is what the test is about
        process.send_signal(signum)
        _, err = process.communicate(timeout=60)
        case = f"{signum.name} after {delay:.4f} of {whole:.4f} s: {process.returncode} {err.decode()}"
        assert process.returncode in CODES[signum], case
        assert b"Traceback" not in err, case
        left = stage.left(within=30 if signum == signal.SIGKILL else 0)
        assert not left, f"{case} {left}"
        if signum != signal.SIGKILL:  # between making its folder and forking, nobody is left to remove it
            assert os.listdir(tmp) == [], case
        assert not Path(f"/tmp/{process.pid}.deepspeed").exists(), case
    start_time(stage, script("", "empty.py"), env)
    assert os.listdir(tmp) == []  # the next job removes what one that was killed has left


@pytest.mark.slow
@pytest.mark.parametrize("signum", CODES, ids=lambda s: s.name)
def test_at_random_moments_again_and_again(stage, script, tmp_path, signum):
    interrupted(stage, script, tmp_path, signum, 2 * TIMES)


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
    _, err = process.communicate(timeout=60)
    assert process.returncode == 3, err
    assert b"rank 1" in err


def test_many_signals_at_once(stage, script):
    process = stage.start("run", "-q", "--num_gpus", "2", script("print('ready', flush=True)\n" + SILENT))
    process.stdout.readline()
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGINT, signal.SIGUSR1) * 5:
        process.send_signal(signum)
    _, err = process.communicate(timeout=60)
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
    _, err = process.communicate(timeout=60)
    assert process.returncode in CODES[signum]
    assert b"Traceback" not in err
    assert not stage.left(within=30)
