"""Command lines from public documentation and training scripts, with the launcher's name replaced."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest

from bireme.cli.main import main
from tests.conftest import ROOT, clean_environ
from tests.kit import needs

DATA = ROOT / "tests/data/launcher_options.txt"
LAUNCHERS = (
    "torchrun",
    "deepspeed",
    "accelerate launch",
    "torch.distributed.run",
    "torch.distributed.launch",
    "mpirun",
)
FROM_JOB = "(/job/hostfile)"

# What cannot run as typed, by a piece of its options, and what is said.
ANSWERS = {
    "--master_port 66665": "--master_port: must be between 1 and 65535, not 66665",
    "etcd-v2": "'etcd-v2' is not one of static, c10d",
    "--nnodes=512": "name the others with --hostfile or --hosts",
    "-np 32": "unknown option: -np\n  use --num_nodes N for the nodes and --num_gpus N for the ranks on each node",
    "--autotuning": "cannot be used with --dry_run",  # so its words were understood
}

# The same for what needs two cores, where there is one.
ON_ONE_CORE = {
    "--numa-binding=node": "2 ranks need a core each, 1 available",
    "--include localhost:0,1": "node localhost has no slot '1'\n  its slots: 0",
    "--bind_core_list 0-1": " is not available\n  available: ",
    "=2 --bind_cores_to_rank": "2 ranks need a core each, 1 available",
}

# As srun sets it. Each task starts only its own part with such options, so they are not refused as whole jobs.
STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"}


class Use(NamedTuple):
    """One line of the data."""

    source: str
    launcher: str
    options: str


def uses() -> list[Use]:
    lines = DATA.read_text(encoding="utf-8").splitlines()
    return [Use(*map(str.strip, line.split("|"))) for line in lines if line.strip() and not line.startswith("#")]


def typed(use: Use) -> list[str]:
    """The words after ``bireme run``, for stand-ins of the script and the hostfile."""
    words = shlex.split(use.options.replace(FROM_JOB, "--hostfile HOSTFILE").replace("HOSTFILE", "hosts"))
    program = "true" if {"--no-python", "--no_python"} & set(words) else "train.py"
    if {"-m", "--module"} & set(words):
        program = "train"
    return [*words, program, "--lr", "0.1", "-m", "x", "--deepspeed_config", "ds.json"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the stand-ins, and a clean environment."""
    (tmp_path / "train.py").write_text("")
    (tmp_path / "ds.json").write_text("{}")
    (tmp_path / "fsdp2.yaml").write_text("num_processes: 2\ndistributed_type: FSDP\n")
    (tmp_path / "zero3.yaml").write_text("distributed_type: DEEPSPEED\n")
    (tmp_path / "hosts").write_text("".join(f"worker-{number} slots=8\n" for number in range(4)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.environ", clean_environ())
    monkeypatch.setattr("os.cpu_count", lambda: 2)  # what torchrun takes for "cpu", whichever we may use
    return tmp_path


def answer_to(use: Use) -> str:
    """What is said instead of running it here."""
    answers = {**ANSWERS, **(ON_ONE_CORE if len(os.sched_getaffinity(0)) == 1 else {})}
    return next((text for words, text in answers.items() if words in use.options), "")


def with_needs(use: Use) -> object:
    """Nodes that meet by c10d are for PyTorch's own agent."""
    marks = [needs.modules("torch")] if "c10d" in use.options else []
    return pytest.param(use, marks=marks, id=f"{use.launcher} {use.options}")


@pytest.mark.parametrize("use", [with_needs(use) for use in uses()])
def test_runs_or_says_what_to_type(use: Use, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name, value in STEP.items() if use.launcher.startswith("srun ") else ():
        os.environ[name] = value
    code = main(["run", "--dry_run", *typed(use)])
    out, err = capfd.readouterr()
    if answer := answer_to(use):
        assert code == 2 and answer in err and len(err.splitlines()) <= 2
    else:
        assert code == 0, err
        assert "  rank " in out or "node 0" in out or ("--help" in use.options and out.startswith("usage: bireme run"))


def test_needs_two_cores(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """One that may use the first core only is told which option asks for more."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        for use in [use for use in uses() if any(words in use.options for words in ON_ONE_CORE)]:
            test_runs_or_says_what_to_type(use, folder, capfd)
    finally:
        os.sched_setaffinity(0, cores)


def test_enough_sources() -> None:
    """Both documentations, and at least ten repositories; every launcher of the data is one that we know."""
    found = uses()
    assert all(use.launcher.removeprefix("srun ").split(" -m ")[-1] in LAUNCHERS for use in found)
    repositories = {use.source.split()[0] for use in found if "/" in use.source.split()[0]}
    assert len(repositories - {"torch/distributed/run.py,", "torch/distributed/launch.py"}) >= 10
