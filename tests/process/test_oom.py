"""How kills by the out-of-memory killer are recognised. Real ones are in ``tests/run/test_out_of_memory.py``."""

from __future__ import annotations

import os

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
    watch = OomWatch()
    assert not watch.struck(pid)
    log(pid)
    assert watch.struck(pid) and watch.struck(pid) and not watch.struck(pid // 10)
    watch.close()
    watch.close()
    assert not watch.struck(pid + 1)
