"""Machines with different monotonic clocks, which stop and step: the first failure is still found."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from itertools import permutations

import pytest

from tests.cluster.basics import signal_all, wait_until
from tests.cluster.jobs import Jobs
from tests.cluster.test_latency import FAIL
from tests.cluster.test_losses import end, found
from tests.cluster.test_manners import halted
from tests.cluster.testbed import CLOCKS, HAVE_CLOCKS, Testbed
from tests.conftest import read_lines

HEARTBEAT = 3.0
SLACK = 8.0
"""Seconds that a busy machine has more than what is promised; less than a bound that is three times as long."""
HOSTS = "node[1-3]:1"
needs_clocks = pytest.mark.skipif(not HAVE_CLOCKS, reason="this kernel has no time namespaces")


@needs_clocks
def test_hosts_have_clocks_of_their_own(ssh_cluster: Testbed) -> None:
    """Some are behind that of the command's machine, some ahead, all by more than a job takes."""
    ask = [sys.executable, "-c", "import time; print(time.monotonic())"]
    begin = time.monotonic()
    ahead = [float(host.run(ask).stdout) - begin for host in ssh_cluster.hosts.values()]
    took = time.monotonic() - begin
    for seconds, clock in zip(ahead, CLOCKS, strict=True):
        assert clock <= seconds <= clock + took
    login, *nodes = CLOCKS
    assert min(nodes) < login < max(nodes)


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), list(permutations(range(3), 2)))
def test_first_failure_whatever_the_clocks(jobs: Jobs, first: int, second: int) -> None:
    """Half a second later a rank on another node fails, whose clock may be hours behind or ahead.

    The command hears of both at once: it is halted meanwhile.
    """
    process = jobs.start(jobs.write("fail.py", FAIL), str(first), str(second), hosts=HOSTS)
    read_lines(process, 2, "ready")
    jobs.login.kill(process, signal.SIGSTOP)
    wait_until("nsenter, which halts with its child", lambda: halted(process.pid), 30)
    (jobs.shared / "go").touch()
    dead = [jobs.testbed[f"node{rank + 1}"] for rank in (first, second)]
    wait_until("both to fail", lambda: not any(found(node, "fail.py") for node in dead), 30)
    os.kill(process.pid, signal.SIGCONT)
    text = end(jobs, process, 3)
    assert f"rank {first} on node{first + 1}" in text and "failed first" in text


# The command with a monotonic clock that steps when a file appears.
STEPS = """
import os, sys, time
real, file, step = time.monotonic, sys.argv.pop(1), float(sys.argv.pop(1))
time.monotonic = lambda: real() + (step if os.path.exists(file) else 0.0)
from bireme.__main__ import command
command()
"""

# A rank that fails when a file of its own appears.
WAITS = """
import os, time
print("ready", flush=True)
while not os.path.exists("fail" + os.environ["RANK"]):
    time.sleep(0.01)
os._exit(7)
"""


@pytest.mark.slow
@pytest.mark.parametrize("blamed", ["the node", "the rank"])
def test_the_commands_clock_steps(jobs: Jobs, blamed: str) -> None:
    """As when its virtual machine is resumed: by many heartbeats. Nobody is missed, and what was first is still known.

    Afterwards a node falls silent and another's rank fails, or the other way round. That other node is farther away
    then than it was before the step: a round trip that is shorter than all before would tell its clock anyway.
    """
    node1, node2 = jobs.testbed["node1"], jobs.testbed["node2"]
    words = ("run", "--heartbeat", str(HEARTBEAT), "--hosts", HOSTS, str(jobs.write("waits.py", WAITS)))
    command = [sys.executable, str(jobs.write("steps.py", STEPS)), "stepped", str(10 * HEARTBEAT), *words]
    process = jobs.login.popen(command, cwd=str(jobs.shared), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    read_lines(process, 3, "ready")
    node1.delay(20)
    (jobs.shared / "stepped").touch()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.5 * HEARTBEAT)  # this time itself is what is tested
    if blamed == "the node":
        node2.freeze()
        time.sleep(0.1 * HEARTBEAT)
        (jobs.shared / "fail0").touch()
        wait_until("the rank to fail", lambda: not found(node1, "waits.py"), 30)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 75 and b"agent lost on node2" in err, err
    else:
        jobs.login.kill(process, signal.SIGSTOP)
        wait_until("nsenter, which halts with its child", lambda: halted(process.pid), 30)
        (jobs.shared / "fail0").touch()
        wait_until("the rank to fail", lambda: not found(node1, "waits.py"), 30)
        time.sleep(0.5)  # a node that is gone is dated 0.25 s before its channel ends
        signal_all(node2.agents(), signal.SIGKILL)
        os.kill(process.pid, signal.SIGCONT)
        jobs.end(process, 7)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["freeze", "cut"])
def test_how_soon_a_node_is_missed(jobs: Jobs, fault: str) -> None:
    """Within 1.25 heartbeats, and so does a node that is cut off miss the command; a busy machine has some more."""
    node2 = jobs.testbed["node2"]
    words = ("--heartbeat", HEARTBEAT, "--grace", "0.5", jobs.write("waits.py", WAITS))
    process = jobs.start(*words, hosts=HOSTS)
    read_lines(process, 3, "ready")
    begin = time.monotonic()
    getattr(node2, fault)()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 75 and b"agent lost on node2" in err, err
    if fault == "cut":
        wait_until("the ranks over there to go", lambda: not found(node2, "waits.py"), 60)
    assert 0.5 * HEARTBEAT < time.monotonic() - begin < 1.25 * HEARTBEAT + SLACK
