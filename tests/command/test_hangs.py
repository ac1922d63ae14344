"""Jobs that hang: the report says what the ranks were doing."""

from __future__ import annotations

import json
import re
import signal
import sys
from pathlib import Path

import pytest

from tests.conftest import TIMES, Stage, read_lines
from tests.kit import needs

pytestmark = needs.programs(str(Path(sys.executable).with_name("py-spy")))

ODD = """
import os, signal, subprocess, sys, threading, time

def read_batch():
    {hang}

def step():
    if os.environ["RANK"] == "1":
        read_batch()
    threading.Event().wait()

print("begins", flush=True)
step()
"""
DEAF = """
import os, signal, sys, time
signal.signal(15, lambda *_: None)
if os.environ["RANK"] == "0":
    time.sleep(1)
    sys.exit(3)
while True:
    time.sleep(9)
"""
HANGS = {  # make test BIREME_TEST_TIMES=9 runs all of them
    "lock": "lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "spinning": "exec('while True: pass')",
    "frozen": "os.kill(os.getpid(), signal.SIGSTOP)",
    "child": "subprocess.run(['sleep', '1000'])",
    "sleep": "time.sleep(1000)",
    "full-pipe": "write = os.pipe()[1]; os.write(write, bytes(1 << 20))",
    "empty-pipe": "os.read(os.pipe()[0], 1)",
    "socket": "import socket; pair = socket.socketpair(); pair[0].recv(1)",
    "native": "import ctypes; ctypes.CDLL(None).pause()",
}
WORDS = ("run", "--accelerator", "cpu", "--num_gpus", "3")


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(HANGS)[:TIMES])
def test_the_odd_rank_and_its_line_are_named(stage: Stage, script, kind: str) -> None:
    program = script(DEAF)
    done = stage.run(*WORDS, "--grace", "5", program, code=3)
    assert "ranks 1-2  program.py:8  " in done.stderr


def test_a_job_that_fails_stops_at_once(stage: Stage, script) -> None:
    """Ranks that end by themselves are not asked."""
    done = stage.run(
        *WORDS, script("import os, time\nif os.environ['RANK'] == '0': os._exit(3)\ntime.sleep(99)"), code=3
    )
    assert "before they were stopped" not in done.stderr


def test_the_time_limit(stage: Stage, script) -> None:
    done = stage.run(*WORDS, "--time_limit", "4", script(ODD.format(hang="time.sleep(1000)")), code=124)
    assert "bireme:     rank 1 " in done.stderr.partition("before they were stopped:\n")[2]


def test_a_rank_that_has_waited_in_vain(stage: Stage, script, tmp_path: Path) -> None:
    """As by the time-out of a collective: the report names the rank that it has waited for."""
    text = f"""
import os, time

def read_batch():
    open({str(tmp_path)!r} + "/hangs", "w").close()
    time.sleep(1000)

if os.environ["RANK"] == "1":
    read_batch()
while os.environ["RANK"] == "2" or not os.path.exists({str(tmp_path)!r} + "/hangs"):
    time.sleep(0.01)
raise RuntimeError("Timed out waiting 8000ms for recv operation to complete")
"""
    done = stage.run(*WORDS, script(text), code=1)
    said = done.stderr.partition("before they were stopped:\n")[2]
    assert "bireme:     rank 1  program.py:6 read_batch ← program.py:9" in said


def test_never(stage: Stage, script) -> None:
    done = stage.run(*WORDS, "--time_limit", "1", "--stacks", "never", script("import time; time.sleep(99)"), code=124)
    assert "before they were stopped" not in done.stderr


def test_what_is_no_python_tells_its_state(stage: Stage, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    words = ("--time_limit", "1", "--report", report, "--no_python", "sleep", "1000")
    stage.run(*WORDS, *words, code=124)
    assert json.loads(report.read_text())["stacks"].startswith("ranks 0-2  it is not a Python process  asleep")


def test_a_rank_below_another_program(stage: Stage, script) -> None:
    program = script("import time\ndef inside():\n    time.sleep(1000)\ninside()\n")
    done = stage.run(*WORDS, "--time_limit", "3", "--wrap", "sh -c '\"$@\"; exit' sh", program, code=124)
    assert re.search(r"rank 0, process \d+ +program\.py:3 inside ← program\.py:4", done.stderr)


def test_a_second_signal_does_not_wait(stage: Stage, script) -> None:
    process = stage.start(
        *WORDS, "--time_limit", "1", script("import time\nprint('begins', flush=True)\ntime.sleep(99)")
    )
    read_lines(process, 3, "begins")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) in (124, 143)


