"""The guardian by itself, where no job brings it about. What it does for jobs is in ``tests/run``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

STUBBORN = """
import os, sys, time
from bireme.supervise import guardian
from bireme.supervise.worker import WorkerStart

program = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open('up', 'w'); time.sleep(1000)"
null = os.open(os.devnull, os.O_RDWR)
worker = WorkerStart((sys.executable, "-c", program), dict(os.environ), os.getcwd(), null, null, null)
handle = guardian.start([worker], at_loss=lambda: open("lost", "w"), farewell=0.3)
while not os.path.exists("up"):
    time.sleep(0.01)
handle.close()
print(os.waitpid(handle.pid, 0)[1])
"""


def test_a_farewell_comes_to_an_end(tmp_path: Path) -> None:
    """An engine that waits for a dead node, and whose command was killed, does not care for SIGTERM."""
    done = subprocess.run(
        [sys.executable, "-c", STUBBORN], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("0\n", "")
    assert (tmp_path / "lost").exists()
