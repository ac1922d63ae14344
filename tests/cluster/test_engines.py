"""MPI implementations that no Linux distribution packages, on real hosts.

``mvapich``: a stand-in for ``mpirun_rsh`` (``fake/mpirun_rsh``), which starts the agents by real ssh. ``impi``: Intel
MPI itself; ``openmpi5`` and ``mpich5``: younger ones than Debian's, of which the other tests are. ``make`` brings these
three from PyPI, each into a directory of its own; ``I_MPI_ROOT`` names another Intel MPI.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bireme.backends import choice
from tests.cluster.basics import PATH
from tests.cluster.jobs import UNEVEN, Jobs, Looks
from tests.cluster.test_losses import agent_of, end
from tests.cluster.test_native import MPI, SEEN
from tests.cluster.testbed import PRIVATE, Testbed
from tests.cluster.ways import FAKE
from tests.conftest import PROGRAMS, ROOT, read_lines
from tests.kit import needs

pytestmark = pytest.mark.slow
SCENE = PROGRAMS / "scene.py"
RANKS = 6
PLACES = [("node1", 0), ("node1", 1), ("node2", 0), ("node2", 1), ("node2", 2), ("node3", 0)]


def directory_of(engine: str, shared: Path) -> Path:
    """Where the engine's programs are.

    No engine can lie where a path has a space: the shell on a node gets the path of its daemon as it is. Then it is in
    the shared directory, Intel's large one by a link: Open MPI would follow that.
    """
    found = root_of(engine)
    if " " not in str(found):
        return found
    if engine == "impi":
        (shared / engine).symlink_to(found.parent)
    else:
        shutil.copytree(found.parent, shared / engine, symlinks=True)
    return shared / engine / found.name


def root_of(engine: str) -> Path:
    if engine == "mvapich":
        return FAKE
    root = ROOT / f".venv-{engine.rstrip('5')}"
    if engine == "impi" and "I_MPI_ROOT" in os.environ:
        root = Path(os.environ["I_MPI_ROOT"])
        if not root.is_relative_to(ROOT) and str(root).startswith(tuple(f"{path}/" for path in PRIVATE)):
            needs.missing(f"I_MPI_ROOT, {root}, lies where each host of the cluster has a directory of its own")
    if not (root / "bin" / "mpiexec").exists():
        needs.missing(f"there is no {engine} in {root}: `make engines` could not install it")
    return root / "bin"


class EngineJobs(Jobs):
    """Jobs by an engine that is not on every PATH."""

    def __init__(self, testbed: Testbed, engine: str, shared: Path) -> None:
        super().__init__(testbed, engine.rstrip("5"), shared)
        self.directory = directory_of(engine, shared)
        self.environ = {"PATH": f"{self.directory}:{PATH}"}
        if engine == "impi":
            self.environ["I_MPI_ROOT"] = str(self.directory.parent)
        self.go = shared / "go"

    def start(self, *words: object, env: dict[str, str] | None = None, **kwargs: Any) -> subprocess.Popen[bytes]:
        environ = {**self.environ, **(env or {})}
        return super().start("--accelerator", "cpu", *words, env=environ, **kwargs)

    def scene(self, part: str) -> subprocess.Popen[bytes]:
        """Start a scene on two nodes, and wait until all ranks are ready."""
        process = self.start("--grace", "0.5", "--heartbeat", "5", SCENE, part, self.go, hosts="node1:1,node2:2")
        read_lines(process, 3, "ready")
        return process


@pytest.fixture(params=["mvapich", "impi"])
def jobs(request: pytest.FixtureRequest, ssh_cluster: Testbed, shared_dir: Path) -> Iterator[EngineJobs]:
    yield EngineJobs(ssh_cluster, request.param, shared_dir)


@pytest.fixture(params=["mvapich", "impi", "openmpi5", "mpich5"])
def any_jobs(request: pytest.FixtureRequest, ssh_cluster: Testbed, shared_dir: Path) -> Iterator[EngineJobs]:
    """What the younger engines do differently shows in the start and in the end of a job."""
    yield EngineJobs(ssh_cluster, request.param, shared_dir)


def places(looks: Looks) -> list[tuple[str, int]]:
    return [(found["host"], int(found["environ"]["LOCAL_RANK"])) for found in looks]


def test_ranks(any_jobs: EngineJobs) -> None:
    """Uneven nodes; agents unbound; nothing of the engine's in a rank's environment, nor of the login's."""
    environ = {"CUDA_VISIBLE_DEVICES": "7", "NOT_EXPORTED": "x", "I_MPI_PIN_PROCESSOR_LIST": "0", "RANK": "9"}
    looks = any_jobs.look(hosts=UNEVEN, env=environ)
    assert places(looks) == PLACES
    backend = choice.load(any_jobs.backend)
    for rank, found in enumerate(looks):
        variables = found["environ"]
        assert (variables["RANK"], variables["WORLD_SIZE"]) == (str(rank), "6")
        assert found["affinity"] == sorted(os.sched_getaffinity(0))
        travelled = {"I_MPI_PIN_PROCESSOR_LIST"}  # it is the user's, and begins as exported ones do
        assert not [name for name in variables if name.startswith(backend.rank_variables) and name not in travelled]
        assert variables["CUDA_VISIBLE_DEVICES"] != "7"
        assert "NOT_EXPORTED" not in variables


