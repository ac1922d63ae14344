"""Which rank runs where, with which variables: the same golden table for every backend, down to single slots."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import ways
from tests.cluster.host import Host
from tests.cluster.testbed import Testbed
from tests.conftest import bireme

PROGRAM_OF = {"ssh": "ssh", "pdsh": "pdsh", "openmpi": "mpirun.openmpi", "mpich": "mpiexec.mpich", "slurm": "srun"}


def cluster_of(backend: str) -> str:
    """The fixture that brings a cluster which this backend can be used on."""
    return "slurm_cluster" if backend == "slurm" else "ssh_cluster"


def backends(*names: str) -> tuple[str, ...]:
    """Parameters for ``backend``: these, or all that a cluster has."""
    return names or tuple(PROGRAM_OF)


@contextmanager
def far(host: Host, ms: float = 50) -> Iterator[None]:
    """A host with so much latency each way."""
    host.delay(ms)
    try:
        yield
    finally:
        host.clear()


@contextmanager
def gpus(hosts: list[Host], count: int = 4) -> Iterator[None]:
    """Hosts with so many GPUs, as far as anybody sees who does not use them: their device files."""
    make = f"""
        set -e
        mkdir -p /run/dev
        mount -t tmpfs -o mode=755 gpus /run/dev
        cd /run/dev
        for name in null zero full random urandom tty; do touch $name; mount --bind /dev/$name $name; done
        mkdir pts shm
        mount -t devpts -o newinstance,ptmxmode=0666 devpts pts
        mount -t tmpfs -o mode=1777 tmpfs shm
        ln -s pts/ptmx ptmx
        cp -P /dev/fd /dev/stdin /dev/stdout /dev/stderr .
        for i in $(seq 0 {count - 1}); do ln -s null nvidia$i; done
        mount --move /run/dev /dev
        """
    try:
        for host in hosts:
            host.run(make, root=True)
        yield
    finally:
        for host in hosts:
            # one that was switched off meanwhile has its own again
            host.run("grep -q '^gpus /dev ' /proc/mounts && umount -l /dev", check=False, root=True)


class Looks(list[dict[str, Any]]):
    """What each rank has found, by rank; ``done`` is how the command ended."""

    done: subprocess.CompletedProcess[str]


# What LOOK writes into the working directory, which all hosts share. Bytes are written as Latin-1 text.
LOOK = """
import json, os

def read(path):
    with open(path, "rb") as file:
        return file.read().decode("latin-1").split("\\0")[:-1]

rank = os.environ["RANK"]
found = {
    "host": os.uname().nodename,
    "argv": read("/proc/self/cmdline"),
    "environ": dict(pair.split("=", 1) for pair in read("/proc/self/environ")),
    "affinity": sorted(os.sched_getaffinity(0)),
    "cwd": os.getcwd(),
}
with open(f"{rank}.tmp", "w") as file:
    json.dump(found, file)
