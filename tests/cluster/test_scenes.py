"""Any part of a job dies on a real cluster, with every backend: nothing is left, and the exit code says what died."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.cluster import ways
from tests.cluster.basics import outermost
from tests.cluster.testbed import Testbed
from tests.conftest import PROGRAMS, bireme, read_lines

T = TypeVar("T")
SCENE = PROGRAMS / "scene.py"
GRACE = 0.5
HEARTBEAT = 5.0
RANKS = 6
PROGRAM_OF = {"ssh": "ssh", "pdsh": "pdsh", "openmpi": "mpirun.openmpi", "mpich": "mpiexec.mpich", "slurm": "srun"}

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


def cases(over_ssh: Iterable[T], others: Mapping[str, Sequence[T]]) -> list[Any]:
    """Parameters for the fixture and for what happens, with names such as ``ssh-SIGTERM``."""
    each = [("ssh", case) for case in over_ssh] + [(backend, case) for backend in others for case in others[backend]]
    return [pytest.param(backend, case, id=f"{backend}-{getattr(case, 'name', case)}") for backend, case in each]


class Scene:
    """One job of three nodes with two ranks each, all of them ready."""

    def __init__(self, testbed: Testbed, backend: str, shared: Path) -> None:
        self.testbed, self.backend, self.shared = testbed, backend, shared
        self.go = shared / "go"
        self.hostfile = shared / "hostfile"
        self.hostfile.write_text("".join(f"node{n} slots=2\n" for n in (1, 2, 3)))

    def start(self, part: str, *options: str) -> subprocess.Popen[bytes]:
        command = bireme("run", "--hostfile", self.hostfile, *ways.launcher(self.backend), "--grace", str(GRACE))
        command += ["--heartbeat", str(HEARTBEAT), *options, str(SCENE), part, str(self.go)]
        pipe = subprocess.PIPE
        process = self.testbed["login"].popen(command, cwd=str(self.shared), stdout=pipe, stderr=pipe, text=False)
        read_lines(process, RANKS, "ready")
        return process

    def clean(self) -> None:
        """Nothing of the job on any host that runs, its engine's daemons included."""
        self.testbed.leaves_nothing()


@pytest.fixture
def scene(request: pytest.FixtureRequest, shared_dir: Path, tool: Callable[[str], str]) -> Iterator[Scene]:
    tool((PROGRAM_OF | ways.PROGRAM_OF)[request.param])
    cluster = "slurm_cluster" if request.param == "slurm" else "ssh_cluster"
    yield Scene(ways.prepared(request.getfixturevalue(cluster), request.param), request.param, shared_dir)


def end(process: subprocess.Popen[bytes]) -> str:
    _, err = process.communicate(timeout=60)
    return err.decode(errors="replace")


@pytest.mark.slow
@pytest.mark.parametrize(("scene", "part"), cases(BY_ITSELF, OTHERS_BY_ITSELF), indirect=["scene"])
def test_rank_fails(scene: Scene, part: str) -> None:
    process = scene.start(part)
    scene.go.touch()
    err = end(process)
    assert process.returncode == BY_ITSELF[part], err
    scene.clean()
    assert "rank 5 on node3" in err and "failed first" in err
    assert "5 other ranks were stopped" in err


@pytest.mark.slow
@pytest.mark.parametrize(("scene", "signum"), cases(TO_COMMAND, OTHERS_TO_COMMAND), indirect=["scene"])
def test_command_is_signalled(scene: Scene, signum: signal.Signals) -> None:
    process = scene.start("wait")
    scene.testbed["login"].kill(process, signum)
    err = end(process)
    if TO_COMMAND[signum] is not None:
        assert process.returncode == TO_COMMAND[signum], err
    scene.clean()


@pytest.mark.slow
@pytest.mark.parametrize("scene", ["ssh", "exec", "openmpi", "slurm"], indirect=True)
def test_agent_is_killed(scene: Scene) -> None:
    process = scene.start("grandchild")
    node = scene.testbed["node2"]
    (agent,) = outermost(node.agents())  # the other one is its guardian
    os.kill(agent, signal.SIGKILL)
    err = end(process)
    assert process.returncode == 75, err
    assert "agent lost on node2" in err
    scene.clean()


@pytest.mark.slow
@pytest.mark.parametrize(("scene", "fault"), cases(NODE_FAULTS, OTHERS_NODE_FAULTS), indirect=["scene"])
def test_node_is_lost(scene: Scene, fault: str) -> None:
    process = scene.start("wait")
    node = scene.testbed["node2"]
    getattr(node, fault)()
    err = end(process)
    assert process.returncode == 75, err
    assert "agent lost on node2" in err
    if fault == "freeze":
        node.thaw()
    elif fault == "cut":
        node.heal()
    # the node that was cut off has ended its ranks by itself, within the same bound
    scene.clean()
