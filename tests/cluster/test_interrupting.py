"""Ctrl+C at any moment of a job on many nodes: nothing is left, and the exit code is 130."""

from __future__ import annotations

import itertools
import random
import shutil
import signal
import subprocess
import time

import pytest

from tests.cluster.basics import PATH, wait_until
from tests.cluster.jobs import Jobs, backends, far
from tests.conftest import PROGRAMS, TIMES, bireme, bireme_begun, read_lines

SCENE = PROGRAMS / "scene.py"
HOSTS = "node[1-3]:1"
_NUMBERS = itertools.count()


def start(
    jobs: Jobs, *words: object, hosts: str = "node[1-3]:2", env: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """In a process group of its own, as a shell with job control starts it; Ctrl+C is its own when this returns."""
    begun = jobs.shared / f"begun{next(_NUMBERS)}"
    command = jobs.command("--grace", "30", *(words or (SCENE, "wait")), hosts=hosts)
    how = {"env": env, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "start_new_session": True}
    process = jobs.login.popen(bireme_begun(begun, *command[len(bireme()) :]), cwd=str(jobs.shared), **how)
    wait_until("the command", begun.exists, 30, every=0.001)
    return process


def press_ctrl_c(jobs: Jobs, process: subprocess.Popen[bytes]) -> None:
    jobs.login.kill(process, signal.SIGINT, group=True)


def ends_clean(jobs: Jobs, process: subprocess.Popen[bytes]) -> str:
    _, err = process.communicate(timeout=60)
    text = err.decode(errors="replace")
    ours = [line for line in text.splitlines() if not line.startswith("[node")]
    assert process.returncode == 130, text
    jobs.testbed.leaves_nothing()
    assert all(line.startswith("bireme: ") for line in ours), ours
    return text


def agents(jobs: Jobs) -> dict[str, int]:
    """How many agent processes there are on each node."""
    return {node.name: len(node.agents()) for node in jobs.testbed.nodes}


PATIENT = "ConnectTimeout=1000"


@pytest.mark.slow
@pytest.mark.parametrize("backend", backends("ssh", "openmpi"))
def test_while_hosts_are_being_reached(jobs: Jobs, backend: str) -> None:
    """One host is a black hole, the others' agents are there and wait (Open MPI's daemons wait for each other).

    Its ``ssh`` would try for longer than this test waits: the first of two bounds counts for it.
    """
    jobs.testbed["node2"].blackhole()
    (jobs.shared / "bin").mkdir()
    patient = jobs.write("bin/ssh", f'#!/bin/sh\nexec {shutil.which("ssh", path=PATH)} -o {PATIENT} "$@"\n')
    patient.chmod(0o755)

    def reaching() -> bool:
        there = [node.strays() for node in (jobs.testbed["node1"], jobs.testbed["node3"])]
        to_it = any("node2" in argv and PATIENT in argv for argv in jobs.login.strays().values())
        return to_it and (all(there) if backend == "openmpi" else agents(jobs)["node1"] > 0 < agents(jobs)["node3"])

    process = start(jobs, env={"PATH": f"{patient.parent}:{PATH}"})
    wait_until("connections", reaching, 30)
    press_ctrl_c(jobs, process)
    ends_clean(jobs, process)


@pytest.mark.slow
def test_while_the_allocation_is_waited_for(request: pytest.FixtureRequest) -> None:
    """All nodes are another's: our request waits in the queue, and goes from there."""
    jobs = Jobs.on(request, "slurm")
    other = jobs.login.popen(["srun", "-N4", "--exclusive", "sleep", "1000"], stderr=subprocess.DEVNULL)
    wait_until("the other job", lambda: any("RUNNING" in job for job in jobs.testbed.slurm_jobs()), 30)
    process = start(jobs)
    wait_until("our request", lambda: any("PENDING" in job for job in jobs.testbed.slurm_jobs()), 30)
    press_ctrl_c(jobs, process)
    jobs.end(process, 130)
    wait_until("the request to go", lambda: not any("PENDING" in job for job in jobs.testbed.slurm_jobs()), 30)
    jobs.login.kill(other, signal.SIGTERM)
    other.wait(60)


@pytest.mark.slow
@pytest.mark.parametrize("backend", backends("ssh", "openmpi", "slurm"))
def test_half_started(jobs: Jobs) -> None:
    """The ranks of near nodes run; what the far node was told is still on its way."""
    with far(jobs.testbed["node2"], 200):
        process = start(jobs, "--no_python", "sh", "-c", "echo ready; exec sleep 1000")  # as below
        lines = read_lines(process, 1, "ready")
        assert "node2" not in lines[-1]
        press_ctrl_c(jobs, process)
        ends_clean(jobs, process)


@pytest.mark.slow
@pytest.mark.parametrize("backend", backends())
def test_at_any_moment_of_the_start(jobs: Jobs, backend: str) -> None:
    """At some moments between the command's first statement and the last rank's, whatever they happen to hit.

    Each at random in a stretch of its own. The ranks are no Python programs: one in a thousand interpreters that begin
    forgets a Ctrl+C, since what is raised in a callback of its import system is only printed.
    """
    begin = time.monotonic()
    process = start(jobs, hosts=HOSTS)
    read_lines(process, 3, "ready")
    whole = time.monotonic() - begin
    press_ctrl_c(jobs, process)
    ends_clean(jobs, process)
    moments = 2 * TIMES if backend == "ssh" else TIMES
    for moment in range(moments):
        process = start(jobs, "--no_python", "sleep", "1000", hosts=HOSTS)
        try:
            process.wait(whole * (moment + random.random()) / moments)
        except subprocess.TimeoutExpired:
            pass
        press_ctrl_c(jobs, process)
        ends_clean(jobs, process)
        if backend == "slurm":
            assert not jobs.testbed.slurm_jobs(30)


# Tells of the first two signals that it gets, and ends only by SIGKILL.
STUBBORN = """
import os, signal, time
def tell(signum, frame):
    os.write(1, b"got %d\\n" % signum)
for signum in (signal.SIGINT, signal.SIGTERM):
    signal.signal(signum, tell)
os.write(1, b"ready\\n")
while True:
    time.sleep(0.05)  # not longer: a signal that comes just before a sleep begins is heard after it
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", backends("ssh", "openmpi", "slurm"))
def test_twice(jobs: Jobs) -> None:
    """The first one reaches every rank as SIGINT, the second ends the grace time."""
    process = start(jobs, jobs.write("stubborn.py", STUBBORN))
    read_lines(process, 6, "ready")
    press_ctrl_c(jobs, process)
    read_lines(process, 6, f"got {signal.SIGINT.value}")
    assert process.poll() is None
    press_ctrl_c(jobs, process)
    assert "SIGKILL" in ends_clean(jobs, process)


@pytest.mark.slow
@pytest.mark.parametrize("backend", backends("pdsh", "mpich"))
def test_twice_while_hosts_are_being_reached(jobs: Jobs) -> None:
    jobs.testbed["node2"].blackhole()
    process = start(jobs)
    wait_until("connections", lambda: jobs.testbed["node1"].strays(), 30)
    press_ctrl_c(jobs, process)
    press_ctrl_c(jobs, process)
    ends_clean(jobs, process)


# Ends well when it is interrupted, as one that saves a checkpoint.
SAVES = """
import time
try:
    print("ready", flush=True)
    time.sleep(1000)
except KeyboardInterrupt:
    print("x" * 100_000 + "saved", flush=True)
"""


@pytest.mark.parametrize("backend", backends("ssh", "openmpi"))
def test_ranks_may_save_what_they_have(jobs: Jobs) -> None:
    """What they say while they end is seen, and the code is 130 all the same."""
    process = start(jobs, jobs.write("saves.py", SAVES), hosts=HOSTS)
    read_lines(process, 3, "ready")
    press_ctrl_c(jobs, process)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert out.count(b"saved\n") == 3
