"""The shim of a native rank by itself. With the engines it is in ``tests/cluster/test_native.py``."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from bireme.agent import sent_code
from tests.conftest import clean_environ

PLAN = {"world": [["here", ["0"]]], "variables": [], "addr": "here", "port": 1}


def shim(place: int, *words: str) -> subprocess.CompletedProcess[str]:
    argv = sent_code.command("native", json.dumps({**PLAN, "place": place}), *words)
    environ = clean_environ(OMPI_COMM_WORLD_RANK="0", OMPI_COMM_WORLD_LOCAL_RANK="0")
    return subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)


def test_only_our_word_gets_the_local_rank() -> None:
    """The same text in another is the user's own."""
    words = ("echo", "{local_rank}", "--local_rank={local_rank}", "{local_rank}")
    assert shim(2, *words).stdout == "{local_rank} --local_rank=0 {local_rank}\n"


@pytest.mark.parametrize(("mode", "code", "why"), [(0o600, 126, "Permission denied"), (0, 127, "No such file")])
def test_what_cannot_be_executed(tmp_path: Path, mode: int, code: int, why: str) -> None:
    program = tmp_path / "program"
    if mode:
        program.touch(mode)
    done = shim(-1, str(program))
    assert done.returncode == code and done.stderr.startswith(f"bireme: cannot run {program}: {why}"), done.stderr
