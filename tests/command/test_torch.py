"""With PyTorch itself: a real process group, and its own ``record`` decorator. Needs torch."""

from __future__ import annotations

import pytest

from tests.kit import needs

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    needs.modules("torch"),
]

MEET_AND_FAIL = """
import os, sys, time, torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record


@record
def main():
    dist.init_process_group("gloo")
    value = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(value)
    os.write(1, f"sum {int(value.item())} of {dist.get_world_size()}\\n".encode())
    if dist.get_rank() == 1:
        sys.stderr = open("/dev/null", "w")  # so that only the record can tell
        raise ValueError("boom")
    try:
        dist.all_reduce(torch.ones(1))  # waits for the other
    finally:
        time.sleep(60)  # which closes its connections before it has ended

try:
    main()
except ValueError:
    os._exit(1)  # once in a while PyTorch aborts a process that ends ("terminate called without an active exception")
"""


def test_ranks_meet_and_one_fails_while_the_other_waits_in_a_collective(stage, script):
    """What PyTorch's own ``record`` has written is in the report."""
    words = ("run", "-q", "--accelerator", "cpu", "--num_gpus", "2", "--grace", "5")
    done = stage.run(*words, script(MEET_AND_FAIL), timeout=120)
    assert done.stdout.count("sum 3 of 2") == 2
    assert done.returncode == 1
    report = done.stderr[done.stderr.rindex("bireme: rank ") :]
    assert "rank 1 on " in report and "failed first" in report
    assert "ValueError: boom" in report
