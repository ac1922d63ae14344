"""``--restarts`` after a node is lost: another node takes its place, or the job becomes smaller."""

from __future__ import annotations

import pytest

from tests.cluster.jobs import Jobs
from tests.conftest import read_lines

WAITS = """
import os, time
attempt, world = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["WORLD_SIZE"]
print("ready", attempt, world, os.uname().nodename, flush=True)
while attempt == "0":
    time.sleep(1)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "worlds"),
    [
        pytest.param(("--num_nodes", 2), {"ready 1 4 node1", "ready 1 4 node3"}, id="another"),
        pytest.param((), {"ready 1 4 node1", "ready 1 4 node3"}, id="smaller"),
        pytest.param(("--include", "node1@node2:1"), {"ready 1 2 node1"}, id="filtered"),
    ],
)
def test_a_lost_node_is_left_out(jobs: Jobs, options: tuple[object, ...], worlds: set[str]) -> None:
    script = jobs.write("waits.py", WAITS)
    process = jobs.start("--heartbeat", 5, "--grace", 0.5, "--restarts", 2, *options, script)
    read_lines(process, {0: 6, 2: 3 if "--include" in options else 4}[len(options)], "ready 0")
    jobs.testbed["node2"].poweroff()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err.decode()
    assert {line.partition("] ")[2] for line in out.decode().splitlines() if "ready 1" in line} == worlds
    assert "bireme: restart 1 of 2, without node2 if others are left" in err.decode()
