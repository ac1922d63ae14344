"""With PyTorch itself: real process groups, and its own ``record`` decorator. Needs torch."""

from __future__ import annotations

import pytest

from tests import needs

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    needs.modules("torch"),
]

SUM = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
value = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(value)
print("sum", int(value.item()), "of", dist.get_world_size(), flush=True)
dist.destroy_process_group()
"""

HANGS = """
import time, torch
import torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 1:
    raise ValueError("boom")
try:
    dist.all_reduce(torch.ones(1))  # waits for the other
finally:
    time.sleep(60)  # which closes its connections before it has ended
"""

RECORDS = """
import sys
from torch.distributed.elastic.multiprocessing.errors import record


@record
def main():
    raise ValueError("boom")

sys.stderr = open("/dev/null", "w")  # so that only the record can tell
main()
"""


def test_ranks_meet(stage, script):
    done = stage.run("run", "-q", "--accelerator", "cpu", "--num_gpus", "3", script(SUM), timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("sum 6 of 3") == 3


def test_two_jobs_at_once_meet_each_their_own(stage, script):
    program = script(SUM)
    jobs = [stage.start("run", "-q", "--accelerator", "cpu", "--num_gpus", n, program) for n in (1, 2)]
    for job, text in zip(jobs, (b"sum 1 of 1", b"sum 3 of 2"), strict=True):
        out, err = job.communicate(timeout=120)
        assert job.returncode == 0, err
        assert out.count(text) == int(text[-1:])


def test_a_failure_while_the_others_wait_in_a_collective(stage, script):
    done = stage.run("run", "-q", "--accelerator", "cpu", "--num_gpus", "2", "--grace", "5", script(HANGS), timeout=120)
    assert done.returncode == 1
    report = done.stderr[done.stderr.rindex("bireme: rank ") :]
    assert "rank 1 on " in report
    assert "ValueError: boom" in report


def test_the_record_decorator(stage, script):
    done = stage.run("run", "-q", "--accelerator", "cpu", "--num_gpus", "1", script(RECORDS), timeout=120)
    assert done.returncode == 1
    assert "ValueError: boom" in done.stderr[done.stderr.index("failed first") :]


def test_in_a_child_that_multiprocessing_has_made(stage, script):
    """Loaders of data: their processes are gone with their rank."""
    program = script(
        "import torch\n"
        "from torch.utils.data import DataLoader\n"
        "if __name__ == '__main__':\n"
        "    loader = iter(DataLoader(torch.arange(100), num_workers=2))\n"
        "    next(loader)\n"
        "    raise SystemExit(7)\n"
    )
    done = stage.run("run", "-q", "--accelerator", "cpu", "--num_gpus", "1", program, timeout=120)
    assert done.returncode == 7
    assert not stage.left()
