"""DeepSpeed's ``ResourceManager`` on nodes of different sizes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.basics import wait_until
from tests.cluster.testbed import Testbed

REPOSITORY = Path(__file__).resolve().parents[2]

MANAGER = """
import json, sys
from pathlib import Path
from tests.unit.deepspeed.conftest import CONTRACT, Made

make = Made(Path.cwd())
hosts = {"node1": [0, 1, 2], "node2": [4], "node3": [0, 1], "node4": [2, 3]}
launch = ("--launcher", "ssh", "--heartbeat", "10", "--grace", "1")
manager = make.manager("--until", "go", hosts=hosts, launch=launch)
"""
WHOLE = """
manager.schedule_experiments([
    make.exp("wide", micro=1, gpus=3),
    make.exp("pair", micro=2, gpus=2, nodes=2),
    make.exp("one", micro=4),
    make.exp("last", micro=8, gpus=1, nodes=4),
])
manager.run()
"""
ONE = """
manager.schedule_experiments([make.exp("one", gpus=2)])
exp = manager.experiment_queue.pop()
manager.run_job(exp, manager.resource_request(exp))
print("runs", flush=True)
sys.stdin.readline()
manager.clear()
print(manager.status(), flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def start(ssh_cluster: Testbed, shared_dir: Path):
    def run(source: str) -> subprocess.Popen[bytes]:
        return ssh_cluster["login"].popen(
            [sys.executable, "-c", source],
            cwd=str(shared_dir),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"PYTHONPATH": str(REPOSITORY)},
        )

    return run


@pytest.mark.slow
def test_experiments_of_different_widths_on_uneven_nodes(start, shared_dir: Path) -> None:
    """Slots of several nodes are reserved at once; what needs all nodes waits, and comes last."""
    process = start(MANAGER + WHOLE + "print(json.dumps([*manager.finished_experiments.values()]))")
    results = shared_dir / "results"
    wait_until("three side by side", lambda: len(list(results.glob("*/cmd.txt"))) == 3, 60)
    (shared_dir / "go").touch()
    out, err = process.communicate(timeout=90)
    assert process.returncode == 0, err.decode()
    finished = json.loads(out)
    assert [error for _, error in finished] == [None] * 4
    assert finished[-1][0]["name"] == "last"
    slots = {path.parent.name: json.loads(path.read_text())["slots"] for path in results.glob("*/exp.json")}
    assert slots == {
        "wide": "node1:0,1,2",
        "pair": "node3:0,1@node4:2,3",
        "one": "node2:4",
        "last": "node1:0@node2:4@node3:0@node4:2",
    }


@pytest.mark.slow
def test_slots_are_idle_when_nothing_is_left_on_the_node(start, ssh_cluster: Testbed, shared_dir: Path) -> None:
    """The run is killed, and can stop nothing any more: the node's agent does, when it misses it."""
    process = start(MANAGER + ONE)

    def ranks() -> list[object]:
        return [p for p in ssh_cluster["node1"].ps().values() if "contract.py" in " ".join(p.argv)]

    assert process.stdout.readline() == b"runs\n"
    wait_until("ranks", lambda: len(ranks()) == 2, 60)
    runs = [pid for pid, p in ssh_cluster["login"].ps().items() if "--report" in p.argv]
    os.kill(min(runs), signal.SIGKILL)  # the other one is its guardian
    process.stdin.write(b"clear\n")
    process.stdin.flush()
    assert process.stdout.readline().startswith(b"node1 (3 idle gpus)")
    assert ranks() == []
    _, err = process.communicate(b"\n", timeout=60)
    assert process.returncode == 0, err.decode()
