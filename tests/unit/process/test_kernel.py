"""What the kernel says of other processes."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from bireme.process import kernel

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells it")


def test_a_process_that_sleeps_and_wakes_expects_nothing() -> None:
    """What it waits for cannot be seen while it runs, and does not matter."""
    naps = "import time\nprint(flush=True)\nwhile True: time.sleep(0.0001)"
    with subprocess.Popen([sys.executable, "-c", naps], stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline()
        assert not any(kernel.expects(process.pid, signal.SIGUSR1) for _ in range(500))
        process.kill()
