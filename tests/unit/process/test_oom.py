"""How kills by the out-of-memory killer are recognised. Real ones are in ``tests/command/test_out_of_memory.py``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bireme.process.oom import OomWatch, part_left


def log(pid: int) -> None:
    """What the killer would say of a process."""
    try:
        with open("/dev/kmsg", "w") as file:
            file.write(f"test: Killed process {pid} (python) total-vm:1kB")
    except OSError as error:
        pytest.skip(f"the kernel's log cannot be written: {error}")


def test_only_what_is_logged_later_counts() -> None:
    """An earlier record of the same number was of another process."""
    pid = (1 << 40) + os.getpid()  # no process has this number
    log(pid)
    before = os.listdir("/proc/self/fd")
    watch = OomWatch()
    assert watch.struck(pid) is None
    log(pid)
    assert watch.struck(pid) == watch.struck(pid) == ""
    assert watch.struck(pid // 10) is None
    watch.close()
    watch.close()
    assert watch.struck(pid + 1) is None
    assert os.listdir("/proc/self/fd") == before


WITHOUT_LOG = """
import resource, sys
from bireme.process.oom import OomWatch
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
watch = OomWatch()
assert watch.struck(7) is None
watch.close()
sys.exit(sys.stdin.read())
"""


def test_a_log_that_cannot_be_opened() -> None:
    """Nothing else is taken for it, such as what we read ourselves."""
    words = [sys.executable, "-c", WITHOUT_LOG]
    done = subprocess.run(
        words, input=(text := "Killed process 7 (rank)\n"), capture_output=True, text=True, check=False
    )
    assert done.stderr == f"{text}\n"


class StandIn:
    """Files as the kernel's manual describes them, for groups that cannot be made everywhere. Not real groups."""

    def __init__(self, root: Path, own: str, *, version: int) -> None:
        self.proc, self.mounts, self.version = root / "proc", root / "cgroup", version
        (self.proc / "self").mkdir(parents=True)
        (self.proc / "vmstat").write_text("nr_free_pages 1\noom_kill 0\n")
        v1 = "3:cpu:/elsewhere\n4:memory,hugetlb:{}\n0::/elsewhere\n"
        (self.proc / "self/cgroup").write_text((v1 if version == 1 else "0::{}\n").format(own))
        self.mount = self.mounts / "memory" if version == 1 else self.mounts

    def group(self, path: str, limit: str = "max", *, hit: int = 0, kills: int = 0) -> None:
        folder = self.mount / path.strip("/")
        folder.mkdir(parents=True, exist_ok=True)
        if self.version == 1:
            bytes_ = "9223372036854771712" if limit == "max" else limit
            files = {"memory.limit_in_bytes": bytes_, "memory.memsw.limit_in_bytes": "9223372036854771712"}
            files |= {"memory.failcnt": str(hit), "memory.memsw.max_usage_in_bytes": "0"}
            files["memory.oom_control"] = f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}"
        else:
            events = f"low 0\nhigh 0\nmax {9 * hit}\noom {hit}\noom_kill {kills}\noom_group_kill 0"
            files = {"memory.max": limit, "memory.events": events}
        for name, text in files.items():
            (folder / name).write_text(f"{text}\n")

    def watch(self) -> OomWatch:
        watch = OomWatch(str(self.proc), str(self.mounts))
        watch.close()  # as where we may not read the kernel's log
        return watch


@pytest.mark.parametrize("version", [1, 2])
def test_the_counters_tell_whose_limit(tmp_path: Path, version: int) -> None:
    """The limit is not that of our own group, but of one around it; others were reached without a kill, or earlier."""
    files = StandIn(tmp_path, "/a/b/c", version=version)
    files.group("/", hit=3)
    files.group("/a", str(900 << 20), hit=2)
    files.group("/a/b", str(512 << 20), hit=5, kills=1)
    files.group("/a/b/c", str(600 << 20), hit=1, kills=1)
    watch = files.watch()
    assert watch.struck(7) is None
    files.group("/a/b", str(512 << 20), hit=6, kills=2)
    files.group("/a", str(900 << 20), hit=3, kills=2)
    assert watch.struck(7) is None
    files.group("/a/b/c", str(600 << 20), hit=1, kills=2)
    file = files.mount / "a/b" / ("memory.max" if version == 2 else "memory.limit_in_bytes")
    assert watch.struck(7) == f"the limit of 512 MiB of the control group /a/b ({file})"


