"""The report names a rank that the out-of-memory killer ended. Needs root and a writable memory control group."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

V1, V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")

EATS = """
import os, time
if os.environ["RANK"] == "1":
    blocks = []
    while True:
        blocks.append(b"x" * 1_000_000)
time.sleep(1000)
"""


@pytest.fixture
def small_memory():
    """A control group that allows little memory: a function by which a child enters one in it, without a limit."""
    name = f"bireme-test-{os.getpid()}"
    if (V1 / "memory.limit_in_bytes").exists():
        group, limits = V1 / name, {"memory.limit_in_bytes": "120M", "memory.memsw.limit_in_bytes": "120M"}
    elif "memory" in (V2 / "cgroup.subtree_control").read_text().split() if (V2 / "cgroup.controllers").exists() else 0:
        group, limits = V2 / name, {"memory.max": "120M", "memory.swap.max": "0"}
    else:
        pytest.skip("there is no control group for memory")
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"cannot make a control group: {error}")
    for file, value in limits.items():
        if (group / file).exists():
            (group / file).write_text(value)
    (inner := group / "inner").mkdir()
    yield lambda: (inner / "cgroup.procs").write_text(str(os.getpid()))
    inner.rmdir()
    group.rmdir()


def test_the_killers_victim_is_named(stage, script, small_memory):
    done = stage.run("run", "-q", "--num_gpus", "2", script(EATS), preexec_fn=small_memory, code=137)
    report = done.stderr[done.stderr.index("bireme: rank 1") :]
    assert "SIGKILL (exit code 137)" in report
    assert report.count("out-of-memory killer") == 1
    limit = f"it has reached the limit of 120 MiB of the control group /bireme-test-{os.getpid()} (/sys/fs/cgroup/"
    assert limit in report, report


WITHOUT_LOG = """
import subprocess, sys
from bireme.process.oom import OomWatch
watch = OomWatch()
watch.close()
victim = subprocess.Popen([sys.executable, "-c", "blocks = []\\nwhile True: blocks.append(b'x' * 1_000_000)"])
print(watch.struck(victim.pid), victim.wait(), watch.struck(victim.pid))
"""


def test_the_counters_name_the_same_limit(small_memory):
    words = [sys.executable, "-c", WITHOUT_LOG]
    done = subprocess.run(words, capture_output=True, text=True, preexec_fn=small_memory, check=True)
    limit = f"the limit of 120 MiB of the control group /bireme-test-{os.getpid()} (/sys/fs/cgroup/"
    assert done.stdout.startswith(f"None -9 {limit}")


def test_another_kill_is_not_blamed_on_memory(stage, script, small_memory):
    program = script("import os\nos.kill(os.getpid(), 9)\n")
    done = stage.run("run", "-q", program, preexec_fn=small_memory, code=137)
    assert "out-of-memory" not in done.stderr
