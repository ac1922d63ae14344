"""More losses than in ``test_scenes``: launchers, guardians, the command's own machine, and losses during the start."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from itertools import combinations
from pathlib import Path

import pytest

from tests.cluster import ways
from tests.cluster.basics import children, outermost, wait_until
from tests.cluster.host import Host
from tests.cluster.jobs import PROGRAM_OF, Jobs, backends, cases, far
from tests.cluster.test_manners import halted
from tests.conftest import PROGRAMS, guards_of, read_lines

SCENE = PROGRAMS / "scene.py"
HEARTBEAT = 5.0


def start(jobs: Jobs, *words: object, part: str = "grandchild") -> subprocess.Popen[bytes]:
    """Six ranks that wait, each with a grandchild in a session of its own."""
    process = jobs.start("--heartbeat", HEARTBEAT, "--grace", "0.5", *words, SCENE, part, "go")
    read_lines(process, 6, "ready")
    return process


def end(jobs: Jobs, process: subprocess.Popen[bytes], code: int) -> str:
    """It ends by itself, with this code; soon after nothing is left anywhere."""
    text = jobs.end(process, code)
    jobs.testbed.leaves_nothing()
    return text


def found(host: Host, *words: str) -> list[int]:
    """Processes of a host with all these words in their arguments."""
    return [pid for pid, process in host.ps().items() if all(word in " ".join(process.argv) for word in words)]


def ranks_of(host: Host, program: Path) -> list[int]:
    """The ranks of a host that run this program: not what has its name in its arguments, and no path decides."""
    return [pid for pid, process in host.ps().items() if process.argv[1:3] == ["-u", str(program)]]


def agent_of(host: Host) -> int:
    """The agent, which is above its watcher and its guardian."""
    (agent,) = outermost(host.agents())
    return agent


def command_of(process: subprocess.Popen[bytes]) -> int:
    """The command, which its nsenter has started."""
    (command,) = wait_until("the command", lambda: children(process.pid), 30)
    return command


def guards(pid: int) -> dict[str, int]:
    """Watcher and guardian, once both are there."""
    return wait_until("watcher and guardian", lambda: len(pids := guards_of(pid)) == 2 and pids, 30) or {}


def engine_of(jobs: Jobs) -> int:
    """The outermost process of the engine; where each node has its own, that of node2. ``srun`` has a child."""
    pids = [
        pid
        for pid, there in jobs.login.ps().items()
        if ("node2" in there.argv and there.argv[0] != sys.executable)
        or os.path.basename(there.argv[0]) == PROGRAM_OF.get(jobs.backend, "") != "ssh"
    ]
    return next(iter(outermost(pids)), 0)


@pytest.mark.slow
@pytest.mark.parametrize("backend", backends("ssh", "exec", "openmpi", "mpich", "slurm"))
def test_engine_is_killed(jobs: Jobs, backend: str) -> None:
    """Over ssh the session of one node, else the one command of all agents (but pdsh leaves its sessions)."""
    process = start(jobs)
    os.kill(engine_of(jobs), signal.SIGKILL)
    text = end(jobs, process, 75)
    assert ("agent lost on node2" if backend in ("ssh", "exec") else "agent lost on node") in text


def test_a_lost_node_is_an_event(jobs: Jobs) -> None:
    process = start(jobs, "--events", jobs.shared / "events")
    os.kill(agent_of(jobs.testbed["node2"]), signal.SIGKILL)
    end(jobs, process, 75)
    told = [json.loads(line) for line in (jobs.shared / "events").read_text().splitlines()]
    by_name = {name: [each["host"] for each in told if each["event"] == name] for name in ("connected", "lost")}
    assert sorted(by_name["connected"]) == ["node1", "node2", "node3"] and by_name["lost"] == ["node2"]


@pytest.mark.slow
@pytest.mark.parametrize("which", ["watcher", "guardian"])
def test_guardian_on_a_node_is_killed(jobs: Jobs, which: str) -> None:
    process = start(jobs)
    os.kill(guards(agent_of(jobs.testbed["node2"]))[which], signal.SIGKILL)
    assert "agent lost on node2" in end(jobs, process, 75)


THREE = ("agent", "watcher", "guardian")


@pytest.mark.slow
@pytest.mark.parametrize("several", [*combinations(THREE, 2), THREE], ids=" and ".join)
def test_several_of_a_node_are_killed_at_once(jobs: Jobs, several: tuple[str, ...]) -> None:
    """Halted before, none can do anything about another's end; after all three only the kernel ends the ranks."""
    jobs.testbed["node2"].run("rm -rf /tmp/bireme-*")  # from tests that cut a node's power
    process = start(jobs, part="grandchild" if len(several) == 2 else "wait")
    agent = agent_of(jobs.testbed["node2"])
    pids = {"agent": agent, **guards(agent)}
    for signum in (signal.SIGSTOP, signal.SIGKILL):
        for name in several:
            os.kill(pids[name], signum)
    assert "agent lost on node2" in end(jobs, process, 75)
    files = jobs.testbed["node2"].run("ls -d /tmp/bireme-*", check=False).stdout
    assert bool(files) == (len(several) == 3)
    jobs.testbed["node2"].run("rm -rf /tmp/bireme-*")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("which", "backend"), [("watcher", "ssh"), ("guardian", "ssh"), ("watcher", "openmpi"), ("guardian", "slurm")]
)
def test_guardian_of_the_engine_is_killed(jobs: Jobs, backend: str, which: str) -> None:
    process = start(jobs)
    os.kill(guards(command_of(process))[which], signal.SIGKILL)
    assert f"the guardian of the launcher {ways.instead_of(backend)} (pid " in end(jobs, process, 75)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("which", "backend"),
    [
        ("watcher", "ssh"),
        ("guardian", "ssh"),
        ("engine", "ssh"),
        ("engine", "pdsh"),
        ("engine", "openmpi"),
        ("engine", "mpich"),
        ("guardian", "slurm"),  # when srun is killed, salloc above it ends with exit code 0, and that is said
    ],
)
def test_engine_is_lost_while_it_connects(jobs: Jobs, backend: str, which: str) -> None:
    """One node is a black hole, for which the others wait: not when this is lost."""
    jobs.testbed["node2"].blackhole()
    process = jobs.start("--heartbeat", HEARTBEAT, SCENE, "wait")
    wait_until("somebody", lambda: any(jobs.testbed[name].strays() for name in ("node1", "node3")), 30)
    engine = wait_until("the engine", lambda: engine_of(jobs), 30)
    os.kill(engine if which == "engine" else guards(command_of(process))[which], signal.SIGKILL)
    launcher = f"the launcher {ways.instead_of(backend)}"
    what = launcher if which == "engine" else f"the guardian of {launcher} (pid "
    text = end(jobs, process, 75)
    assert what in text and "was killed" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "signum"),
    cases([signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT], {"slurm": [signal.SIGTERM]}),
)
def test_agent_is_signalled(jobs: Jobs, signum: signal.Signals) -> None:
    process = start(jobs)
    os.kill(agent_of(jobs.testbed["node2"]), signum)
    text = end(jobs, process, 75)
    assert "agent lost on node2" in text and signum.name in text


