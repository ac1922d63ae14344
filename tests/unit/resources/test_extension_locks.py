"""Stale locks of PyTorch's extension builds."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bireme.resources import extension_locks

HOLD = "import os, sys; os.open(sys.argv[1], os.O_CREAT | os.O_EXCL); print(flush=True); sys.stdin.read()"


@pytest.fixture
def build(tmp_path):
    """The process that compiles an extension, as ``torch.utils.file_baton`` marks it."""
    folder = tmp_path / "py311_cpu" / "fused adam"
    folder.mkdir(parents=True)
    words = [sys.executable, "-c", HOLD, str(folder / "lock")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline()
        yield process
        process.kill()


def test_a_lock_is_stale_when_its_owner_was_killed(build, tmp_path):
    environ = {"TORCH_EXTENSIONS_DIR": str(tmp_path)}
    assert extension_locks.stale(environ) == ()
    build.kill()
    build.wait()
    lock = f"{tmp_path}/py311_cpu/fused adam/lock"
    assert extension_locks.stale(environ) == (lock,)
    (warning,) = extension_locks.warnings(environ)
    assert len(warning.splitlines()) == 2 and warning.endswith(f": rm '{lock}'")


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"TORCH_EXTENSIONS_DIR": "{}/t"}, "t/adam"),
        ({"XDG_CACHE_HOME": "{}/c", "HOME": "/nowhere"}, "c/torch_extensions/py311_cu121/adam"),
        ({"HOME": "{}/h"}, "h/.cache/torch_extensions/py311_cpu/adam"),
    ],
)
def test_where_extensions_are_compiled(tmp_path, environ, folder):
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder / "lock").touch()
    environ = {name: value.format(tmp_path) for name, value in environ.items()}
    assert extension_locks.stale(environ) == (f"{tmp_path}/{folder}/lock",)


@pytest.mark.parametrize("environ", [{}, {"HOME": ""}, {"TORCH_EXTENSIONS_DIR": "/nowhere/at/all"}])
def test_nothing_compiled(environ):
    assert extension_locks.stale(environ) == ()
