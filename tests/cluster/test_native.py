"""``--native_ranks``: MPI's world of a program is the world of the job, with every launcher."""

from __future__ import annotations

import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cluster.basics import signal_all
from tests.cluster.jobs import UNEVEN, Jobs, backends
from tests.cluster.testbed import Testbed
from tests.conftest import read_lines
from tests.kit import needs

# What it sees by MPI, beside what the environment says.
MPI = """
import os
from mpi4py import MPI
world = MPI.COMM_WORLD
assert world.allreduce(1) == world.size
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "LOCAL_WORLD_SIZE", "CUDA_VISIBLE_DEVICES")
words = ("sees", os.uname().nodename, world.rank, world.size, *map(os.environ.get, names))
os.write(1, (" ".join(map(str, words)) + "\\n").encode())  # in one piece: engines write none of their own
"""
SEEN = [
    "node1 0 6 0 6 0 0 2 0,1",
    "node1 1 6 1 6 1 0 2 0,1",
    "node2 2 6 2 6 0 1 3 0,1,2",
    "node2 3 6 3 6 1 1 3 0,1,2",
    "node2 4 6 4 6 2 1 3 0,1,2",
    "node3 5 6 5 6 0 2 1 0",
]
ONE_EACH = [f"node{node + 1} {node} 3 {node} 3 0 {node} 1 0" for node in range(3)]
FAILS = """
import os, time
os.write(1, b"ready\\n")
while not os.path.exists("go"):
    time.sleep(0.01)
if os.environ["RANK"] == "1":
    os._exit(3)
time.sleep(1000)
"""
IGNORES = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.write(1, b"ready\\n")
while True:
    time.sleep(1000)
"""
NATIVE = ("openmpi", "mpich", "slurm")


def exports(jobs: Jobs) -> list[str]:
    """What mpi4py needs to find Debian's MPI: MPICH's library has another file name there than anywhere else.

    A step of ``srun`` has no library of its own: MPICH's speaks its protocol.
    """
    abi = "openmpi" if jobs.backend == "openmpi" else "mpich"
    found = sorted(Path("/usr/lib").glob("*/libmpi.so.40" if abi == "openmpi" else "*/libmpich.so.12"))
    if not found:
        needs.missing(f"the library of {abi} is not there")
    (jobs.shared / ("libmpi.so.40" if abi == "openmpi" else "libmpi.so.12")).symlink_to(found[0])
    return ["--export", f"MPI4PY_MPIABI={abi}", "--export", f"LD_LIBRARY_PATH={jobs.shared}"]


@pytest.mark.slow
@pytest.mark.parametrize("backend", backends(*NATIVE))
def test_world_of_mpi(jobs: Jobs, backend: str) -> None:
    """Size, ranks and hosts are the same by MPI and by the environment protocol; on uneven nodes where these may be."""
    program = jobs.write("sees.py", MPI)
    options = ["--native_ranks", *exports(jobs), "--accelerator", "cuda"]
    if backend == "slurm":
        options += ["--launcher_args=--mpi=pmi2", "--num_gpus", "1"]
    expected = ONE_EACH if backend == "slurm" else SEEN
    process = jobs.start(*options, program, hosts=UNEVEN)
    lines = read_lines(process, len(expected), "sees")
    assert sorted(line.removeprefix("sees ").rstrip() for line in lines) == expected
    # Not to its end: Debian's MPICH (4.0.2, UCX) may hang in MPI_Finalize where hosts share a kernel, by itself too.
    jobs.login.kill(process, signal.SIGTERM)
    process.communicate(timeout=60)


@pytest.mark.slow
@pytest.mark.parametrize("backend", backends("openmpi", "slurm"))
def test_rank_fails(jobs: Jobs, backend: str) -> None:
    """The engines that end the others do; nothing is left."""
    process = jobs.start("--native_ranks", jobs.write("fails.py", FAILS))
    read_lines(process, 6, "ready")
    (jobs.shared / "go").touch()
    _, err = process.communicate(timeout=60)
    assert process.returncode in ((3,) if backend == "openmpi" else (3, 143)), err
    jobs.testbed.leaves_nothing()


@pytest.mark.slow
@pytest.mark.parametrize("backend", backends(*NATIVE))
def test_the_command_is_killed(jobs: Jobs) -> None:
    """The launcher gets the time to end the ranks, and to give its allocation back."""
    process = jobs.start("--native_ranks", jobs.write("ignores.py", IGNORES))
    read_lines(process, 6, "ready")
    jobs.login.kill(process, signal.SIGKILL)
    process.communicate(timeout=60)
    jobs.testbed.leaves_nothing()
    assert not jobs.testbed.slurm or not jobs.testbed.slurm_jobs(30)


def test_the_command_is_killed_in_an_allocation(slurm_cluster: Testbed, shared_dir: Path) -> None:
    """The allocation is somebody else's, and stays; the step ends."""
    jobs = Jobs(slurm_cluster, "slurm", shared_dir)
    command = shlex.join(jobs.command("--native_ranks", jobs.write("ignores.py", IGNORES)))
    wait = "while [ ! -e go ]; do sleep 0.1; done"
    steps = "squeue --noheader --steps --job $SLURM_JOB_ID --format %i"
    after = (
        f"while [ -n \"$({steps})\" ]; do sleep 0.1; done; squeue --noheader --job $SLURM_JOB_ID --format 'still %T'"
    )
    script = f"{command} & {wait}; {steps}; kill -KILL $!; {after}"
    salloc = ["salloc", "--quiet", "-N3", "-n6", "sh", "-c", script]
    process = jobs.login.popen(salloc, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=str(shared_dir))
    read_lines(process, 6, "ready")
    (shared_dir / "go").touch()
    out, _ = process.communicate(timeout=60)
    assert [line.rpartition(".")[2] for line in out.decode().splitlines()] == ["0", "still RUNNING"], out


def of_srun(jobs: Jobs) -> list[int]:
    """The processes of srun on the login host."""
    return [pid for pid, found in jobs.login.ps().items() if found.argv[0].endswith("srun")]


@pytest.mark.slow
def test_the_command_is_killed_while_srun_hangs(slurm_cluster: Testbed, shared_dir: Path) -> None:
    """It does not end within its 15 s, so its allocation is cancelled."""
    jobs = Jobs(slurm_cluster, "slurm", shared_dir)
    process = jobs.start("--native_ranks", jobs.write("ignores.py", IGNORES))
    read_lines(process, 6, "ready")
    signal_all(of_srun(jobs), signal.SIGSTOP)
    jobs.login.kill(process, signal.SIGKILL)
    process.communicate(timeout=60)
    assert not slurm_cluster.slurm_jobs(60)


def test_srun_is_killed(slurm_cluster: Testbed, shared_dir: Path) -> None:
    """It has a process beside it that would give the allocation back, but that is killed with it."""
    jobs = Jobs(slurm_cluster, "slurm", shared_dir)
    process = jobs.start("--native_ranks", jobs.write("ignores.py", IGNORES))
    read_lines(process, 6, "ready")
    signal_all(of_srun(jobs), signal.SIGKILL)
    jobs.end(process, 137)
    assert not slurm_cluster.slurm_jobs(30)
