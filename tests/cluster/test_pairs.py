"""Any two processes of a job are killed in the same instant: the command ends soon, and nothing is left anywhere."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest

from tests.cluster.basics import children, outermost, read, wait_until
from tests.cluster.host import Host
from tests.cluster.jobs import Jobs, far
from tests.conftest import PROGRAMS, TIMES, read_lines

SCENE = PROGRAMS / "scene.py"
HOSTS = "node[1-3]:1"
HEARTBEAT = 5.0
ROLES = ("command", "its guardian", "agent", "the node's guardian", "ssh", "sshd")
PAIRS = tuple(itertools.combinations(ROLES, 2))
SOON = 60.0
"""Seconds in which a command that does not hang has ended, also on a busy machine."""


def guardian_below(pid: int) -> int | None:
    """The guardian of a command or agent, if it has one by now."""
    below = children(pid)
    while below:
        name = read(f"/proc/{below[0]}/comm").strip()
        if name == "bireme-guard":
            return below[0]
        below = children(below[0]) if name == "bireme-watch" else below[1:]
    return None


def agent_of(host: Host) -> int | None:
    """The agent of a node, which is above its watcher and its guardian."""
    agents = [pid for pid in outermost(host.agents()) if read(f"/proc/{pid}/comm").startswith("python")]
    return agents[0] if agents else None


def session_of(login: Host) -> int | None:
    """The ``ssh`` that holds node2's session."""
    for pid, process in login.ps().items():
        if os.path.basename(process.argv[0]) == "ssh" and "node2" in process.argv:
            return pid
    return None


def daemon_of(host: Host) -> int | None:
    """The ``sshd`` that holds the session, not the listener."""
    for pid, process in host.ps().items():
        title = process.argv[0]
        if title.startswith("sshd") and "[listener]" not in title and "[priv]" not in title:
            return pid
    return None


def cast(jobs: Jobs, process: subprocess.Popen[bytes]) -> dict[str, Callable[[], int | None]]:
    """How each role's pid is found."""
    node = jobs.testbed["node2"]

    def command() -> int | None:
        return next(iter(children(process.pid)), None)

    def below(pid: int | None) -> int | None:
        return guardian_below(pid) if pid is not None else None

    finders = (command, lambda: below(command()), lambda: agent_of(node), lambda: below(agent_of(node)))
    return dict(zip(ROLES, (*finders, lambda: session_of(jobs.login), lambda: daemon_of(node)), strict=True))


def play(jobs: Jobs, pair: tuple[str, str], when: str, later: float) -> tuple[int | None, float, str]:
    """Kill both of a pair; return the exit code (None: killed), the seconds to the command's end, what it said."""
    options = ("--heartbeat", HEARTBEAT, "--grace", "0.5", "--save_pid")
    process = jobs.start(*options, SCENE, "grandchild", "never", hosts=HOSTS)
    finders = cast(jobs, process)
    if when == "running":
        read_lines(process, 3, "ready")
    pids = [wait_until(role, finders[role], 30, every=0.001) for role in pair]
    time.sleep(later)
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # of its own accord: the moment was that of another's end
    killed = time.monotonic()
    _, err = process.communicate(timeout=SOON)
    seconds = time.monotonic() - killed
    left = jobs.testbed.strays(30)
    assert not any(left.values()), f"left after {pair} {when}: {left}"
    for host in jobs.testbed.hosts.values():
        files = host.run("ls -d /tmp/bireme-* /tmp/*.deepspeed", check=False).stdout.split()
        assert not files, f"left after {pair} {when} on {host.name}: {files}"
    return None if "command" in pair else process.returncode, seconds, err.decode(errors="replace")


@pytest.fixture
def jobs(request: pytest.FixtureRequest) -> Iterator[Jobs]:
    """With one node that takes its time to answer, so that there is a time of connecting."""
    jobs = Jobs.on(request, "ssh")
    for host in jobs.testbed.hosts.values():  # tests that cut a host's power leave files of their jobs there
        host.run("rm -rf /tmp/bireme-* /tmp/*.deepspeed")
    with far(jobs.testbed["node3"], 20):
        yield jobs


def moments(pair: tuple[str, str], times: int) -> Iterator[tuple[str, float]]:
    """At random, from the first moment at which both are there, or all ranks are: by turns, also from pair to pair."""
    for number in range(PAIRS.index(pair), PAIRS.index(pair) + times):
        yield ("running" if number % 2 else "connecting"), random.random() * 0.2


@pytest.mark.slow
@pytest.mark.parametrize("pair", PAIRS, ids=" and ".join)
def test_two_are_killed_together(jobs: Jobs, pair: tuple[str, str]) -> None:
    for when, later in moments(pair, max(1, TIMES // 5)):
        code, _, err = play(jobs, pair, when, later)
        assert code in (None, 69, 75), err
        if "its guardian" in pair:
            assert code in (None, 75), err
