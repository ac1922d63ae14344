"""Real containers: podman with a root directory that has Debian's Python, and nothing of Bireme."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.cluster.basics import PATH, wait_until
from tests.cluster.test_unfit import table_of
from tests.conftest import PROGRAMS, ROOT, bireme, clean_environ, read_lines
from tests.kit import needs

pytestmark = pytest.mark.slow
CGROUP = "/sys/fs/cgroup/*/libpod_parent"
NAMES = ("trainer1", "trainer2", "bare")
REAP = "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN); [signal.pause() for _ in iter(int, 1)]"
WAIT = ("/usr/bin/python3", "-c", REAP)


class Containers:
    """Some containers whose names are no host's: one has no Python on its PATH. All see ``jobs``."""

    def __init__(self, base: Path) -> None:
        self._base, self.jobs = base, base / "jobs"
        podman = [
            *(needs.program("podman", path=PATH), "--root", str(base / "store"), "--runroot", str(base / "run")),
            *("--cgroup-manager", "cgroupfs", "--storage-driver", "vfs", "--events-backend", "none"),
            *("--runtime", needs.program("runc", "crun", path=PATH)),
        ]
        wrapper = base / "bin" / "podman"
        for folder in (self.jobs, wrapper.parent):
            folder.mkdir()
        quoted = " ".join(f"'{word}'" for word in podman)
        wrapper.write_text(f'#!/bin/sh\nexec {quoted} "$@"\n')
        wrapper.chmod(0o755)
        self.environ = clean_environ(PATH=f"{wrapper.parent}:{PATH}")
        for name in NAMES:
            self.create(name, *WAIT, path="/nowhere" if name == "bare" else "/usr/bin:/bin")

    def create(self, name: str, *words: str, path: str = "/usr/bin:/bin", seen: tuple[str, ...] = ()) -> None:
        """Run these words as the first process of a container."""
        root = Path(tempfile.mkdtemp(dir=self._base))
        for folder in ("usr", "etc", "tmp", "proc", "sys", "dev", "run", "root"):
            (root / folder).mkdir(parents=True)
        for link in ("bin", "lib", "lib64", "sbin"):
            (root / link).symlink_to(f"usr/{link}")
        (root / "etc" / "passwd").write_text("root:x:0:0::/root:/bin/sh\n")
        # a container may have fewer rights than podman expects for its own limits
        limits = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096")
        mounts = ["-v", f"{self.jobs}:{self.jobs}", "--workdir", str(self.jobs)]
        mounts += [word for place in ("/usr", *seen) for word in ("-v", f"{place}:{place}:ro")]
        self.podman(
            *("run", "-d", "--name", name, "--network", "host", "--hostname", f"h{len(name)}", "--env", f"PATH={path}"),
            *(*limits, *mounts, "--rootfs", str(root), *words),
        )

    def podman(self, *words: str) -> str:
        done = subprocess.run(("podman", *words), env=self.environ, capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise RuntimeError(done.stderr)
        return done.stdout

    def start(self, *words: str | Path, launcher: tuple[str, ...] = ("podman",)) -> subprocess.Popen[bytes]:
        """Four ranks in two containers."""
        options = ("--launcher", *launcher, "--hosts", "trainer1:2,trainer2:2", "--grace", "0.5", "--heartbeat", "3")
        pipe = subprocess.PIPE
        return subprocess.Popen(
            bireme("run", *options, *words), cwd=self.jobs, env=self.environ, stdout=pipe, stderr=pipe
        )

    def says(self, name: str, words: list[str]) -> bool:
        """Whether the output of a container has all of these."""
        done = subprocess.run(
            ("podman", "logs", name),
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
        )
        said = done.stdout
        return all(word in said for word in words)

    def left(self) -> str:
        """The processes of the containers besides their first."""
        return "".join(line for name in NAMES for line in self.podman("top", name, "hpid", "args").splitlines()[2:])


@pytest.fixture(scope="session")
def containers() -> Iterator[Containers]:
    base = Path(tempfile.mkdtemp(prefix="pods-"))  # podman wants a short path
    if os.getuid() or not os.path.exists(WAIT[0]):
        pytest.skip(f"needs root, and {WAIT[0]} for the containers")
    try:
        made = Containers(base)
        shutil.copy(PROGRAMS / "scene.py", made.jobs)
        yield made
    except RuntimeError as error:
        pytest.skip(f"podman cannot run a container here: {error}")
    finally:
        subprocess.run((base / "bin" / "podman", "rm", "-f", "-t", "0", "-a"), capture_output=True, check=False)
        shutil.rmtree(base, ignore_errors=True)
        for left in (*glob.glob(f"{CGROUP}/conmon"), *glob.glob(CGROUP)):
            with contextlib.suppress(OSError):  # somebody else's containers are in it
                os.rmdir(left)


LAUNCHERS = {"podman": ("podman",), "exec": ("exec", "--launcher_args", "podman exec -i {host}", "--python", "python3")}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_rank_fails(containers: Containers, launcher: str) -> None:
    go = containers.jobs / f"go-{launcher}"
    process = containers.start("scene.py", "grandchild", go, launcher=LAUNCHERS[launcher])
    read_lines(process, 4, "ready")
    go.touch()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 3 and b"rank 3 on trainer2" in err, err
    wait_until("the containers to be empty", lambda: not containers.left(), 30)


@pytest.mark.parametrize("what", ["the command", "a client"])
def test_killed(containers: Containers, what: str) -> None:
    """What is killed tells nobody; the containers stay."""
    process = containers.start("scene.py", "grandchild", "never")
    read_lines(process, 4, "ready")
    if what == "the command":
        process.kill()
    else:
        found = subprocess.run(("pgrep", "-f", f"^.*{containers.jobs.parent}.* exec .*trainer2"), capture_output=True)
        os.kill(int(found.stdout.split()[0]), signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == (-signal.SIGKILL if what == "the command" else 75), err
    wait_until("the containers to be empty", lambda: not containers.left(), 30)


def test_code_that_is_in_no_container(containers: Containers, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os; print('read', os.environ['RANK'], open('data').read())\n")
    (tmp_path / "data").write_text("all")
    command = bireme("run", "--ship=.", "--launcher", "podman", "--hosts", "trainer1:1,trainer2:1", "train.py")
    done = subprocess.run(command, cwd=tmp_path, env=containers.environ, capture_output=True, text=True, timeout=60)
    assert sorted(done.stdout.splitlines()) == ["[trainer1:0] read 0 all", "[trainer2:1] read 1 all"], done.stderr


def test_unfit(containers: Containers) -> None:
    done = subprocess.run(
        bireme("check", "--launcher", "podman", "--hosts", "trainer1:1,bare:1,nobody:1"),
        cwd=containers.jobs,
        env=containers.environ,
        capture_output=True,
        text=True,
        timeout=60,
    )
    said = table_of(done.stderr)
    assert done.returncode == 1 and said.keys() == {"bare", "nobody"}
    assert "python3" in said["bare"][0] and "not found" in said["bare"][0]
    assert "no such container" in said["nobody"][0]


SAVES = """
import os, signal, sys, time

name = "step" + os.environ["RANK"]
first = int(open(name).read()) if os.path.exists(name) else 0

def save(*_):
    with open(name, "w") as file:
        file.write(str(step))
    sys.exit(0)

signal.signal(signal.SIGUSR1, save)
for step in range(first + 1, 1_000_000):
    if step == first + 3:
        print("from", first, flush=True)
    time.sleep(0.01)
"""


@pytest.mark.parametrize("words", [(), ("/bin/sh", "-c", 'export TRIED=1; exec "$@"', "sh")], ids=["itself", "a shell"])
def test_a_container_that_is_stopped_saves_and_the_next_one_continues(
    containers: Containers, words: tuple[str, ...]
) -> None:
    """The command is process 1; or what a shell becomes that was."""
    (containers.jobs / "saves.py").write_text(SAVES)
    job = bireme("run", "--num_gpus", "2", "--checkpoint_signal", "USR1", "--preempt_signal", "TERM@25", "saves.py")
    steps = [containers.jobs / f"step{rank}" for rank in (0, 1)]
    saved = [step.write_text("0") and 0 for step in steps]
    for name in (f"first{len(words)}", f"second{len(words)}"):
        containers.create(name, *words, *job, seen=(sys.base_prefix, str(ROOT)))
        begun = [f"[h{len(name)}:{rank}] from {step}" for rank, step in enumerate(saved)]
        wait_until("the ranks", partial(containers.says, name, begun), 60)
        containers.podman("stop", "-t", "30", name)
        assert containers.says(name, ["2 ranks ended without being stopped"])
        assert containers.podman("inspect", "--format", "{{.State.ExitCode}}", name) == "78\n"
        containers.podman("rm", name)
        before, saved = saved, [int(step.read_text()) for step in steps]
        assert all(new >= old + 3 for old, new in zip(before, saved, strict=True))


def example_of_pods() -> tuple[str, str]:
    """The programs of examples/indexed_job.yaml: what its pods begin with, and the script of the ranks."""
    example = (ROOT / "examples/indexed_job.yaml").read_text()
    found = re.search(r"  start.py: \|\n(.*)  train.py: \|\n(.*?)---", example, re.DOTALL)
    assert found
    return textwrap.dedent(found[1]), textwrap.dedent(found[2])


def documented() -> str:
    """What the documentation lets the first process of a container of ranks do."""
    page = (ROOT / "docs/preemption.md").read_text()
    found = re.search(r"```python\n(import os, signal, time\n.*?)```", page, re.DOTALL)
    assert found
    return found[1]


@pytest.mark.parametrize(("stopped", "waits"), [("one", "docs"), ("both", "docs"), ("one", "pod")])
def test_containers_of_ranks_that_are_stopped_save(containers: Containers, stopped: str, waits: str) -> None:
    """Their first process is that of the documentation, or that of an example."""
    (containers.jobs / "saves.py").write_text(SAVES)
    steps = [containers.jobs / f"step{rank}" for rank in (0, 1)]
    for step in steps:
        step.write_text("0")
    names = [f"{waits}{stopped}{number}" for number in (1, 2)]
    first = documented() if waits == "docs" else example_of_pods()[0]
    for name in names:
        containers.create(name, "/usr/bin/env", "JOB_COMPLETION_INDEX=1", "/usr/bin/python3", "-c", first)
    words = ("--launcher", "podman", "--hosts", ",".join(f"{name}:1" for name in names))
    words += ("--checkpoint_signal", "USR1", "--preempt_signal", "TERM@50")
    pipe = subprocess.PIPE
    command = bireme("run", *words, "saves.py")
    job = subprocess.Popen(command, cwd=containers.jobs, env=containers.environ, stdout=pipe, stderr=pipe)
    read_lines(job, 2, "from 0")
    containers.podman("stop", "-t", "60", *names[: 1 if stopped == "one" else 2])
    _, err = job.communicate(timeout=60)
    assert job.returncode == 78 and b"preempted: SIGTERM on " in err, err
    assert all(int(step.read_text()) >= 3 for step in steps)
    assert containers.podman("inspect", "--format", "{{.State.ExitCode}}", names[0]) == "0\n"
