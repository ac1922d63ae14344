"""Runs a script as its rank, and exits with 3 if threads of gloo are left when Python shuts down: they may abort it."""

from __future__ import annotations

import atexit
import os
import runpy
import sys
from pathlib import Path


def check() -> None:
    left = [task.name for task in Path("/proc/self/task").iterdir() if "gloo" in (task / "comm").read_text()]
    if left:
        sys.stderr.write(f"threads of gloo are left: {left}\n")
        os._exit(3)


atexit.register(check)
del sys.argv[0]
sys.path[0] = os.path.dirname(sys.argv[0])
runpy.run_path(sys.argv[0], run_name="__main__")
