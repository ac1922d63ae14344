"""The base install on many nodes: a check and a job on nodes without the packages that only tuning needs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cluster.testbed import Testbed
from tests.kit.clean_install import CleanInstall, build_wheel

RANK = "import os, sys\nprint('rank', os.environ['RANK'], sys.executable)\n"


@pytest.mark.slow
def test_a_check_and_a_job_on_a_set_of_nodes(
    ssh_cluster: Testbed, shared_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    base = CleanInstall(shared_dir / "venv").install(build_wheel(tmp_path_factory))
    (shared_dir / "nodes").write_text("node[1-3] slots=2\n")
    (shared_dir / "rank.py").write_text(RANK)

    def run(command: str) -> list[str]:
        words = [str(base.command), command, "--hostfile", "nodes", "rank.py"]
        done = ssh_cluster["login"].run(words, cwd=str(shared_dir), check=False)
        assert done.returncode == 0, done.stderr
        return sorted(done.stdout.splitlines())

    python = f"Python {'.'.join(map(str, sys.version_info[:3]))}"
    checked = run("check")
    assert [line.split()[0] for line in checked] == ["node1", "node2", "node3"]
    assert all(line.endswith(python) for line in checked)
    assert run("run") == [f"[node{1 + rank // 2}:{rank}] rank {rank} {base.python}" for rank in range(6)]