@pytest.mark.slow
def test_sshd_of_a_node_is_killed_with_its_sessions(jobs: Jobs) -> None:
    process = start(jobs)
    jobs.testbed["node2"].kill_sshd(sessions=True)
    assert "agent lost on node2" in end(jobs, process, 75)


@pytest.mark.slow
@pytest.mark.parametrize("backend", backends("ssh", "mpich"))
def test_machine_of_the_command_is_cut_off(jobs: Jobs) -> None:
    """Every node stops its ranks by itself; the command has lost all of them."""
    process = start(jobs)
    jobs.login.cut()
    jobs.end(process, 75)
    wait_until("the ranks to go", lambda: not any(found(node, "scene.py") for node in jobs.testbed.nodes), 30)
    jobs.login.heal()
    jobs.testbed.leaves_nothing()


@pytest.mark.slow
def test_command_is_frozen_for_too_long(jobs: Jobs) -> None:
    """As if it were lost; when it goes on, it says so."""
    process = start(jobs)
    jobs.login.kill(process, signal.SIGSTOP)
    wait_until("the ranks to go", lambda: not any(found(node, "scene.py") for node in jobs.testbed.nodes), 30)
    wait_until("nsenter, which halts with its child", lambda: halted(process.pid), 30)
    os.kill(process.pid, signal.SIGCONT)
    assert "agent lost on node" in end(jobs, process, 75)


