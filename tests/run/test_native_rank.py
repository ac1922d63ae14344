"""The shim of ``--native_ranks`` where the program cannot be executed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bireme.agent import native_rank

PLAN = {"world": [["here", ["0", "1"]]], "variables": [], "addr": "here", "port": 1, "place": 1}


@pytest.mark.parametrize(("program", "code"), [("none-{local_rank}", 127), ("", 126)], ids=["missing", "a directory"])
def test_it_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str], program: str, code: int) -> None:
    """As a shell does, by its exit code too; only the word at the place of the plan gets the local rank."""
    environ = {"SLURM_PROCID": "1", "SLURM_LOCALID": "1"}
    path = str(tmp_path / program)
    assert native_rank.main([json.dumps(PLAN), path, "{local_rank}"], environ) == code
    assert capsys.readouterr().err.startswith(f"bireme: cannot run {path}: ")
