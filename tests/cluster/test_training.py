"""A real training on two nodes: PyTorch's DistributedDataParallel over gloo.

Other tests show without PyTorch, which is slow to start, that ranks are the same with every launcher and get nothing of
it: `test_world.py`, `test_rendezvous.py`, `test_by_hand.py`, `test_passing.py`.
"""

from __future__ import annotations

import pytest

from tests.cluster.jobs import Jobs
from tests.kit import needs

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    needs.modules("torch"),
]

HOSTS = "node[1-2]:1"
STEPS = 4
RATE = 0.01

# Learns y = 3 x. Each rank begins with another weight, and sees other numbers. At last one fails.
PROGRAM = f"""
import os, traceback, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.Linear(1, 1, bias=False, dtype=torch.float64)
torch.nn.init.constant_(model.weight, rank)
model = DistributedDataParallel(model)
weight = model.module.weight
for step in range({STEPS}):
    x = torch.tensor([[1.0 + step + rank]], dtype=torch.float64)
    loss = (model(x) - 3 * x).square().mean()
    loss.backward()
    with torch.no_grad():
        weight -= {RATE} * weight.grad
    weight.grad = None
    print("weight", repr(weight.item()), flush=True)
if rank == 1:
    try:
        raise ValueError("in the middle")
    except ValueError:
        traceback.print_exc()
        os._exit(1)  # else its connections are closed some time before it ends, and the other may be first
dist.all_reduce(torch.ones(1))
"""


def expected() -> list[float]:
    """The weight after each step: it begins as rank 0's, and changes by the mean of both ranks' gradients."""
    weight, found = 0.0, []
    for step in range(STEPS):
        gradients = [2 * (weight - 3) * (1.0 + step + rank) ** 2 for rank in range(2)]
        weight -= RATE * sum(gradients) / 2
        found.append(weight)
    return found


def weights(out: str, rank: int) -> list[float]:
    """What a rank says of its weight."""
    found = (line.partition("] weight ") for line in out.splitlines())
    return [float(value) for label, there, value in found if there and label.split(":")[-1] == str(rank)]


def test_ddp_until_a_rank_fails(request: pytest.FixtureRequest) -> None:
    """Every step's weight is on both nodes what both ranks' numbers together make it.

    Then one waits for the other in a collective, on another node: its traceback is the report, its code the job's.
    """
    jobs = Jobs.on(request, "openmpi")
    words = ("--output", "prefix", "--grace", "5", jobs.write("train.py", PROGRAM))
    done = jobs.run(*words, hosts=HOSTS, timeout=250)
    for rank in range(2):
        assert weights(done.stdout, rank) == pytest.approx(expected(), abs=1e-9), done.stderr
    assert done.returncode == 1
    report = [line for line in done.stderr.splitlines() if line.startswith("bireme: ")]
    assert "rank 1 on node2" in report[0] and "failed first" in report[0], report
    assert any("ValueError: in the middle" in line for line in report)
