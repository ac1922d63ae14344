"""How kills by the out-of-memory killer are recognised. Real ones are in ``tests/run/test_out_of_memory.py``."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from bireme.process.oom import OomWatch


def log(pid: int) -> None:
    """What the killer would say of a process."""
    try:
        with open("/dev/kmsg", "w") as file:
            file.write(f"test: Killed process {pid} (python) total-vm:1kB")
    except OSError as error:
        pytest.skip(f"the kernel's log cannot be written: {error}")


def test_only_what_is_logged_later_counts() -> None:
    """An earlier record of the same number was of another process."""
    pid = (1 << 40) + os.getpid()  # no process has this number
    log(pid)
    before = os.listdir("/proc/self/fd")
    watch = OomWatch()
    assert not watch.struck(pid)
    log(pid)
    assert watch.struck(pid) and watch.struck(pid) and not watch.struck(pid // 10)
    watch.close()
    watch.close()
    assert not watch.struck(pid + 1)
    assert os.listdir("/proc/self/fd") == before


WITHOUT_LOG = """
import resource, sys
from bireme.process.oom import OomWatch
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
watch = OomWatch()
assert not watch.struck(7)
watch.close()
sys.exit(sys.stdin.read())
"""


def test_a_log_that_cannot_be_opened() -> None:
    """Nothing else is taken for it, such as what we read ourselves."""
    words = [sys.executable, "-c", WITHOUT_LOG]
    done = subprocess.run(
        words, input=(text := "Killed process 7 (rank)\n"), capture_output=True, text=True, check=False
    )
    assert done.stderr == f"{text}\n"
