"""Many hosts: all start, with no more connections, processes or files at a time than necessary."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.basics import read, wait_until
from tests.cluster.conftest import REPOSITORY
from tests.cluster.jobs import Jobs
from tests.cluster.testbed import Testbed, unavailable
from tests.conftest import bireme
from tests.kit import needs

GIB = 1 << 30
MANY = 24
TELL = ("--no_python", "sh", "-c", "echo $RANK of $WORLD_SIZE on $(hostname)")


def available_memory() -> int:
    """Bytes."""
    words = read("/proc/meminfo").partition("MemAvailable:")[2].split()
    return int(words[0]) * 1024 if words else 0


@pytest.fixture
def many_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    """A cluster of its own."""
    if why := unavailable():
        needs.missing(f"no cluster: {why}")
    if available_memory() < 2 * GIB:
        pytest.skip(f"{MANY} hosts with agents need 2 GiB of memory")
    share = [str(REPOSITORY), sys.prefix, str(tmp_path_factory.getbasetemp())]
    with Testbed(MANY, state=tempfile.mkdtemp(prefix="testbed-"), share=share) as testbed:
        yield testbed


@pytest.mark.slow
def test_24_hosts(many_hosts: Testbed, shared_dir: Path) -> None:
    """All ranks run, each on its node; and nothing is left."""
    jobs = Jobs(many_hosts, "ssh", shared_dir)
    done = jobs.run(*TELL, hosts=f"node[1-{MANY}]:1", timeout=180, code=0)
    assert in_the_order_of_ranks(done.stdout) == [
        f"[node{n + 1}:{n}] {n} of {MANY} on node{n + 1}" for n in range(MANY)
    ]
    many_hosts.leaves_nothing()


# -- without so many hosts: an ``ssh`` that runs its command here, when it is let ------------------

SSH = """#!/bin/sh
# ssh OPTIONS -- HOST COMMAND
for word; do host=$command; command=$word; done
: >"{dir}/reached-$host"
: <"{dir}/gate"
exec sh -c "$command"
"""
MOST = 64


def with_its_ssh(jobs: Jobs) -> dict[str, str]:
    (jobs.shared / "bin").mkdir()
    path = jobs.write("bin/ssh", SSH.format(dir=jobs.shared))
    path.chmod(0o755)
    os.mkfifo(jobs.shared / "gate")
    return {"PATH": f"{path.parent}:/usr/local/bin:/usr/bin:/bin"}


@contextmanager
def gate_open(jobs: Jobs) -> Iterator[None]:
    """Lets the commands run that wait at the gate, and those that come."""
    gate = os.open(jobs.shared / "gate", os.O_RDWR)
    try:
        yield
    finally:
        os.close(gate)


def reached(jobs: Jobs) -> int:
    return len(list(jobs.shared.glob("reached-*")))


def in_the_order_of_ranks(out: str) -> list[str]:
    return sorted(out.splitlines(), key=lambda line: int(line.split("] ")[1].split()[0]))


@pytest.mark.slow
def test_so_many_connect_at_a_time(jobs: Jobs) -> None:
    """And the others as those have been heard, and one world comes of all."""
    hosts = MOST + 8
    process = jobs.start(*TELL, hosts=f"fake[1-{hosts}]:1", env=with_its_ssh(jobs))
    wait_until("the first of them", lambda: reached(jobs) >= MOST, 60)
    time.sleep(0.5)  # for what must not happen
    assert reached(jobs) == MOST
    with gate_open(jobs):
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert reached(jobs) == hosts
    expected = [f"[login:{n}] {n} of {hosts} on login" for n in range(hosts)]
    assert in_the_order_of_ranks(out.decode()) == expected


OPEN_FILES = 'echo "$(ulimit -Sn), $(ulimit -Hn)"'


@pytest.mark.parametrize("hard", [4096, 128])
def test_limit_of_open_files(jobs: Jobs, hard: int) -> None:
    """A low soft limit is raised, for us alone; a hard one is said, before anything is started."""
    command = bireme("run", "--launcher", "ssh", "--hosts", "fake[1-24]:1", "--no_python", "sh", "-c", OPEN_FILES)
    limited = ["sh", "-c", f'ulimit -Sn 64; ulimit -Hn {hard}; exec "$@"', "sh", *command]
    environ = with_its_ssh(jobs)
    with gate_open(jobs):
        process = jobs.login.popen(
            limited, cwd=str(jobs.shared), env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        out, err = process.communicate(timeout=60)
    if hard == 128:
        assert process.returncode == 69, err
        assert b"open files" in err and b"ulimit" in err and b"Traceback" not in err
        assert not reached(jobs)
    else:
        assert process.returncode == 0, err
        assert out.count(b"64, 4096") == 24