os.rename(f"{rank}.tmp", f"{rank}.json")
"""


class Jobs:
    """Starts jobs on a cluster, from its login host, in a directory that all hosts share."""

    def __init__(self, testbed: Testbed, backend: str, shared: Path) -> None:
        self.testbed, self.backend, self.shared = ways.prepared(testbed, backend), backend, shared
        self.login = testbed["login"]

    @classmethod
    def on(cls, request: pytest.FixtureRequest, backend: str) -> Jobs:
        """On the cluster of this backend; skips where its program is missing."""
        request.getfixturevalue("tool")((PROGRAM_OF | ways.PROGRAM_OF)[backend])
        return cls(request.getfixturevalue(cluster_of(backend)), backend, request.getfixturevalue("shared_dir"))

    def write(self, name: str, text: str) -> Path:
        """A file in the working directory."""
        path = self.shared / name
        path.write_text(text)
        return path

    def command(self, *words: object, hosts: str = "node[1-3]:2") -> list[str]:
        """``bireme run`` on these hosts (a hostfile's text, or a list in one word; empty: none are given)."""
        given: tuple[object, ...] = ("--hosts", hosts) if hosts else ()
        if "\n" in hosts:
            given = ("--hostfile", self.write("hostfile", hosts))
        return bireme("run", *ways.launcher(self.backend), *given, *map(str, words))

    def start(self, *words: object, hosts: str = "node[1-3]:2", **kwargs: Any) -> subprocess.Popen[bytes]:
        """Start it, with both outputs in pipes."""
        kwargs = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **kwargs}
        return self.login.popen(self.command(*words, hosts=hosts), **{"cwd": str(self.shared), **kwargs})

    def run(
        self, *words: object, hosts: str = "node[1-3]:2", timeout: float = 60, **kwargs: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run it to its end, whatever that is."""
        process = self.start(*words, hosts=hosts, **kwargs)
        out, err = process.communicate(timeout=timeout)
        text = [(data or b"").decode(errors="replace") for data in (out, err)]
        return subprocess.CompletedProcess(process.args, process.returncode, *text)

    def look(self, *options: object, args: tuple[str, ...] = (), **kwargs: Any) -> Looks:
        """Run a program that tells what it finds."""
        done = self.run(*options, self.write("look.py", LOOK), *args, **kwargs)
        assert done.returncode == 0, done.stderr
        return self.looked(done)

    def looked(self, done: subprocess.CompletedProcess[str]) -> Looks:
        """What the ranks of a job that has ended have found."""
        found = {int(path.stem): json.loads(path.read_text()) for path in self.shared.glob("[0-9]*.json")}
        looks = Looks(found[rank] for rank in range(len(found)))
        looks.done = done
        return looks


def without_ssh(jobs: Jobs) -> dict[str, str]:
    """An environment in which ``ssh`` leaves a trace and fails."""
    (jobs.shared / "bin").mkdir()
    trap = jobs.write("bin/ssh", f'#!/bin/sh\necho "$@" >> {jobs.shared}/ssh-was-run\nexit 255\n')
    trap.chmod(0o755)
    return {"PATH": f"{trap.parent}:/usr/bin:/bin"}


Row = tuple[str, ...]
HEAD = ("host", "RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "CUDA_VISIBLE_DEVICES")


def rows(looks: Looks) -> list[Row]:
    """The table of all ranks."""
    return [(found["host"], *(found["environ"].get(name, "unset") for name in HEAD[1:])) for found in looks]


def table(text: str) -> list[Row]:
    """A table as it is written below."""
    return [tuple(line.split()) for line in text.strip().splitlines()]


UNEVEN = "node1 slots=2\nnode2 slots=3\nnode3 slots=1\n"
# options → host, rank, local rank, node rank, world size, local world size, devices
GOLDEN: Mapping[str, tuple[tuple[str, ...], str]] = {
    "all": (
        (),
        """
        node1 0 0 0 6 2 0,1
        node1 1 1 0 6 2 0,1
        node2 2 0 1 6 3 0,1,2
        node2 3 1 1 6 3 0,1,2
        node2 4 2 1 6 3 0,1,2
        node3 5 0 2 6 1 0
        """,
    ),
    "include slots": (
        ("--include", "node2:0,2@node1:1"),
        """
        node1 0 0 0 3 1 1
        node2 1 0 1 3 2 0,2
        node2 2 1 1 3 2 0,2
        """,
    ),
    "exclude slots": (
        ("--exclude", "node1:0@node2:1"),
        """
        node1 0 0 0 4 1 1
        node2 1 0 1 4 2 0,2
        node2 2 1 1 4 2 0,2
        node3 3 0 2 4 1 0
        """,
    ),
    "num_gpus": (
        ("--num_gpus", "1"),
        """
        node1 0 0 0 3 1 0
        node2 1 0 1 3 1 0
        node3 2 0 2 3 1 0
        """,
    ),
    "both numbers": (
        ("--num_nodes", "1", "--num_gpus", "2"),
        """
        node1 0 0 0 2 2 0,1
        node1 1 1 0 2 2 0,1
        """,
    ),
}


# The filters choose before a launcher is asked: all of them on one.
@pytest.mark.parametrize(("backend", "name"), [("ssh", name) for name in GOLDEN])
def test_golden_table(request: pytest.FixtureRequest, backend: str, name: str) -> None:
    jobs = Jobs.on(request, backend)
    options, expected = GOLDEN[name]
    looks = jobs.look(*options, hosts=UNEVEN)
    assert rows(looks) == table(expected)
    for found in looks:
        env = found["environ"]
        assert env["LOCAL_SIZE"] == env["LOCAL_WORLD_SIZE"]
        assert env["CROSS_RANK"] == env["GROUP_RANK"] == env["NODE_RANK"]
        assert env["CROSS_SIZE"] == env["GROUP_WORLD_SIZE"] == str(len({row[0] for row in table(expected)}))
        for name_of_all in ("MASTER_ADDR", "MASTER_PORT"):
            assert env[name_of_all] == looks[0]["environ"][name_of_all]
        assert found["cwd"] == str(jobs.shared)


REFUSED = {
    "unknown host": (("--include", "node9"), "node9"),
    "unknown slot": (("--include", "node3:1"), "node3"),
    "excluded host is unknown": (("--exclude", "node9"), "node9"),
    "both filters": (("--include", "node1", "--exclude", "node2"), "--exclude"),
    "nothing is left": (("--exclude", "node[1-3]"), ""),
    "too many nodes": (("--num_nodes", "4"), "4"),
    "number and filter": (("--num_gpus", "1", "--include", "node1"), "--num_gpus"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_any_connection(ssh_cluster: Testbed, shared_dir: Path, name: str) -> None:
    jobs = Jobs(ssh_cluster, "ssh", shared_dir)
    options, word = REFUSED[name]
    done = jobs.run(*options, jobs.write("look.py", LOOK), hosts=UNEVEN, env=without_ssh(jobs))
    assert done.returncode == 2
    assert word in done.stderr and len(done.stderr.splitlines()) <= 2
    assert not (shared_dir / "ssh-was-run").exists()


@pytest.mark.parametrize("backend", backends("ssh", "pdsh", "openmpi", "mpich"))
def test_hosts_that_are_listed_by_address(request: pytest.FixtureRequest, backend: str) -> None:
    jobs = Jobs.on(request, backend)
    addresses = [jobs.testbed[name].ip for name in ("node3", "node1")]
    looks = jobs.look(hosts=f"{addresses[0]} slots=1\n{addresses[1]} slots=2\n")
    expected = """
        node3 0 0 0 3 1 0
        node1 1 0 1 3 2 0,1
        node1 2 1 1 3 2 0,1
        """
    assert rows(looks) == table(expected)


@pytest.mark.parametrize("backend", backends())
def test_order_of_the_hostfile_not_of_the_names(request: pytest.FixtureRequest, backend: str) -> None:
    """Slurm sorts the nodes that it is given; so may the others. What is left of their slots is uneven."""
    hosts = "node3 slots=1\nnode1 slots=2\nnode2 slots=3\n"
    looks = Jobs.on(request, backend).look("--exclude", "node1:0@node2:1", hosts=hosts)
    expected = """
        node3 0 0 0 4 1 0
        node1 1 0 1 4 1 1
        node2 2 0 2 4 2 0,2
        node2 3 1 2 4 2 0,2
        """
    assert rows(looks) == table(expected)


@pytest.mark.parametrize("backend", backends("ssh", "pdsh", "mpich"))
def test_nodes_whose_slots_are_not_declared(request: pytest.FixtureRequest, backend: str) -> None:
    """They are asked; without accelerators there, ``--num_gpus`` says how many ranks run on their CPUs."""
    looks = Jobs.on(request, backend).look("--num_gpus", "2", hosts="node2\nnode1\n")
    places = [(found["host"], found["environ"]["LOCAL_RANK"]) for found in looks]
    assert places == [("node2", "0"), ("node2", "1"), ("node1", "0"), ("node1", "1")]


def test_no_slot_of_the_first_node_is_left(ssh_cluster: Testbed, shared_dir: Path) -> None:
    """Known only once the nodes have said what they have: nothing was started then."""
    jobs = Jobs(ssh_cluster, "ssh", shared_dir)
    program = jobs.write("up.py", "open('up', 'w')")
    with gpus(ssh_cluster.nodes[:2], 1):
        done = jobs.run("--exclude", "node1:0", program, hosts="node1\nnode2\n")
        assert done.returncode == 2, done.stderr
        assert "no slots on node1" in done.stderr and "--exclude node1" in done.stderr
        assert not (shared_dir / "up").exists()
        done = jobs.run("--exclude", "node2:0", program, hosts="node1\nnode2\n")
        assert done.returncode == 0, done.stderr
    assert (shared_dir / "up").exists()


@pytest.mark.parametrize("backend", backends("ssh", "openmpi", "slurm"))
def test_nodes_are_asked_for_their_devices(request: pytest.FixtureRequest, backend: str) -> None:
    """Where no slots are declared: as many ranks as the node has GPUs, less what the filters take away."""
    jobs = Jobs.on(request, backend)
    one, two = (jobs.testbed[name] for name in ("node1", "node2"))
    with gpus([one], 2), gpus([two], 3):
        looks = jobs.look("--exclude", "node2:1", hosts="node1\nnode2\n")
    expected = """
        node1 0 0 0 4 2 0,1
        node1 1 1 0 4 2 0,1
        node2 2 0 1 4 2 0,2
        node2 3 1 1 4 2 0,2
        """
    assert rows(looks) == table(expected)


def test_declared_slots_that_are_not_there(ssh_cluster: Testbed, shared_dir: Path) -> None:
    jobs = Jobs(ssh_cluster, "ssh", shared_dir)
    with gpus([ssh_cluster["node1"]], 2), gpus([ssh_cluster["node2"]], 1):
        done = jobs.run(jobs.write("look.py", LOOK), hosts="node1 slots=2\nnode2 slots=2\nnode3 slots=2\n")
    assert done.returncode == 69, done.stderr
    assert "node2" in done.stderr and "no such device: 1" in done.stderr
    assert "node1" not in done.stderr and not list(shared_dir.glob("*.json"))


def test_devices_that_the_node_itself_names(ssh_cluster: Testbed, shared_dir: Path) -> None:
    """``CUDA_VISIBLE_DEVICES`` of a start-up file there, by UUIDs."""
    jobs = Jobs(ssh_cluster, "ssh", shared_dir)
    rc = Path(ssh_cluster.home, ".bashrc")
    rc.write_text('[ "$(hostname)" != node2 ] || export CUDA_VISIBLE_DEVICES=GPU-aaaa,GPU-bbbb\n')
    try:
        with gpus([ssh_cluster["node1"], ssh_cluster["node2"]], 2):
            looks = jobs.look(hosts="node1\nnode2\n")
    finally:
        rc.unlink()
    devices = [found["environ"]["CUDA_VISIBLE_DEVICES"] for found in looks]
    assert devices == ["0,1", "0,1", "GPU-aaaa,GPU-bbbb", "GPU-aaaa,GPU-bbbb"]


def test_local_or_remote_is_decided_by_the_host(ssh_cluster: Testbed, shared_dir: Path) -> None:
    """One host in the hostfile, another one: it runs there."""
    looks = Jobs(ssh_cluster, "auto", shared_dir).look(hosts="node2 slots=2\n")
    assert [found["host"] for found in looks] == ["node2", "node2"]


def test_a_stale_lock_of_pytorch_is_named_with_its_node(ssh_cluster: Testbed, shared_dir: Path) -> None:
    lock = shared_dir / "extensions" / "adam" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    jobs = Jobs(ssh_cluster, "auto", shared_dir)
    looks = jobs.look("--export", f"TORCH_EXTENSIONS_DIR={lock.parent.parent}", hosts="node2 slots=2\n")
    assert f"bireme: node2: {lock} is a stale lock of PyTorch: " in looks.done.stderr


@pytest.mark.parametrize("name", ["login", "LOGIN", "10.77.0.1", "localhost", "127.0.0.1"])
def test_this_machine_under_any_of_its_names(ssh_cluster: Testbed, shared_dir: Path, name: str) -> None:
    jobs = Jobs(ssh_cluster, "auto", shared_dir)
    looks = jobs.look(hosts=f"{name} slots=2\n", env=without_ssh(jobs))
    assert [found["host"] for found in looks] == ["login", "login"]
    assert not (shared_dir / "ssh-was-run").exists()


@pytest.mark.parametrize("order", [("login", "node1"), ("node1", "10.77.0.1", "node2")])
def test_this_machine_among_others(ssh_cluster: Testbed, shared_dir: Path, order: tuple[str, ...]) -> None:
    """It needs no sshd of its own."""
    ssh_cluster["login"].kill_sshd()
    jobs = Jobs(ssh_cluster, "ssh", shared_dir)
    looks = jobs.look(hosts="".join(f"{name} slots=2\n" for name in order))
    hosts = ["login" if name == "10.77.0.1" else name for name in order]
    assert [found["host"] for found in looks] == [host for host in hosts for _ in range(2)]
    assert looks[0]["environ"]["MASTER_ADDR"] == ssh_cluster[hosts[0]].ip


@pytest.mark.parametrize("backend", backends("pdsh", "openmpi", "mpich"))
def test_this_machine_among_others_by_an_engine(request: pytest.FixtureRequest, backend: str) -> None:
    looks = Jobs.on(request, backend).look(hosts="node1 slots=1\nlogin slots=2\n")
    assert [found["host"] for found in looks] == ["node1", "login", "login"]


def test_force_multi_starts_an_agent_for_the_only_node(ssh_cluster: Testbed, shared_dir: Path) -> None:
    looks = Jobs(ssh_cluster, "ssh", shared_dir).look("--force_multi", hosts="login slots=2\n")
    assert [found["host"] for found in looks] == ["login", "login"]


@pytest.mark.parametrize("name", ["ssh", "pdsh"])
def test_user_and_port(ssh_cluster: Testbed, shared_dir: Path, tool: Callable[[str], str], name: str) -> None:
    """``user@host``, and on ssh ``port=``: an sshd that listens on another port only."""
    jobs = Jobs(ssh_cluster, tool(name), shared_dir)
    node, user = ssh_cluster["node2"], ssh_cluster.user
    port = ""
    if name == "ssh":
        node.kill_sshd()
        node.start_sshd("-o", "Port=2222")
        port = " port=2222"
    looks = jobs.look(hosts=f"node1 slots=1\n{user}@node2 slots=1{port}\n")
    assert [found["host"] for found in looks] == ["node1", "node2"]
