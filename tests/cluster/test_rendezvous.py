"""The rendezvous of a job's ranks: the address, the port, and two jobs at once."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.basics import wait_until
from tests.cluster.jobs import Jobs, backends
from tests.cluster.testbed import Testbed
from tests.conftest import TIMES, read_lines

# All ranks meet at rank 0, as in a store of PyTorch's: each says its rank and its job, and learns who is there.
# meet.py JOB [PAUSE]: with PAUSE, all wait for that file before they end.
MEET = """
import json, os, socket, sys, time

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
me = [rank, sys.argv[1], os.uname().nodename]

def line(sock):
    return json.loads(sock.makefile().readline())

def say(sock, what):
    sock.sendall((json.dumps(what) + "\\n").encode())

if rank == 0:
    server = socket.create_server(("", where[1]), backlog=size)
    server.settimeout(60)
    others = [server.accept()[0] for _ in range(size - 1)]
    there = sorted([me, *map(line, others)])
    for other in others:
        say(other, there)
else:
    until = time.monotonic() + 60
    while True:
        try:
            sock = socket.create_connection(where, timeout=60)
            say(sock, me)
            there = line(sock)
            break
        except (OSError, ValueError):  # not there yet, or still the agent, which only lets itself be reached
            if time.monotonic() > until:
                raise
            time.sleep(0.005)
print("met", where[0], where[1], json.dumps(there), flush=True)
while len(sys.argv) > 2 and not os.path.exists(sys.argv[2]):
    time.sleep(0.01)