# -- jobs that are found to hang -------------------------------------------------------------------------

QUIET = """
import os, time

def step():
    if os.environ["RANK"] == "1":
        return read_batch()
    time.sleep({seconds})

def read_batch():
    time.sleep({seconds})

print("begins", flush=True)
step()
print("ends", flush=True)
time.sleep(2)  # until it is seen that it has written something
"""


def test_a_hang_is_reported_once_and_the_job_goes_on(stage: Stage, script) -> None:
    done = stage.run(*WORDS, "--hang_timeout", "2", script(QUIET.format(seconds=7)), code=0)
    assert done.stderr.count("the job seems to hang: nothing was written for ") == 1
    said = done.stderr.partition("and no rank moves\n")[2].splitlines()
    assert said[0].startswith("bireme:   rank 1     program.py:10 read_batch ← program.py:6 step ← program.py:13")
    assert said[1].startswith("bireme:   ranks 0,2  program.py:7 step ← program.py:13")
    assert "the job writes again, after " in done.stderr
    assert done.stdout.count("ends") == 3


def test_a_hang_is_stopped(stage: Stage, script, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    words = ("--hang_timeout", "2", "--on_hang", "stop", "--report", report)
    stage.run(*WORDS, *words, script(QUIET.format(seconds=999)), code=77)
    found = json.loads(report.read_text())
    assert found["cause"] == "hang"
    assert found["note"].startswith("nothing was written for ")
    assert found["stacks"].startswith("rank 1     program.py:10 read_batch")


def test_a_hang_is_a_failure_after_which_a_job_is_restarted(stage: Stage, script) -> None:
    program = script(QUIET.format(seconds="0.1 if os.environ['TORCHELASTIC_RESTART_COUNT'] == '1' else 999"))
    done = stage.run(*WORDS, "--hang_timeout", "2", "--on_hang", "restart", "--restarts", "1", program, code=0)
    assert "bireme: restart 1 of 1" in done.stderr


WORKS = """
import os, time
if os.environ["RANK"] != "0":
    time.sleep(4.5)
for number in range(45):
    exec(f"def f{number}(): time.sleep(0.1)\\nf{number}()")
"""
READS = """
import time
end = time.time() + 4.5
while time.time() < end:
    open("/dev/zero", "rb").read(1 << 20)
    time.sleep(0.05)
"""


CLEAN = {
    "one-rank-works": WORKS,
    "all-read": READS,
    "all-write": """
import tempfile, time
file, end = tempfile.TemporaryFile(), time.time() + 4.5
while time.time() < end:
    file.write(bytes(1 << 20))
    file.seek(0)
    time.sleep(0.05)
""",
    "children-move": """
import subprocess, sys
code = "import time\\nfor _ in range(90): open('/dev/zero', 'rb').read(1 << 20); time.sleep(0.05)"
subprocess.run([sys.executable, "-c", code])
""",
    "a-thread-moves": """
import threading, time

def reads():
    end = time.time() + 4.5
    while time.time() < end:
        open("/dev/zero", "rb").read(1 << 20)
        time.sleep(0.05)

thread = threading.Thread(target=reads)
thread.start()
thread.join()
""",
    "one-talks": """
import os, time
for _ in range(9):
    time.sleep(0.5)
    if os.environ["RANK"] == "0":
        print("still here", flush=True)
""",
    "ranks-that-end": """
import os, time
time.sleep(4.5 if os.environ["RANK"] == "0" else 0)
""",
}


@pytest.mark.parametrize("kind", CLEAN)
def test_a_job_in_which_something_moves_does_not_hang(stage: Stage, script, kind: str) -> None:
    limit = "2" if kind != "ranks-that-end" else "auto"
    done = stage.run(*WORDS, "--hang_timeout", limit, script(CLEAN[kind]), code=0)
    assert "seems to hang" not in done.stderr


def test_of_another_program_the_kernel_is_asked(stage: Stage, tmp_path) -> None:
    program = tmp_path / "waits.sh"
    program.write_text(f"#!/bin/bash\nexec 7<{program}\nexec sleep 1000\n")
    program.chmod(0o755)
    done = stage.run("run", "--num_gpus", "2", "--time_limit", "2", "--no_python", str(program), code=124)
    why = r"ranks 0-1  it is not a Python process  asleep in .*; open: waits.sh, 0\.\d"
    assert re.search(why, done.stderr), done.stderr
