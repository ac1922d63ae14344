"""A real training on two nodes: PyTorch's DistributedDataParallel over gloo, with every backend."""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path

import pytest

from tests import needs
from tests.cluster.test_by_hand import start_on_each
from tests.cluster.test_world import Jobs, backends
from tests.conftest import bireme, clean_environ

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    needs.modules("torch", "sklearn"),
]

DIGITS = Path(__file__).parents[2] / "examples/digits_ddp.py"
EPOCHS = 2
HOSTS = "node[1-2]:1"  # PyTorch's start is what costs the time here: two ranks are enough


def said(out: str) -> list[str]:
    """What rank 0 says of loss and accuracy."""
    return [line.partition("] ")[2] for line in out.splitlines() if "loss" in line or "accuracy" in line]


@pytest.fixture
def reference(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What two ranks on one machine come to, without any network: once in a session, by the worker that is first."""
    base = tmp_path_factory.getbasetemp()
    kept = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "digits.txt"
    with kept.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        lines = file.read().splitlines()
        if not lines:
            command = bireme("run", "--num_gpus", "2", "--accelerator", "cpu", DIGITS, "--epochs", str(EPOCHS))
            done = subprocess.run(command, capture_output=True, text=True, check=True, env=clean_environ(), timeout=250)
            lines = said(done.stdout)
            file.write("\n".join(lines))
    return lines


@pytest.mark.parametrize("backend", backends("ssh", "openmpi", "slurm"))
def test_ddp(request: pytest.FixtureRequest, backend: str, reference: list[str]) -> None:
    """Every epoch's loss, and the accuracy, are those of one machine."""
    jobs = Jobs.on(request, backend)
    done = jobs.run(DIGITS, "--epochs", str(EPOCHS), hosts=HOSTS, timeout=300)
    assert done.returncode == 0, done.stderr
    assert said(done.stdout) == reference
    assert len(said(done.stdout)) == EPOCHS + 1
    assert float(said(done.stdout)[-1].split()[-1]) > 0.8


def test_ddp_by_hand(request: pytest.FixtureRequest, reference: list[str]) -> None:
    """``--no_ssh`` on each node."""
    jobs = Jobs.on(request, "ssh")
    hostfile = jobs.write("hostfile", "node1 slots=1\nnode2 slots=1\n")
    common = ("run", "--hostfile", hostfile, "--no_ssh", "--output", "prefix", "--node_rank")
    program = (DIGITS, "--epochs", str(EPOCHS))
    processes = start_on_each(jobs, [bireme(*common, str(number), *program) for number in range(2)])
    outs = []
    for process in processes:
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        outs.append(out.decode())
    assert said(outs[0]) == reference


def test_a_rank_that_fails_in_the_middle(request: pytest.FixtureRequest) -> None:
    """The others wait for it in a collective, on other nodes: its traceback is the report, its code the job's."""
    jobs = Jobs.on(request, "ssh")
    program = jobs.write(
        "fails.py",
        "import os, traceback, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "dist.all_reduce(torch.ones(1))\n"
        "if dist.get_rank() == 2:\n"
        "    try:\n"
        "        raise ValueError('in the middle')\n"
        "    except ValueError:\n"
        "        traceback.print_exc()\n"
        "        os._exit(1)  # else its connections are closed some time before it ends, and the others may be first\n"
        "dist.all_reduce(torch.ones(1))\n",
    )
    done = jobs.run("--grace", "5", program, hosts="node[1-3]:1", timeout=300)
    assert done.returncode == 1
    report = [line for line in done.stderr.splitlines() if line.startswith("bireme: ")]
    assert "rank 2 on node3" in report[0] and "failed first" in report[0], report
    assert any("ValueError: in the middle" in line for line in report)