"""

HOSTS = ("node1", "node1", "node2", "node2", "node3", "node3")


def met(lines: list[str], name: str, hosts: tuple[str, ...] = HOSTS) -> tuple[str, int]:
    """The address and port at which all ranks of a job have met, and nobody else."""
    said = [line.partition("] ")[2].split(" ", 3) for line in lines]
    assert len(said) == len(hosts)
    (address, port, there), *others = [words[1:] for words in said]
    assert all(other == [address, port, there] for other in others)
    expected = ", ".join(f'[{rank}, "{name}", "{host}"]' for rank, host in enumerate(hosts))
    assert there.strip() == f"[{expected}]"
    return address, int(port)


def meet(jobs: Jobs, *options: object, **kwargs: object) -> tuple[str, int]:
    done = jobs.run(*options, jobs.write("meet.py", MEET), "job", **kwargs)  # type: ignore[arg-type]
    assert done.returncode == 0, done.stderr
    return met(done.stdout.splitlines(), "job")


@pytest.mark.parametrize("backend", backends())
def test_ranks_meet(jobs: Jobs) -> None:
    assert meet(jobs) == (jobs.testbed["node1"].ip, 29500)


LISTEN = "import socket, time; s = socket.create_server(('', {})); print('up', flush=True); time.sleep(1000)"


@pytest.mark.parametrize("backend", backends("ssh", "slurm"))
def test_default_port_is_taken_on_node_0(jobs: Jobs) -> None:
    words = [sys.executable, "-c", LISTEN.format(29500)]
    other = jobs.testbed["node1"].popen(words, stdout=subprocess.PIPE)
    assert other.stdout and other.stdout.readline() == b"up\n"
    address, port = meet(jobs)
    assert address == jobs.testbed["node1"].ip
    assert port != 29500
    jobs.testbed["node1"].kill(other, signal.SIGKILL)
    assert other.wait(60)


def test_port_that_was_asked_for(jobs: Jobs) -> None:
    assert meet(jobs, "--master_port", "31234") == (jobs.testbed["node1"].ip, 31234)
    other = jobs.testbed["node1"].popen([sys.executable, "-c", LISTEN.format(31234)], stdout=subprocess.PIPE)
    assert other.stdout and other.stdout.readline() == b"up\n"
    done = jobs.run("--master_port", "31234", jobs.shared / "meet.py", "job", code=69)
    assert "node1" in done.stderr and "31234" in done.stderr
    assert done.stdout == ""


def test_address_that_all_nodes_reach(jobs: Jobs) -> None:
    """Node 0 has two networks; of the one that comes first, node 3 knows nothing."""
    jobs.testbed["node1"].run(
        "ip addr flush dev eth0 scope global && ip addr add 10.9.0.1/24 dev eth0 && "
        f"ip addr add {jobs.testbed['node1'].ip}/16 dev eth0",
        root=True,
    )
    try:
        jobs.testbed["node2"].run("ip addr add 10.9.0.2/24 dev eth0", root=True)
        assert meet(jobs) == (jobs.testbed["node1"].ip, 29500)
        jobs.testbed["node3"].run("ip addr add 10.9.0.3/24 dev eth0", root=True)
        assert meet(jobs) == ("10.9.0.1", 29500)
    finally:
        for number in (1, 2, 3):
            jobs.testbed[f"node{number}"].run(f"ip addr del 10.9.0.{number}/24 dev eth0; :", root=True)


def test_no_address_that_all_nodes_reach(jobs: Jobs) -> None:
    jobs.testbed["node1"].drop(29500)
    done = jobs.run(jobs.write("meet.py", MEET), "job", code=69)
    assert "node1" in done.stderr and "node2, node3" in done.stderr and jobs.testbed["node1"].ip in done.stderr
    assert done.stdout == ""


def test_an_address_that_was_asked_for(jobs: Jobs) -> None:
    program = jobs.write("where.py", "import os; print(os.environ['MASTER_ADDR'])")
    fine = jobs.run("--master_addr", "node1", "--output", "rank0", program)
    assert (fine.returncode, fine.stdout) == (0, "node1\n"), fine.stderr
    for address in ("127.0.0.1", "no.such.host"):
        done = jobs.run("--master_addr", address, program)
        assert (done.returncode, done.stdout) == (69, "")
        assert f"node2, node3 cannot reach node1 at --master_addr {address}\n" in done.stderr
    untested = jobs.run("--master_addr", "no.such.host", "--no_ssh_check", "--output", "rank0", program)
    assert (untested.returncode, untested.stdout) == (0, "no.such.host\n"), untested.stderr


# -- two jobs at once ------------------------------------------------------------------------------


def start_two(jobs: Jobs, hosts: tuple[str, ...] = HOSTS) -> list[subprocess.Popen[bytes]]:
    """Two jobs of one user on the same nodes, with default ports, at the same moment: they meet apart, and wait."""
    program, pause = jobs.write("meet.py", MEET), jobs.shared / "pause"
    names = ("one", "two")
    places = ",".join(f"{host}:{hosts.count(host)}" for host in dict.fromkeys(hosts))
    started = [jobs.start(program, name, pause, hosts=places) for name in names]
    each = zip(names, started, strict=True)
    assert len({met(read_lines(process, len(hosts), "met"), name, hosts) for name, process in each}) == 2
    return started


def test_two_jobs_at_once_a_few_times(jobs: Jobs) -> None:
    """Both meet while the other one is there, at ports of their own."""
    for _ in range(max(2, TIMES // 2)):
        started = start_two(jobs, ("node1", "node2"))
        (jobs.shared / "pause").touch()
        for process in started:
            jobs.end(process)
        (jobs.shared / "pause").unlink()


@pytest.mark.slow
def test_two_jobs_in_one_allocation_each(slurm_cluster: Testbed, shared_dir: Path) -> None:
    """Slurm gives each job nodes of its own: the second one waits for the first."""
    jobs = Jobs(slurm_cluster, "slurm", shared_dir)
    pause = shared_dir / "pause"
    pause.touch()
    program = jobs.write("meet.py", MEET)
    started = [(name, jobs.start(program, name, pause)) for name in ("one", "two")]
    for name, process in started:
        met(read_lines(process, 6, "met"), name)
        assert process.wait(60) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "signum"),
    [
        ("ssh", signal.SIGKILL),
        ("ssh", signal.SIGINT),
        ("pdsh", signal.SIGKILL),
        ("openmpi", signal.SIGINT),
        ("mpich", signal.SIGKILL),
    ],
)
def test_the_end_of_one_leaves_the_other(jobs: Jobs, signum: signal.Signals) -> None:
    first, second = start_two(jobs)
    jobs.login.kill(first, signum)
    first.communicate(timeout=60)

    def ranks() -> dict[str, int]:
        """How many ranks of each job there are on all nodes."""
        argvs = [process.argv for node in jobs.testbed.nodes for process in node.ps().values()]
        mine = [argv for argv in argvs if str(jobs.shared / "meet.py") in argv and "-u" in argv]
        return {word: sum(word in argv for argv in mine) for word in ("one", "two")}

    wait_until("the first job's ranks to go", lambda: not ranks()["one"], 30)
    assert ranks()["two"] == 6
    (jobs.shared / "pause").touch()
    jobs.end(second)
