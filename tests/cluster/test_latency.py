"""A node far away: only times change, and a failure that is reported late may still be the first one."""

from __future__ import annotations

import time

import pytest

from tests.cluster.jobs import GOLDEN, LOOK, UNEVEN, Jobs, far, rows, table
from tests.cluster.test_rendezvous import MEET, met
from tests.cluster.test_streams import HOST_OF
from tests.kit.written import WRITER, by_rank, expected

DELAY = 50  # ms each way


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "name"), [("ssh", "node3"), ("openmpi", "node1")])
def test_changes_nothing_but_time(jobs: Jobs, name: str) -> None:
    """Not for node 0 either, whose address and port are tried from the others."""
    with far(jobs.testbed[name], DELAY):
        done = jobs.run(jobs.write("both.py", f"{LOOK}\n{MEET}"), "job", hosts=UNEVEN, code=0)
        assert rows(jobs.looked(done)) == table(GOLDEN["all"][1])
        met(done.stdout.splitlines(), "job", ("node1", "node1", "node2", "node2", "node2", "node3"))
        process = jobs.start("-q", WRITER, "pieces", "1000")
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert by_rank(out, HOST_OF) == {rank: expected(rank, b"out", 1000) for rank in HOST_OF}
    assert by_rank(err, HOST_OF) == {rank: expected(rank, b"err", 1000) for rank in HOST_OF}


@pytest.mark.slow
def test_no_heartbeat_is_missed(jobs: Jobs) -> None:
    """On a far node, for some lengths of the bound."""
    heartbeat = 4.0
    with far(jobs.testbed["node2"], DELAY):
        begin = time.monotonic()
        done = jobs.run("--heartbeat", heartbeat, "--no_python", "sleep", str(2 * heartbeat))
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - begin > 2 * heartbeat


# Two failures: the last rank's, and as soon as it can be seen, rank 0's.
FAIL = """
import fcntl, os, sys, time
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
first, second = map(int, sys.argv[1:])
lock = open("lock", "a")
if rank == first:
    fcntl.flock(lock, fcntl.LOCK_EX)
    open("locked", "w").close()
    while not os.path.exists("go"):
        time.sleep(0.001)
    os._exit(3)
while not os.path.exists("locked"):
    time.sleep(0.001)
print("ready", flush=True)
if rank == second:
    fcntl.flock(lock, fcntl.LOCK_EX)  # had only when the first is dead: all hosts have one kernel
    time.sleep(0.5)
    os._exit(4)
time.sleep(1000)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("first", "backend"), [(5, "ssh"), (0, "ssh"), (5, "openmpi")])
def test_first_failure_wins_over_first_heard(jobs: Jobs, first: int) -> None:
    """The far node's rank fails 500 ms before the near one's, which is heard 500 ms sooner; and the other way round.

    A busy machine may take some of these milliseconds to notice either end. The node is near while it starts, so that
    its clock is known well.
    """
    from tests.conftest import read_lines

    process = jobs.start("--grace", "5", jobs.write("fail.py", FAIL), str(first), str(5 - first))
    read_lines(process, 5, "ready")
    with far(jobs.testbed["node3"], 1000):
        (jobs.shared / "go").touch()
        _, err = process.communicate(timeout=90)
    text = err.decode()
    assert process.returncode == 3, text
    assert f"rank {first} on {HOST_OF[first]}" in text and "failed first" in text
    assert "failed first" not in text.replace(f"rank {first} on", "", 1).partition("failed first")[2]
