"""A working directory full of files named like Python's modules: only ranks execute any of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from bireme import isolated
from tests.cluster.jobs import Jobs, backends
from tests.command.test_isolated import RANK
from tests.kit.traps import Traps


@pytest.mark.parametrize(
    ("backend", "path"),
    [
        pytest.param(backend, path, id=f"{backend}-{'PYTHONPATH' if path else 'working directory'}")
        for backend, path in (
            *(("ssh", False), ("ssh", True), ("pdsh", True), ("openmpi", True)),
            *(("openmpi", False), ("mpich", False), ("slurm", False), ("slurm", True)),
        )
    ],
)
def test_only_ranks_take_what_lies_there(request: pytest.FixtureRequest, backend: str, path: bool) -> None:
    """Agents are started there too (Slurm's, and that of the command's own machine), or with PYTHONPATH, or both."""
    jobs, traps, environ = arranged(request, backend, path)
    hosts = "node1:1,node2:1" if backend == "slurm" else "login:1,node1:1,node2:1"
    command = ["run", "--launcher", backend, "--hosts", hosts, "rank.py"]
    done = jobs.login.run(isolated.command("bireme", *command), cwd=str(jobs.shared), env=environ, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"took {jobs.shared / 'json.py'}") == hosts.count(":")
    assert traps.sprung() == []


@pytest.mark.parametrize("backend", backends("openmpi", "mpich", "slurm"))
def test_ranks_of_the_engine(request: pytest.FixtureRequest, backend: str) -> None:
    jobs, traps, environ = arranged(request, backend, path=True)
    command = ["run", "--native_ranks", "--launcher", backend, "--hosts", "node1:2,node2:2", "rank.py"]
    done = jobs.login.run(isolated.command("bireme", *command), cwd=str(jobs.shared), env=environ, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"took {jobs.shared / 'json.py'}") == 4
    assert traps.sprung() == []


def arranged(request: pytest.FixtureRequest, backend: str, path: bool) -> tuple[Jobs, Traps, dict[str, str]]:
    """What sets PYTHONPATH on a node is its login, of which this file is a part."""
    jobs = Jobs.on(request, backend)
    traps = Traps(jobs.shared)
    elsewhere = jobs.shared.parent / "path"
    traps.set(elsewhere)
    jobs.write("rank.py", RANK)
    environ = {"PYTHONPATH": f":{elsewhere}:relative"} if path else {}
    if path:
        profile = Path(jobs.testbed.home) / ".bashrc"
        profile.write_text(f"export PYTHONPATH={environ['PYTHONPATH']}\n")
        request.addfinalizer(profile.unlink)
    return jobs, traps, environ
