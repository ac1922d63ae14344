"""Clusters as fixtures: one of each kind per session, repaired after every test, with nothing left running.

Every worker of xdist has its own: tests that wait do not hold up others then, and a cluster starts in seconds.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import bireme
from tests.cluster.basics import PATH, signal_all
from tests.cluster.jobs import Jobs
from tests.cluster.testbed import Testbed, unavailable
from tests.kit import needs

REPOSITORY = Path(__file__).resolve().parents[2]
NODES = 4
GRACE = 30.0  # seconds that a command's last processes have to be gone after it, on a busy machine


def start(base: Path, **kwargs: object) -> Iterator[Testbed]:
    state = tempfile.mkdtemp(prefix="testbed-")
    share = [str(REPOSITORY), sys.prefix, str(base)]
    hide = [os.path.dirname(bireme.__file__)]  # agents need nothing of us there
    with Testbed(NODES, state=state, share=share, hide=hide, **kwargs) as testbed:  # type: ignore[arg-type]
        yield testbed


@pytest.fixture(scope="session")
def _ssh_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    if why := unavailable():
        needs.missing(f"no cluster: {why}")
    yield from start(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="session")
def _slurm_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    if why := unavailable("slurmctld", "slurmd", "munged", "srun"):
        needs.missing(f"no cluster: {why}")
    # With this plugin and the true number of CPUs, a step that does not ask for the whole node is pinned to one core.
    yield from start(tmp_path_factory.getbasetemp(), slurm=True, task="task/affinity", cpus=os.cpu_count() or 1)


def ended(testbed: Testbed) -> None:
    """Mend the cluster; fail if anything is left running on it, and end that."""
    testbed.mend()
    jobs = testbed.slurm_jobs(GRACE) if testbed.slurm else []
    if jobs:
        testbed["login"].run(["scancel", *(job.split()[0] for job in jobs)])
    left = testbed.strays(GRACE)
    signal_all([pid for strays in left.values() for pid in strays], signal.SIGKILL)
    assert not left, f"left running: { {host: list(strays.values()) for host, strays in left.items()} }"
    assert not jobs, f"left in the queue: {jobs}"


@contextmanager
def prepared(request: pytest.FixtureRequest, testbed: Testbed) -> Iterator[Testbed]:
    """The cluster for one test. Nodes have nothing of Bireme, but for a test that types commands there."""
    if request.node.get_closest_marker("installed") is None:
        yield testbed
    else:
        for host in testbed.nodes:
            host.run(["umount", *testbed.hide], root=True)
        try:
            yield testbed
        finally:
            for host in testbed.nodes:
                host.run("".join(f"mount -t tmpfs tmpfs {shlex.quote(path)}\n" for path in testbed.hide), root=True)
    ended(testbed)


@pytest.fixture
def ssh_cluster(request: pytest.FixtureRequest, _ssh_cluster: Testbed) -> Iterator[Testbed]:
    """login and node1 to node4, reachable by ssh."""
    with prepared(request, _ssh_cluster) as testbed:
        yield testbed


@pytest.fixture
def slurm_cluster(request: pytest.FixtureRequest, _slurm_cluster: Testbed) -> Iterator[Testbed]:
    """The same with Slurm, all nodes idle, which pins a one-task step to one core."""
    _slurm_cluster.slurm_ready()
    with prepared(request, _slurm_cluster) as testbed:
        yield testbed


@pytest.fixture
def home(ssh_cluster: Testbed) -> Iterator[Path]:
    """The user's home on all hosts; what a test writes there is taken away again."""
    path = Path(ssh_cluster.home)
    before = set(path.rglob("*"))
    yield path
    for left in sorted(set(path.rglob("*")) - before, reverse=True):
        left.rmdir() if left.is_dir() else left.unlink()


@pytest.fixture
def shared_dir(tmp_path: Path) -> Path:
    """A directory of this test's own that all hosts see at the same path, as over NFS."""
    shared = tmp_path / "shared"
    shared.mkdir()
    return shared


@pytest.fixture
def backend() -> str:
    """The launcher of ``jobs``; a test that is parametrized with ``backend`` has another."""
    return "ssh"


@pytest.fixture
def jobs(request: pytest.FixtureRequest, backend: str) -> Jobs:
    """Starts jobs on the cluster of this launcher, in ``shared_dir``."""
    return Jobs.on(request, backend)


@pytest.fixture
def tool() -> Callable[[str], str]:
    """``tool("pdsh")``: the name of a command that the test needs."""

    def need(name: str) -> str:
        needs.program(name, path=PATH)
        return name

    return need