@pytest.mark.slow
@pytest.mark.parametrize("first", ["the command", "the agents"])
def test_who_was_halted_misses_nobody(jobs: Jobs, first: str) -> None:
    """All stand still for longer than the heartbeat, as one machine does under load; who wakes first waits."""
    process = start(jobs)
    nodes = [jobs.testbed[name] for name in ("node1", "node2", "node3")]
    early, late = ([jobs.login], nodes) if first == "the command" else (nodes, [jobs.login])
    # these times themselves are what is tested
    for host in late:
        host.freeze()
    time.sleep(0.1 * HEARTBEAT)  # whatever they have said has been heard
    for host in early:
        host.freeze()
    time.sleep(1.1 * HEARTBEAT)
    for hosts in (early, late):
        for host in hosts:
            host.thaw()
        time.sleep(0.35 * HEARTBEAT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(HEARTBEAT)
    (jobs.shared / "go").touch()
    end(jobs, process, 3)


WHILE_CONNECTING = {"pdsh": [signal.SIGKILL], "openmpi": [signal.SIGKILL], "mpich": [signal.SIGTERM]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "deadly"), cases([signal.SIGKILL, signal.SIGTERM, signal.SIGHUP], WHILE_CONNECTING)
)
def test_command_is_signalled_while_it_connects(jobs: Jobs, deadly: signal.Signals) -> None:
    """One node is a black hole, the others' agents are there and wait."""
    jobs.testbed["node2"].blackhole()
    process = jobs.start("--heartbeat", HEARTBEAT, SCENE, "wait")
    wait_until("somebody", lambda: all(jobs.testbed[name].strays() for name in ("node1", "node3")), 30)
    jobs.login.kill(process, deadly)
    _, err = process.communicate(timeout=60)
    if deadly != signal.SIGKILL:
        assert process.returncode == 128 + deadly, err
    jobs.testbed.leaves_nothing()


@pytest.mark.slow
@pytest.mark.parametrize("backend", backends("ssh", "openmpi", "slurm"))
def test_command_is_killed_half_started(jobs: Jobs) -> None:
    with far(jobs.testbed["node2"]):
        process = jobs.start("--heartbeat", HEARTBEAT, SCENE, "wait")
        read_lines(process, 1, "ready")
        jobs.login.kill(process, signal.SIGKILL)
        process.communicate(timeout=60)
        jobs.testbed.leaves_nothing()


@pytest.mark.slow
@pytest.mark.parametrize("backend", backends("ssh", "mpich"))
def test_node_is_lost_before_any_rank(jobs: Jobs, backend: str) -> None:
    """While others are still being connected to: it is named; what can be said of a preflight is 69 or 75.

    mpiexec may end because of the node before we can know which it was: then the words of mpiexec are shown.
    """
    with far(jobs.testbed["node3"], 400):
        process = jobs.start("--heartbeat", HEARTBEAT, jobs.write("up.py", "open('up', 'w')"))
        wait_until("the near agents", jobs.testbed["node2"].agents, 30)
        jobs.testbed["node2"].panic()
        _, err = process.communicate(timeout=60)
    assert process.returncode in (69, 75), err
    assert b"node2" in err or (backend == "mpich" and b"[mpiexec@login]" in err), err
    assert not (jobs.shared / "up").exists()
    jobs.testbed.leaves_nothing()
