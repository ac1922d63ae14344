"""Jobs on a cluster: how they are started, what their ranks find, and the table of which rank runs where."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.cluster import ways
from tests.cluster.host import Host
from tests.cluster.testbed import Testbed
from tests.conftest import bireme

T = TypeVar("T")
PROGRAM_OF = {"ssh": "ssh", "pdsh": "pdsh", "openmpi": "mpirun.openmpi", "mpich": "mpiexec.mpich", "slurm": "srun"}


def cluster_of(backend: str) -> str:
    """The fixture that brings a cluster which this backend can be used on."""
    return "slurm_cluster" if backend == "slurm" else "ssh_cluster"


def backends(*names: str) -> tuple[str, ...]:
    """Parameters for ``backend``: these, or all that a cluster has."""
    return names or tuple(PROGRAM_OF)


def cases(over_ssh: Iterable[T], others: Mapping[str, Sequence[T]]) -> list[Any]:
    """Parameters for the fixture and for what happens, with names such as ``ssh-SIGTERM``."""
    each = [("ssh", case) for case in over_ssh] + [(backend, case) for backend in others for case in others[backend]]
    return [pytest.param(backend, case, id=f"{backend}-{getattr(case, 'name', case)}") for backend, case in each]


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
        self,
        *words: object,
        hosts: str = "node[1-3]:2",
        timeout: float = 120,
        code: int | None = None,
        **kwargs: Any,
    ) -> subprocess.CompletedProcess[str]:
        """Run it to its end, which has this exit code."""
        process = self.start(*words, hosts=hosts, **kwargs)
        out, err = ((data or b"").decode(errors="replace") for data in process.communicate(timeout=timeout))
        assert code in (None, process.returncode), err
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def end(self, process: subprocess.Popen[bytes], code: int = 0) -> str:
        """It ends by itself, with this code; what it has said on stderr."""
        text = process.communicate(timeout=60)[1].decode(errors="replace")
        assert process.returncode == code, text
        return text

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
