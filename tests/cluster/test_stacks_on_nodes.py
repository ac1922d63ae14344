"""The stacks of ranks on nodes, in the report of a job that hangs."""

from __future__ import annotations

import re
import signal
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cluster.jobs import Jobs, backends
from tests.cluster.test_bare_nodes import shadowed
from tests.conftest import bireme, read_lines, wait_for
from tests.kit import needs

pytestmark = needs.programs(str(Path(sys.executable).with_name("py-spy")))
HANGS = """
import os, time

def step():
    if os.environ["RANK"] == "3":
        read_batch()
    time.sleep(1000)

def read_batch():
    os.read(os.pipe()[0], 1)

step()
"""


@pytest.mark.parametrize("backend", backends())
def test_the_odd_rank_of_all_nodes_is_named(jobs: Jobs) -> None:
    done = jobs.run("--time_limit", "10", jobs.write("hangs.py", HANGS), hosts="node[1-2]:2", code=124)
    _, _, stacks = done.stderr.partition("before they were stopped:\n")
    assert stacks, done.stderr
    said = stacks.splitlines()
    assert said[0].startswith("bireme:     rank 3 on node2  hangs.py:10 read_batch ← hangs.py:6 step ← hangs.py:12")
    assert said[1].startswith("bireme:     ranks 0-2        hangs.py:7 step ← hangs.py:12")


def test_nodes_without_py_spy_get_it(jobs: Jobs, home: Path) -> None:
    """It is sent when it is needed, kept, and sent again only if what is kept is another file."""
    script, seen = jobs.write("hangs.py", HANGS), []
    tool = str(Path(sys.executable).with_name("py-spy"))
    with ExitStack() as stack:
        for name in ("node1", "node2"):
            stack.enter_context(shadowed(jobs.testbed[name], tool, "/dev/null"))
        for _ in range(3):
            done = jobs.run("--time_limit", "4", script, hosts="node[1-2]:2", code=124)
            assert "rank 3 on node2  hangs.py:10 read_batch ← hangs.py:6 step" in done.stderr, done.stderr
            (kept,) = (home / ".cache/bireme/tools").iterdir()
            assert kept.stat().st_mode & 0o777 == 0o700
            assert kept.read_bytes() == Path(tool).read_bytes()
            seen.append(kept.stat().st_mtime_ns)
            if len(seen) == 2:
                with kept.open("ab") as file:
                    file.write(b"evil")
    assert seen[0] == seen[1]


def test_what_the_ranks_of_all_nodes_use(jobs: Jobs) -> None:
    script = jobs.write("begins.py", "import time\nprint('begins', flush=True)\ntime.sleep(1000)\n")
    job = jobs.start("--job_name", "measured", script, hosts="node[1-2]:2")
    read_lines(job, 4, "begins")
    ask = bireme("top", "--once", "measured")
    said = wait_for(lambda: jobs.login.run(ask, check=False).stdout, "the job takes requests")
    assert "measured: 4 ranks on 2 nodes, running for" in said
    for node, ranks in (("node1", "01"), ("node2", "23")):
        assert re.search(rf"^{node}  {ranks[0]}: +\d+% \d+M \d+s +{ranks[1]}: +\d+% \d+M \d+s$", said, re.MULTILINE), (
            said
        )
    jobs.login.kill(job, signal.SIGTERM)
    job.communicate(timeout=60)