@pytest.mark.parametrize("any_jobs", ["mvapich"], indirect=True)
def test_native_ranks(any_jobs: EngineJobs) -> None:
    """Where there is no MPI library: the others have `test_world_of_mpi`."""
    looks = any_jobs.look("--native_ranks", hosts=UNEVEN)
    assert places(looks) == PLACES
    assert [found["environ"]["RANK"] for found in looks] == [str(rank) for rank in range(RANKS)]


@pytest.mark.parametrize("any_jobs", ["impi", "openmpi5", "mpich5"], indirect=True)
def test_world_of_mpi(any_jobs: EngineJobs) -> None:
    """By mpi4py and the engine's own library: its size, ranks and hosts are those of the environment protocol."""
    library = any_jobs.directory.parent / "lib"
    abi = "openmpi" if any_jobs.backend == "openmpi" else "mpich"
    options = ("--export", f"MPI4PY_MPIABI={abi}", "--export", f"LD_LIBRARY_PATH={library}", "--accelerator", "cuda")
    done = any_jobs.run("--native_ranks", *options, any_jobs.write("sees.py", MPI), hosts=UNEVEN, code=0)
    assert sorted(line[5:] for line in done.stdout.splitlines() if line.startswith("sees ")) == SEEN, done.stdout


@pytest.mark.parametrize(("jobs", "signum"), [("mvapich", signal.SIGTERM), ("impi", signal.SIGINT)], indirect=["jobs"])
def test_no_secret_in_any_arguments_and_the_command_is_signalled(jobs: EngineJobs, signum: signal.Signals) -> None:
    """The engine gets no signal, the agents do the work: see ``tests/cluster/test_scenes.py``."""
    jobs.write(".bireme_env", "WANDB_API_KEY=canary\n")
    process = jobs.scene("wait")
    tokens = {token for pid in jobs.login.ps() if (token := token_of(pid))}
    arguments = [word for host in jobs.testbed.hosts.values() for found in host.ps().values() for word in found.argv]
    assert len(tokens) == 1
    assert any("bireme.agent" in word for word in arguments)
    assert not [word for word in arguments if "canary" in word or any(token in word for token in tokens)]
    jobs.login.kill(process, signum)
    end(jobs, process, 128 + signum)


def token_of(pid: int) -> str:
    try:
        pairs = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return ""
    return next((pair.partition(b"=")[2].decode() for pair in pairs if pair.startswith(b"BIREME_TOKEN=")), "")


def test_rank_fails(any_jobs: EngineJobs) -> None:
    process = any_jobs.scene("exit3")
    any_jobs.go.touch()
    assert "rank 2 on node2" in end(any_jobs, process, 3)


def test_command_is_killed(any_jobs: EngineJobs) -> None:
    process = any_jobs.scene("wait")
    any_jobs.login.kill(process, signal.SIGKILL)
    process.communicate(timeout=60)
    any_jobs.testbed.leaves_nothing()


def test_agent_is_killed(jobs: EngineJobs) -> None:
    process = jobs.scene("grandchild")
    os.kill(agent_of(jobs.testbed["node2"]), signal.SIGKILL)
    assert "agent lost on node2" in end(jobs, process, 75)


@pytest.mark.parametrize(("jobs", "fault"), [("impi", "poweroff"), ("mvapich", "cut")], indirect=["jobs"])
def test_node_is_lost(jobs: EngineJobs, fault: str) -> None:
    process = jobs.scene("wait")
    node = jobs.testbed["node2"]
    getattr(node, fault)()
    assert "agent lost on node2" in jobs.end(process, 75)
    if fault == "cut":
        node.heal()
    jobs.testbed.leaves_nothing()


def test_host_that_is_not_there(jobs: EngineJobs) -> None:
    done = jobs.run(SCENE, "wait", hosts="node1:1,nowhere:1", code=69)
    assert "nodes cannot run the job" in done.stderr
    jobs.testbed.leaves_nothing()


def test_the_stand_in_knows_its_options() -> None:
    """What the real one refuses is refused, so that no test passes by its leniency."""
    for words in (
        ["-ssh", "-np", "1", "h", "true"],
        ["-np", "2", "h", "true"],
        ["-np", "0", "true"],
        ["-np", "1", "h"],
    ):
        done = subprocess.run([sys.executable, FAKE / "mpirun_rsh", *words], capture_output=True, text=True)
        assert done.returncode == 1, words
        assert "usage: mpirun_rsh" in done.stderr
    shown = subprocess.run(
        [sys.executable, FAKE / "mpirun_rsh", "-np", "2", "-export", "-show", "a", "b", "X=secret", "prog", "it's"],
        capture_output=True,
        text=True,
        env={**os.environ, "BIREME_TOKEN": "canary"},
    ).stdout
    assert shown.count("/usr/bin/ssh -q a ") == shown.count("/usr/bin/ssh -q b ") == 1
    assert "MPISPAWN_GENERIC_VALUE_0=secret" in shown  # the reason why nothing is told it that way
    assert "canary" not in shown
