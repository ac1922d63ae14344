"""Calls a function in a process of its own that has the virtual clock of `tests.golden.driver`, for other tests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.golden.__main__ import environ

_CALL = """
import sys, json
sys.path[:0] = [sys.argv[1], sys.argv[2]]
from importlib import import_module
from tests.golden import driver
driver.install()
result = getattr(import_module(sys.argv[3]), sys.argv[4])(*json.loads(sys.argv[5]))
print("\\n" + json.dumps(result))
"""
_ROOT = Path(__file__).parent.parent.parent


def call(module: str, function: str, *args: object) -> Any:
    """What the function returns; arguments and result travel as JSON."""
    command = [sys.executable, "-c", _CALL, str(_ROOT), str(_ROOT / "src"), module, function, json.dumps(args)]
    done = subprocess.run(command, cwd=_ROOT, env=environ(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])
