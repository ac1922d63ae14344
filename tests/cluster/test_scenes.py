"""Any part of a job dies on a real cluster, with every backend: nothing is left, and the exit code says what died."""

from __future__ import annotations

import os
import signal

import pytest

from tests.cluster.jobs import Jobs, cases
from tests.cluster.test_losses import agent_of, end, start

pytestmark = pytest.mark.slow

BY_ITSELF = {"exit3": 3, "segv": 139, "stubborn": 3, "grandchild": 3}
TO_COMMAND = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: None}
NODE_FAULTS = ("panic", "poweroff", "cut", "freeze")

# All over ssh. The others differ in how their processes end, and in what they themselves do about a node that is gone;
# what an agent does is the same under each.
OTHERS_BY_ITSELF = {
    "exec": ["grandchild"],
    "pdsh": ["grandchild"],
    "openmpi": ["stubborn"],
    "mpich": ["grandchild"],
    "slurm": ["stubborn"],
}
OTHERS_TO_COMMAND = {
    "exec": [signal.SIGINT, signal.SIGKILL],
    "pdsh": [signal.SIGKILL],
    "openmpi": [signal.SIGKILL],
    "mpich": [signal.SIGTERM, signal.SIGKILL],
    "slurm": [signal.SIGTERM, signal.SIGKILL],
}
OTHERS_NODE_FAULTS = {
    "exec": ["cut", "freeze"],
    "pdsh": ["panic", "freeze"],
    "openmpi": ["panic", "poweroff", "cut"],
    "mpich": ["panic", "poweroff"],
    "slurm": ["panic", "poweroff", "freeze"],
}


@pytest.mark.parametrize(("backend", "part"), cases(BY_ITSELF, OTHERS_BY_ITSELF))
def test_rank_fails(jobs: Jobs, part: str) -> None:
    process = start(jobs, part=part)
    (jobs.shared / "go").touch()
    text = end(jobs, process, BY_ITSELF[part])
    assert "rank 5 on node3" in text and "failed first" in text
    assert "5 other ranks were stopped" in text


@pytest.mark.parametrize(("backend", "signum"), cases(TO_COMMAND, OTHERS_TO_COMMAND))
def test_command_is_signalled(jobs: Jobs, signum: signal.Signals) -> None:
    process = start(jobs, part="wait")
    jobs.login.kill(process, signum)
    _, err = process.communicate(timeout=60)
    assert TO_COMMAND[signum] in (None, process.returncode), err
    jobs.testbed.leaves_nothing()


@pytest.mark.parametrize("backend", ["ssh", "exec", "openmpi", "slurm"])
def test_agent_is_killed(jobs: Jobs) -> None:
    process = start(jobs)
    os.kill(agent_of(jobs.testbed["node2"]), signal.SIGKILL)
    assert "agent lost on node2" in end(jobs, process, 75)


@pytest.mark.parametrize(("backend", "fault"), cases(NODE_FAULTS, OTHERS_NODE_FAULTS))
def test_node_is_lost(jobs: Jobs, fault: str) -> None:
    process = start(jobs, part="wait")
    node = jobs.testbed["node2"]
    getattr(node, fault)()
    assert "agent lost on node2" in jobs.end(process, 75)
    if fault == "freeze":
        node.thaw()
    elif fault == "cut":
        node.heal()
    # the node that was cut off has ended its ranks by itself, within the same bound
    jobs.testbed.leaves_nothing()
