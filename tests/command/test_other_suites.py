"""Tests of executors that others have written, run with `bireme.Executor`: what it does otherwise is listed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PROGRAMS, ROOT, clean_environ
from tests.kit import needs

SUITE = "test.test_concurrent_futures"
OTHERWISE = {
    "ExecutorTest.test_max_workers_negative": "BadInputError names the field num_gpus",
    "ExecutorDeadlockTest.test_error_at_task_pickle": "submit raises TypeError, which names the argument",
    "ExecutorDeadlockTest.test_shutdown_deadlock_pickle": "looks into the executor",
    "ExecutorDeadlockTest.test_gh105829_should_not_deadlock_if_wakeup_pipe_full": "looks into the executor",
    "ExecutorDeadlockTest.test_error_at_task_unpickle": "the error is raised as itself, and the rank stays",
    "ExecutorDeadlockTest.test_exit_at_task_unpickle": "the error is raised as itself, and the rank stays",
    "ExecutorDeadlockTest.test_error_during_result_pickle_on_worker": "TypeError, which names the type of the result",
    "ExecutorDeadlockTest.test_exit_during_result_pickle_on_worker": "TypeError, which names the type of the result",
    "ExecutorDeadlockTest.test_error_during_result_unpickle_in_result_handler": "RuntimeError, and the rank stays",
    "ExecutorDeadlockTest.test_exit_during_result_unpickle_in_result_handler": "RuntimeError, and the rank stays",
}


def with_tests() -> str:
    """An interpreter that brings CPython's tests, since 3.11: this one, or the newest that pyenv has."""
    home = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    others = sorted(
        home.glob("versions/3.1[0-9].*/bin/python3"), key=lambda path: list(map(int, re.findall(r"\d+", str(path))))
    )
    for python in (sys.executable, *map(str, reversed(others))):
        modules = f"sys, {SUITE}, {SUITE.replace('concurrent_futures', 'support')}"
        wanted = f"import {modules}; assert sys.version_info >= (3, 11)"
        words = [python, "-c", wanted]
        if not subprocess.run(words, capture_output=True, check=False).returncode:
            return python
    needs.missing(f"no Python here brings {SUITE}")


@pytest.mark.slow
def test_those_of_cpython() -> None:
    words = [with_tests(), str(PROGRAMS / "executor_suite.py"), "CPYTHON"]
    environ = clean_environ(PYTHONPATH=str(ROOT / "src"))
    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=False, timeout=500)
    assert done.stdout, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found["failed"]) <= set(OTHERWISE), done.stderr
    assert found["run"] - len(found["failed"]) >= 30
