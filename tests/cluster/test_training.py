"""A real training on three nodes: PyTorch's DistributedDataParallel over gloo, the same on every backend."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.cluster.test_by_hand import start_on_each
from tests.cluster.test_world import Jobs, backends
from tests.conftest import bireme

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(map(importlib.util.find_spec, ("torch", "sklearn"))), reason="PyTorch or scikit-learn is not installed"
    ),
]

DIGITS = Path(__file__).parents[2] / "examples/digits_ddp.py"
EPOCHS = 3
_reference: list[list[str]] = []


def said(out: str) -> list[str]:
    """What rank 0 says of loss and accuracy."""
    return [line.partition("] ")[2] for line in out.splitlines() if "loss" in line or "accuracy" in line]


def reference(jobs: Jobs) -> list[str]:
    """What six ranks on one machine come to, without any network: once in a session."""
    if not _reference:
        words = bireme("run", "--num_gpus", "6", "--accelerator", "cpu", DIGITS, "--epochs", str(EPOCHS))
        done = jobs.login.run(words, cwd=str(jobs.shared), timeout=300)
        _reference.append(said(done.stdout))
    return _reference[0]


@pytest.mark.parametrize("backend", backends())
def test_ddp(request: pytest.FixtureRequest, backend: str) -> None:
    """Every epoch's loss, and the accuracy, are those of one machine."""
    jobs = Jobs.on(request, backend)
    done = jobs.run(DIGITS, "--epochs", str(EPOCHS), timeout=300)
    assert done.returncode == 0, done.stderr
    assert said(done.stdout) == reference(jobs)
    assert len(said(done.stdout)) == EPOCHS + 1
    assert float(said(done.stdout)[-1].split()[-1]) > 0.8


def test_ddp_by_hand(request: pytest.FixtureRequest) -> None:
    """``--no_ssh`` on each node."""
    jobs = Jobs.on(request, "ssh")
    hostfile = jobs.write("hostfile", "node1 slots=2\nnode2 slots=2\nnode3 slots=2\n")
    common = ("run", "--hostfile", hostfile, "--no_ssh", "--output", "prefix", "--node_rank")
    program = (DIGITS, "--epochs", str(EPOCHS))
    processes = start_on_each(jobs, [bireme(*common, str(number), *program) for number in range(3)])
    outs = []
    for process in processes:
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        outs.append(out.decode())
    assert said(outs[0]) == reference(jobs)


def test_a_rank_that_fails_in_the_middle(request: pytest.FixtureRequest) -> None:
    """The others wait for it in a collective, on other nodes: its traceback is the report, its code the job's."""
    jobs = Jobs.on(request, "ssh")
    program = jobs.write(
        "fails.py",
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "dist.all_reduce(torch.ones(1))\n"
        "if dist.get_rank() == 4:\n"
        "    raise ValueError('in the middle')\n"
        "dist.all_reduce(torch.ones(1))\n",
    )
    done = jobs.run("--grace", "5", program, timeout=300)
    assert done.returncode == 1
    report = [line for line in done.stderr.splitlines() if line.startswith("bireme: ")]
    assert "rank 4 on node3" in report[0] and "failed first" in report[0], report
    assert any("ValueError: in the middle" in line for line in report)
