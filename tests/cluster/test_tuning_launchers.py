"""Studies with every launcher, and in a Slurm allocation: several runs at once, each on its own nodes and slots."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cluster.basics import outermost, wait_until
from tests.cluster.jobs import Jobs, backends, gpus
from tests.cluster.test_losses import found, ranks_of
from tests.cluster.testbed import Testbed
from tests.conftest import PROGRAMS, bireme

pytestmark = pytest.mark.slow

CONTRACT = PROGRAMS / "contract.py"


def configure(folder: Path, micro: Sequence[int], stages: Sequence[int] = (0,)) -> None:
    """A study of so many configurations: no more than the test needs, for each is a job."""
    config = {
        "train_micro_batch_size_per_gpu": [*micro],
        "zero_optimization": {"stage": [*stages]},
        "autotuning": {"enabled": True},
    }
    (folder / "ds.json").write_text(json.dumps(config))


def words_of(*options: str) -> list[str]:
    return ["--grace", "1", *options, str(CONTRACT), "--deepspeed_config", "ds.json", "--until", "go"]


def ranks(testbed: Testbed) -> int:
    """How many ranks there are on the nodes."""
    return sum(len(ranks_of(node, CONTRACT)) for node in testbed.nodes)


def check(folder: Path, out: bytes, err: bytes, count: int) -> list[str]:
    """All were measured, each once; where each ran."""
    text = out.decode()
    measured = re.findall(r"^\| z\S+ .*\| ok +\|$", (folder / "autotuning_results/summary.txt").read_text(), re.M)
    assert len(measured) == count, text + str(err)
    assert "infrastructure" not in text
    return re.findall(r"^z\S+ starts on (\S+)$", text, re.M)


@pytest.mark.parametrize("backend", backends("pdsh", "openmpi", "mpich", "slurm"))
def test_side_by_side(jobs: Jobs, backend: str) -> None:
    """Two runs of two nodes at once, from outside an allocation."""
    configure(jobs.shared, [4, 8])
    words = words_of("--launcher", backend, "--hosts", "node[1-4]:1", "--num_nodes", "2", "--num_gpus", "1")
    process = jobs.login.popen(
        bireme("tune", *words), cwd=str(jobs.shared), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    wait_until("four ranks", lambda: ranks(jobs.testbed) == 4, 60)
    jobs.write("go", "")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, out + err
    on = check(jobs.shared, out, err, 2)
    assert on == ["node1:0@node2:0", "node3:0@node4:0"]
    optimal = shlex.split((jobs.shared / "autotuning_results" / "cmd_optimal.txt").read_text())
    assert f"--launcher={backend}" in optimal
    done = jobs.login.run(bireme(*optimal[1:]), cwd=str(jobs.shared))
    assert done.stdout.count("real job 0 8") == 2


def test_side_by_side_in_an_allocation(slurm_cluster: Testbed, shared_dir: Path) -> None:
    """Four steps at once, two on each node, each with a GPU of its own."""
    jobs = Jobs(slurm_cluster, "slurm", shared_dir)
    configure(shared_dir, [4, 8], [0, 1])
    with gpus(slurm_cluster.nodes):
        command = bireme("tune", *words_of("--num_nodes", "1", "--num_gpus", "1"))
        salloc = ["salloc", "--quiet", "-N2", "--gres=gpu:2", *command]
        process = jobs.login.popen(salloc, cwd=str(shared_dir), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        wait_until("four ranks", lambda: process.poll() is not None or ranks(slurm_cluster) == 4, 60)
        jobs.write("go", "")
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, out + err
    assert sorted(check(shared_dir, out, err, 4)) == ["node1:0", "node1:1", "node2:0", "node2:1"]
    for path in shared_dir.glob("autotuning_results/z*/stdout.log"):
        on = json.loads((path.parent / "exp.json").read_text())["slots"]
        assert f"devices {on.partition(':')[2]} " in path.read_text()


def tuned(testbed: Testbed, folder: Path, *options: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    (folder / "go").touch()
    done = testbed["login"].run(bireme("tune", *words_of(*options)), cwd=str(folder), check=False, timeout=200)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def test_nodes_that_do_not_declare_their_slots_are_asked(ssh_cluster: Testbed, shared_dir: Path) -> None:
    """They have GPUs, and not equally many."""
    one, two, *_ = ssh_cluster.nodes
    with gpus([one], 1), gpus([two], 3):
        configure(shared_dir, [4, 8, 16, 32])
        done = tuned(ssh_cluster, shared_dir, "--hosts", "node[1-2]", "--num_nodes", "1")
        on = set(check(shared_dir, done.stdout.encode(), b"", 4))
        assert on == {"node1:0", "node2:0", "node2:1", "node2:2"}
        configure(shared_dir, [4, 8])
        done = tuned(ssh_cluster, shared_dir, "--hosts", "node[1-2]", "--include", "node2:0,2", "--num_gpus", "1")
        assert set(check(shared_dir, done.stdout.encode(), b"", 2)) == {"node2:0", "node2:2"}


def test_nodes_without_accelerators_have_to_declare_slots(ssh_cluster: Testbed, shared_dir: Path) -> None:
    configure(shared_dir, [4])
    done = tuned(ssh_cluster, shared_dir, "--hosts", "node[1-2]", code=2)
    assert "node1 has no accelerator and no declared slots" in done.stderr
    assert not (shared_dir / "autotuning_results").exists()


def test_a_node_that_cannot_be_asked(ssh_cluster: Testbed, shared_dir: Path) -> None:
    configure(shared_dir, [4])
    ssh_cluster["node2"].poweroff()
    done = tuned(ssh_cluster, shared_dir, "--hosts", "node[1-2]", code=69)
    assert "1 of 2 nodes cannot run the job" in done.stderr and "node2" in done.stderr
    assert not (shared_dir / "autotuning_results").exists()


@pytest.mark.installed
def test_on_the_only_node_of_an_allocation(slurm_cluster: Testbed, shared_dir: Path) -> None:
    """By a batch script, whose machine it is: nothing is to be reached."""
    jobs = Jobs(slurm_cluster, "slurm", shared_dir)
    configure(shared_dir, [4, 8])
    jobs.write("go", "")
    command = shlex.join(bireme("tune", *words_of("--num_gpus", "1")))
    script = jobs.write("job.sh", f"#!/bin/sh\ncd {shared_dir}\n{command}\n")
    with gpus([slurm_cluster["node1"]]):
        words = ["sbatch", "-N1", "-w", "node1", "--gres=gpu:2", "--output", f"{shared_dir}/job.out"]
        jobs.login.run([*words, "--chdir", str(shared_dir), str(script)])
        wait_until("its end", lambda: not slurm_cluster.slurm_jobs(), 200)  # --wait would look every half minute
    said = (shared_dir / "job.out").read_bytes()
    assert set(check(shared_dir, said, b"", 2)) == {"node1:0", "node1:1"}


def test_a_tuner_in_an_allocation_is_stopped(slurm_cluster: Testbed, shared_dir: Path) -> None:
    jobs = Jobs(slurm_cluster, "slurm", shared_dir)
    configure(shared_dir, [4, 8])
    command = bireme("tune", *words_of("--hosts", "node[1-4]:2", "--num_nodes", "2", "--num_gpus", "1"))
    salloc = ["salloc", "--quiet", "-N4", *command]
    process = jobs.login.popen(salloc, cwd=str(shared_dir), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_until("four ranks", lambda: ranks(slurm_cluster) == 4, 60)
    pids = [pid for pid in found(jobs.login, "bireme tune") if "salloc" not in jobs.login.ps()[pid].argv[0]]
    (tuner,) = outermost(pids)  # the others are guardians of its
    os.kill(tuner, signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert b"interrupted: the same command resumes the search" in out, err
    assert ranks(slurm_cluster) == 0
