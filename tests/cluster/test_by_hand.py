"""Jobs without a channel: the command, or a per-node launcher, is typed on each node, and all form one job."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.cluster.jobs import GOLDEN, LOOK, UNEVEN, Jobs, rows, table
from tests.cluster.test_rendezvous import MEET, met
from tests.conftest import bireme, read_lines

pytestmark = pytest.mark.installed

NODES = ("node1", "node2", "node3")


def start_on_each(jobs: Jobs, commands: list[list[str]]) -> list[subprocess.Popen[bytes]]:
    """One command on each of the first nodes."""
    kwargs = {"cwd": str(jobs.shared), "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return [jobs.testbed[name].popen(words, **kwargs) for name, words in zip(NODES, commands, strict=False)]


def by_hand(jobs: Jobs, *words: object) -> list[list[str]]:
    """``--no_ssh --node_rank K`` for each node."""
    hostfile = jobs.write("hostfile", UNEVEN)
    common = ("run", "--hostfile", hostfile, "--no_ssh", "--node_rank")
    return [bireme(*common, str(number), *map(str, words)) for number in range(3)]


def by_agent(jobs: Jobs, *words: object) -> list[list[str]]:
    """DeepSpeed's per-node launcher: what it is given, our module in its place."""
    from bireme.planning.world import encode_world_info

    world = encode_world_info({"node1": [0, 1], "node2": [0, 1, 2], "node3": [0]})
    common = [
        sys.executable,
        "-m",
        "bireme.agent",
        f"--world_info={world}",
        f"--master_addr={jobs.testbed['node1'].ip}",
    ]
    return [[*common, "--master_port=29511", f"--node_rank={number}", *map(str, words)] for number in range(3)]


WAYS = {"no_ssh": by_hand, "agent": by_agent}


@pytest.mark.parametrize("way", WAYS)
def test_one_world(jobs: Jobs, way: str) -> None:
    for node in jobs.testbed.nodes:
        node.kill_sshd()
    processes = start_on_each(jobs, WAYS[way](jobs, jobs.write("look.py", LOOK)))
    for process in processes:
        jobs.end(process)
    looks = jobs.looked(subprocess.CompletedProcess((), 0))
    assert rows(looks) == table(GOLDEN["all"][1])


@pytest.mark.parametrize("way", WAYS)
def test_ranks_meet(jobs: Jobs, way: str) -> None:
    processes = start_on_each(jobs, WAYS[way](jobs, "--output", "prefix", jobs.write("meet.py", MEET), "job"))
    lines: list[str] = []
    for process in processes:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        lines += out.decode().splitlines()
    lines.sort(key=lambda line: line.partition("]")[0])
    hosts = ("node1", "node1", "node2", "node2", "node2", "node3")
    address, _ = met(lines, "job", hosts)
    assert address in (jobs.testbed["node1"].ip, "node1")


def test_exit_code_is_the_nodes_own(jobs: Jobs) -> None:
    """Nobody but its own ranks is stopped by a failure: there is no channel to the others."""
    program = jobs.write(
        "some.py",
        "import os, sys, time\nprint('ready', flush=True)\n"
        "time.sleep(1000) if os.environ['NODE_RANK'] != '1' else sys.exit(7)\n",
    )
    processes = start_on_each(jobs, by_hand(jobs, "--grace", "5", program))
    _, err = processes[1].communicate(timeout=60)
    assert processes[1].returncode == 7, err
    for place, count in ((0, 2), (2, 1)):
        read_lines(processes[place], count, "ready")
        assert processes[place].poll() is None