@pytest.mark.parametrize("version", [1, 2])
def test_the_machine_had_no_memory(tmp_path: Path, version: int) -> None:
    files = StandIn(tmp_path, "/a", version=version)
    files.group("/")
    files.group("/a", str(1 << 40), hit=2)
    watch = files.watch()
    files.group("/a", str(1 << 40), hit=2, kills=1)
    assert watch.struck(7) == ""


@pytest.mark.parametrize("version", [1, 2])
def test_the_part_that_is_left(tmp_path: Path, version: int) -> None:
    """Of the group around us that has the least; what the kernel can forget is not used."""
    files = StandIn(tmp_path, "/a/b", version=version)
    (files.proc / "meminfo").write_text("MemTotal:       1000 kB\nMemFree: 1 kB\nMemAvailable:  800 kB\n")
    assert part_left(str(files.proc), str(files.mounts)) == 0.8, "no group is known"
    used, name = (
        ("memory.usage_in_bytes", "total_inactive_file") if version == 1 else ("memory.current", "inactive_file")
    )
    for path, limit, bytes_ in (("/", "max", 999), ("/a", "1000", 900), ("/a/b", "max", 900)):
        files.group(path, limit)
        (files.mount / path.strip("/") / used).write_text(f"{bytes_}\n")
        (files.mount / path.strip("/") / "memory.stat").write_text(f"anon 5\nx{name} 9\n{name} 300\n")
    assert part_left(str(files.proc), str(files.mounts)) == pytest.approx(0.4)


def test_no_group_is_known(tmp_path: Path) -> None:
    files = StandIn(tmp_path, "/a", version=2)
    watch = files.watch()
    (files.proc / "vmstat").write_text("oom_kill 1\n")
    assert watch.struck(7) == ""


UID = "6a9c3b0e_4b5f"


@pytest.mark.parametrize(
    ("own", "whose", "how"),
    [
        ("/slurm/uid_0/job_12/step_0", "Slurm's step 12.0", "--mem"),
        ("/system.slice/slurmstepd.scope/job_12/step_batch/user/task_0", "Slurm's step 12.batch", "--mem"),
        ("/system.slice/n1_slurmstepd.scope/job_12", "Slurm's job 12", "--mem"),
        ("/user.slice/user-1000.slice", "systemd's user-1000.slice", "MemoryMax="),
        (f"/kubepods.slice/kubepods-pod{UID}.slice/cri-containerd-1f.scope", "a Kubernetes pod", "resources.limits"),
        ("/system.slice/docker-1f2e.scope", "a container", "--memory"),
        ("/docker/1f2e", "a container", "--memory"),
        ("/machine.slice/libpod-1f.scope", "a container", "--memory"),
        ("/", "this container", "from outside"),
        ("/odd\x1bname", "the control group /odd?name", ""),
    ],
)
def test_who_has_set_it(tmp_path: Path, own: str, whose: str, how: str) -> None:
    files = StandIn(tmp_path, own, version=2)
    files.group("/")
    files.group(own, str(64 << 20))
    watch = files.watch()
    files.group(own, str(64 << 20), hit=1, kills=1)
    said = watch.struck(7)
    assert said is not None and said.isprintable()
    assert said.startswith(f"the limit of 64 MiB of {whose} (") and "memory.max" in said and how in said


def test_a_container_sees_its_own_group_as_the_root(tmp_path: Path) -> None:
    """And the path from outside: with version 1, docker mounts only the container's own group."""
    files = StandIn(tmp_path, "/docker/1f2e", version=1)
    files.group("/", str(64 << 20))
    watch = files.watch()
    files.group("/", str(64 << 20), hit=1, kills=1)
    assert str(watch.struck(7)).startswith("the limit of 64 MiB of this container (")
