"""Experiments on many nodes: side by side, of different widths, and when a node is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.basics import wait_until
from tests.cluster.testbed import Testbed

REPOSITORY = Path(__file__).resolve().parents[2]

MIXED = """
import json, os, sys
from bireme import isolated
from bireme.loop import Loop
from bireme.tune.execution.diagnosis import diagnose
from bireme.tune.execution.executor import Executor
from bireme.tune.execution.experiment import LaunchRequest, tail
from bireme.tune.execution.trial_launch import ResourcePool, Launch
from bireme.tune.execution.slot_scheduler import Scheduler, Task
from bireme.tune.execution.slot_scheduler import Shape

POOL = {f"node{n}": ("0", "1") for n in range(1, 5)}
WORDS = ("--hosts=node[1-4]:2", "--heartbeat=5", "--grace=1")
LAUNCH = Launch(ResourcePool(POOL), WORDS, sys.argv[1], grace=1.0, heartbeat=5.0)
SHAPES = {name: Shape(*shape) for name, shape in json.loads(sys.argv[2]).items()}


class Client:
    def launch_request(self, name, reservation, place):
        words = LAUNCH.command(name, reservation, place, options=("--report", f"{name}.report"), args=(name,))
        files = [os.path.abspath(f"{name}.{kind}") for kind in ("out", "err", "report")]
        argv = isolated.command("bireme", "run", *words)
        return LaunchRequest(argv, dict(os.environ), os.getcwd(), *files, grace=1.0)

    def judge(self, name, end):
        return diagnose(end, {}, "", tail(f"{name}.err"))

    def settling(self, reservation, end):
        return 0.0 if end.report is not None else LAUNCH.settling(reservation)

    def started(self, name, reservation):
        print(json.dumps(["started", name, reservation.include()]), flush=True)

    def ended(self, name, result, *, again):
        print(json.dumps(["again" if again else "ended", name, result.cause]), flush=True)
        if executor.idle and not executor.waiting:
            loop.stop()


loop = Loop()
executor = Executor(loop, Scheduler(POOL), Client(), back_off=600.0)
for name, shape in SHAPES.items():
    executor.submit(Task(name, shape))
executor.start_ready()
loop.run()
"""

WAITS = """
import os, sys, time
open(f"{sys.argv[-1]}.{os.environ['RANK']}.up", "w").write(os.environ["WORLD_SIZE"])
while not os.path.exists("go"):
    time.sleep(0.02)
"""


def events_of(process: subprocess.Popen[bytes]) -> list[list[str]]:
    out, err = process.communicate(timeout=90)
    assert process.returncode == 0, err.decode()
    return [json.loads(line) for line in out.splitlines()]


@pytest.mark.slow
def test_experiments_of_different_widths_side_by_side(ssh_cluster: Testbed, shared_dir: Path) -> None:
    """1x2, 2x2 and 1x1 fill four nodes of two slots; the last one waits for room. A lost node's run elsewhere."""
    shapes = {"a": [1, 2], "b": [2, 2], "c": [1, 1], "d": [1, 1], "e": [2, 2]}
    (shared_dir / "waits.py").write_text(WAITS)
    program = [sys.executable, "-c", MIXED, "waits.py", json.dumps(shapes)]
    login = ssh_cluster["login"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = login.popen(program, cwd=str(shared_dir), env={"PYTHONPATH": str(REPOSITORY)}, **pipes)
    ranks = {name: nodes * slots for name, (nodes, slots) in shapes.items() if name != "e"}

    def up(name: str) -> int:
        return len(list(shared_dir.glob(f"{name}.*.up")))

    wait_until("four experiments side by side", lambda: all(up(name) == ranks[name] for name in ranks), 60)
    ssh_cluster["node2"].poweroff()
    wait_until("its end", lambda: (shared_dir / "b.report").exists(), 30)
    (shared_dir / "go").touch()
    events = events_of(process)
    starts = [(name, on) for what, name, on in events if what == "started"]
    assert starts[:4] == [("a", "node1:0,1"), ("b", "node2:0,1@node3:0,1"), ("c", "node4:0"), ("d", "node4:1")]
    assert sorted(name for what, name, cause in events if (what, cause) == ("ended", "ok")) == sorted(shapes)
    assert [name for what, name, _ in events if what == "again"] == ["b"]
    assert not any("node2" in on for _, on in starts[4:]), "while it is away it gets none"
    worlds = {name: {path.read_text() for path in shared_dir.glob(f"{name}.*.up")} for name in shapes}
    assert worlds == {name: {str(nodes * slots)} for name, (nodes, slots) in shapes.items()}
