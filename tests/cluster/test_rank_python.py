"""The Python of the ranks on the nodes, which need not be that of the command, nor the same everywhere."""

from __future__ import annotations

import shlex
import subprocess
import sys
import zipfile
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cluster.basics import PATH
from tests.cluster.jobs import Jobs
from tests.cluster.test_bare_nodes import mounted
from tests.cluster.test_unfit import refused
from tests.cluster.ways import launcher
from tests.kit.clean_install import ROOT, CleanInstall, build_wheel

RANK = "import os, sys\nprint('rank', os.environ['RANK'], sys.executable)\n"


def pythons(folder: Path, **versions: str) -> str:
    """A Python for each of these nodes, of the version that its file's name tells; the option that names them."""
    for node, version in versions.items():
        own = folder / node / f"python{version}"
        own.parent.mkdir()
        own.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
        own.chmod(0o755)
        (folder / node / "python").symlink_to(own)
    return f"--python={folder}/{{host}}/python"


def checked(jobs: Jobs, *options: str, hosts: str) -> subprocess.CompletedProcess[str]:
    command = jobs.command(*options, hosts=hosts)
    command[command.index("run")] = "check"
    return jobs.login.run(command, cwd=str(jobs.shared), check=False)


@pytest.mark.parametrize("backend", ["ssh", "mpich"])
def test_another_on_each_node(jobs: Jobs, backend: str) -> None:
    option = pythons(jobs.shared, node1="3.12", node2="3.12", node3="3.13")
    look = jobs.look(option, hosts="node[1-3]:1")
    assert (
        "the version of the ranks' Python differs between nodes: 3.12 on node1, node2; 3.13 on node3"
        in look.done.stderr
    )
    assert "Python has not" not in jobs.look(option, hosts="node[1-2]:1").done.stderr
    if backend == "ssh":
        lines = checked(jobs, option, hosts="node[1-3]:1").stdout.splitlines()
        shown = [line.partition("Python ")[2] for line in lines]
        versions = {"node1": "3.12", "node2": "3.12", "node3": "3.13"}
        assert shown == [f"{version}  {jobs.shared}/{node}/python" for node, version in versions.items()]


@pytest.mark.parametrize("backend", ["ssh", "mpich"])
def test_missing_on_a_node(jobs: Jobs) -> None:
    option = pythons(jobs.shared, node1="3.12")
    found = refused(jobs, option, hosts="node[1-2]:1")
    assert list(found) == ["node2"]
    assert f"--python: not found: {jobs.shared}/node2/python" in found["node2"][0]
    assert found["node2"][-1] == "other nodes have it: 3.12 on node1"


@pytest.mark.slow
@pytest.mark.parametrize("way", ["tool", "zip"])
@pytest.mark.parametrize("backend", ["ssh", "mpich"])
def test_bireme_is_on_the_commands_machine_only(
    jobs: Jobs, tmp_path_factory: pytest.TempPathFactory, backend: str, way: str
) -> None:
    """In an environment of its own, with the base install's packages, or as one file; the training has another."""
    own, training = jobs.shared / "own", jobs.shared / "training"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", training], check=True)
    env = {"VIRTUAL_ENV": str(training), "PATH": f"{training}/bin:{PATH}"}
    if way == "tool":
        command = [str(CleanInstall(own).install(build_wheel(tmp_path_factory)).command)]
    else:
        own.mkdir()
        with zipfile.ZipFile(own / "bireme.zip", "w") as file:
            for path in (ROOT / "src").rglob("*.py"):
                file.write(path, path.relative_to(ROOT / "src"))
        command, env["PYTHONPATH"] = [f"{training}/bin/python", "-m", "bireme"], str(own / "bireme.zip")
        sets = jobs.login.run([*command, "check", "--hosts", "node[1-2]"], env=env, check=False)
        assert "the package ClusterShell is not installed" in sets.stderr and sets.returncode == 2
    options = ["--hosts", "node1:1,node2:1", str(jobs.write("rank.py", RANK))]
    with ExitStack() as stack:
        for name in ("node1", "node2"):
            stack.enter_context(mounted(jobs.testbed[name], str(own), "ro"))
        words = [*command, "run", *launcher(backend), *options]
        done = jobs.login.run(words, cwd=str(jobs.shared), env=env, check=False)
    lines = [f"[node{rank + 1}:{rank}] rank {rank} {training}/bin/python" for rank in (0, 1)]
    assert sorted(done.stdout.splitlines()) == lines, done.stderr
