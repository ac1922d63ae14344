"""``--job_name`` and ``--cwd``: where the name of a job is seen, and where a job works."""

from __future__ import annotations

import json
import os

import pytest

import bireme
from bireme.backends import choice
from bireme.cluster.cluster_job import new_allocation

SHOWS = """
import os, sys
from pathlib import Path
parent = os.getppid()
name = Path(f"/proc/{parent}/comm").read_text().strip()
above = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[1]
print(os.environ.get("BIREME_JOB_NAME"), name, Path(f"/proc/{above}/comm").read_text().strip())
sys.exit(3)
"""


@pytest.mark.parametrize("nodes", [(), ("--hosts", "localhost:1", "--force_multi")], ids=["here", "by an agent"])
@pytest.mark.parametrize("log", ["--log_dir", "--enable_each_rank_log"])
def test_where_a_name_is_seen(stage, script, tmp_path, nodes, log):
    options = ("--job_name", "llama-7b.1", log, tmp_path / "logs", "--report", tmp_path / "report")
    done = stage.run("run", *nodes, *options, script(SHOWS), code=3)
    assert done.stdout.split() == ["llama-7b.1", "bireme:llama-7b", "bireme:llama-7b"]  # the kernel keeps 15 bytes
    assert "\nbireme: llama-7b.1: rank 0 on " in f"\n{done.stderr}"
    assert json.loads((tmp_path / "report").read_text())["job_name"] == "llama-7b.1"
    assert [name[:11] for name in os.listdir(tmp_path / "logs")] == ["llama-7b.1_"]


def test_a_job_without_a_name(stage, script):
    assert stage.run("run", script(SHOWS)).stdout.split() == ["None", "bireme-guard", "bireme-watch"]


def test_the_name_of_an_allocation():
    slurm = choice.load("slurm")
    name = new_allocation(slurm, {}, "llama")
    assert name.startswith("llama-") and name != new_allocation(slurm, {}, "llama"), "scancel --name needs it"
    assert new_allocation(slurm, {}, "").startswith("bireme-")


@pytest.mark.parametrize("name", ["a b", "../x", "x" * 65, "a\n"])
def test_no_name(stage, script, name):
    done = stage.run("run", "-J", name, script("pass"))
    assert (done.returncode, done.stdout) == (2, "") and "not a name for a job" in done.stderr
    with pytest.raises(bireme.BadInputError, match="job_name: not a name for a job"):
        bireme.plan(bireme.JobSpec(bireme.Program("x.py"), job_name=name))


@pytest.fixture
def below(tmp_path):
    """A directory with a program that is only there, and shows where it is."""
    folder = tmp_path / "below"
    folder.mkdir()
    (folder / "where.py").write_text("import os\nprint('metric', len(os.getcwd()), os.getcwd(), os.environ['PWD'])")
    return folder


@pytest.mark.parametrize("nodes", [(), ("--hosts", "localhost:1", "--force_multi")], ids=["here", "by an agent"])
def test_another_directory(stage, tmp_path, below, nodes):
    done = stage.run("run", "--cwd", "below", *nodes, "where.py", cwd=tmp_path)
    assert done.stdout.split()[-2:] == [str(below), str(below)], done.stderr
    wrong = stage.run("run", "--cwd", "none", "where.py", cwd=tmp_path)
    assert (wrong.returncode, wrong.stderr) == (2, "bireme: --cwd: none: No such file or directory\n")


def test_another_directory_for_a_study(stage, tmp_path, below):
    words = ("--param", "x=1,2", "--maximize", "metric {}", "--trials", "2", "where.py")
    done = stage.run("tune", "--cwd", "below", *words, "{x}", cwd=tmp_path, code=0)
    assert f"bireme run --cwd={below} " in done.stdout
    assert (below / "tuning").is_dir()
