"""Tests of executors that others have written, run with `bireme.Executor`: what it does otherwise is listed."""

from __future__ import annotations

import hashlib
import http.client
import io
import json
import os
import re
import ssl
import subprocess
import sys
import tarfile
import urllib.request
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

MPI4PY = "mpi4py-4.1.2"
MPI4PY_URL = (
    "https://files.pythonhosted.org/packages/75/83/231445bbcf7ef10864746c244ff2d82000011449b79275642c5d4ed8c8f4"
    f"/{MPI4PY}.tar.gz"
)
MPI4PY_SHA256 = "56860286dc45f20e8821e93cb06669e30462348bf866f685553fa4b712d58d02"
ONLY_MPI4PY = {
    "arguments of MPIPoolExecutor, such as initializer and python_args, and variables that set them": {
        *(f"ProcessPoolInitTest.test_init_{name}" for name in ("globals", "kwargs", "pyargs", "sys_flags")),
        *(f"ProcessPoolInitTest.test_initializer{name}" for name in ("", "_error", "_error_del", "_error_del_nowait")),
        *(f"ProcessPoolInitTest.test_{name}" for name in ("max_workers_environ", "run_name")),
        *(f"ProcessPoolInitTest.test_use_pkl5_{name}" for name in ("environ", "kwarg")),
    },
    "a communicator of MPI": {"ProcessPoolInitTest.test_get_comm_workers"},
    "map with unordered or buffersize, and starmap": {
        *(f"ProcessPoolExecutorTest.test_map_unordered{name}" for name in ("", "_chunksize", "_exception")),
        *(f"ProcessPoolExecutorTest.test_map_unordered_timeout{name}" for name in ("", "_one")),
        *(f"ProcessPoolExecutorTest.test_{name}" for name in ("map_buffersize", "starmap", "starmap_chunksize")),
    },
    "ranks that begin late, which cannot once the executor is shut down": {
        f"ProcessPoolBootupTest.test_bootup{name}" for name in ("", "_nowait", "_nowait_wait", "_wait")
    },
    "looks into the executor": {
        "ProcessPoolInitTest.test_max_workers",
        "ProcessPoolBootupTest.test_bootup_shutdown_nowait",
        *(f"ProcessPoolShutdownTest.test_{name}" for name in ("context_manager_shutdown", "del_shutdown", "shutdown")),
        *(f"ProcessPoolShutdownTest.test_{name}" for name in ("init_bootup_shutdown", "shutdown_cancel")),
        "ProcessPoolPickleTest.test_exc_unpickle",
    },
    "TypeError and RuntimeError say what cannot be pickled": {
        f"ProcessPoolPickleTest.test_{name}" for name in ("bad_pickle", "bad_unpickle", "exc_pickle")
    },
}
"""What tests of mpi4py ask for that `bireme.Executor` has not, and those tests."""


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


@pytest.mark.slow
def test_those_of_mpi4py(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py.MPI", reason="no mpi4py here", exc_type=(ImportError, RuntimeError))
    try:
        context = ssl.create_default_context(cafile=os.environ.get("PIP_CERT"))
        with urllib.request.urlopen(MPI4PY_URL, context=context, timeout=30) as answer:
            data = answer.read()
    except (OSError, http.client.HTTPException) as error:
        pytest.skip(f"cannot fetch the tests of mpi4py: {error}")
    assert hashlib.sha256(data).hexdigest() == MPI4PY_SHA256
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            if member.isfile() and member.name.startswith((f"{MPI4PY}/demo/futures/", f"{MPI4PY}/test/")):
                file = tmp_path / member.name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(archive.extractfile(member).read())  # type: ignore[union-attr]
    words = [
        sys.executable,
        str(PROGRAMS / "executor_suite.py"),
        str(tmp_path / MPI4PY / "demo/futures/test_futures.py"),
    ]
    done = subprocess.run(words, env=clean_environ(), capture_output=True, text=True, check=False, timeout=500)
    assert done.stdout, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found["failed"]) <= set().union(*ONLY_MPI4PY.values()), done.stderr
    assert found["run"] - len(found["failed"]) >= 20
