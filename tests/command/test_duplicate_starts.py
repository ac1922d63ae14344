"""Tests that a command that srun or mpirun starts once for each task is refused."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.conftest import bireme, clean_environ
from tests.kit import needs

SRUN = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"}
OPENMPI = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}
MPICH = {"MPI_LOCALNRANKS": "2", "PMI_SIZE": "2", "PMI_RANK": "0"}
RUN = ("run", "--dry_run", "--accelerator", "cpu", "--num_gpus", "2")


def typed(*words: object, **environ: str) -> subprocess.CompletedProcess[str]:
    command = bireme(*map(str, words))
    return subprocess.run(command, env={**clean_environ(), **environ}, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(("program", "environ"), [("srun", SRUN), ("mpirun", OPENMPI), ("mpirun", MPICH)])
def test_the_first_task_says_what_to_type(program: str, environ: dict[str, str]) -> None:
    done = typed(*RUN, __file__, "--lr", "1", "--password", "s3cret", **environ)
    assert done.returncode == 2 and done.stdout == ""
    what, hint = done.stderr.splitlines()
    assert what == f"bireme: {program} has started this command 2 times, and each would run the whole job"
    assert hint.startswith(f"  type it without {program}: {shlex.join(('bireme', *RUN, __file__, '--lr', '1'))}")
    assert "s3cret" not in hint


def test_the_others_say_nothing() -> None:
    for environ in (SRUN | {"SLURM_PROCID": "1"}, OPENMPI | {"OMPI_COMM_WORLD_RANK": "1"}, MPICH | {"PMI_RANK": "1"}):
        done = typed(*RUN, __file__, **environ)
        assert (done.returncode, done.stdout, done.stderr) == (2, "", "")


@pytest.mark.parametrize(
    "environ",
    [
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "4"},  # a batch script
        SRUN | {"SLURM_STEP_NUM_TASKS": "1"},
        SRUN | {"SLURM_PTY_PORT": "1234"},  # an interactive shell: the other tasks have no terminal to type at
        OPENMPI | {"OMPI_COMM_WORLD_SIZE": "1"},
        MPICH | {"PMI_SIZE": "x"},
    ],
)
def test_started_once(environ: dict[str, str]) -> None:
    done = typed(*RUN, __file__, **environ)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("words", [("--hosts", "localhost:2"), ("--no_ssh", "--node_rank", "0", "--hosts", "a:2,b:2")])
def test_jobs_that_are_meant_so(words: tuple[str, ...]) -> None:
    """A job of its own in each task, or a part of one job."""
    done = typed("run", "--dry_run", "--accelerator", "cpu", *words, __file__, **SRUN)
    assert done.returncode == 0, done.stderr


def test_other_hosts_are_no_reason() -> None:
    done = typed("run", "--dry_run", "--hosts", "a:2,b:2", __file__, **SRUN)
    assert done.returncode == 2 and "type it without srun" in done.stderr


def test_the_tuner() -> None:
    done = typed("tune", "--accelerator", "cpu", __file__, "--deepspeed_config", "absent.json", **SRUN)
    assert done.returncode == 2 and "type it without srun: bireme tune" in done.stderr


@pytest.mark.parametrize("program", ["mpirun.openmpi", "mpiexec.mpich"])
def test_real_mpi(tmp_path: Path, program: str) -> None:
    """Two tasks: one message, no rank."""
    (tmp_path / "ran.py").write_text("open('ran', 'w')\n")
    more = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
    }
    command = [needs.program(program), "-n", "2", *bireme("run", "--accelerator", "cpu", "ran.py")]
    environ = {**clean_environ(), **more, "HOME": os.environ.get("HOME", "/")}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert said.count("mpirun has started this command 2 times") == 1, said
    assert not (tmp_path / "ran").exists()
