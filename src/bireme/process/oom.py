"""Decides whether the kernel's out-of-memory killer ended a rank that died by a SIGKILL that was not ours, and why.

The killer acts when the machine has no memory left, or when a control group has reached its limit. The kernel's log
names both the process and the group. Where we may not read it, the groups' own counters tell (``cgroup-v2.rst`` and
``cgroup-v1/memory.rst`` of the kernel's manual): those of our group, and of all groups around it.
"""

from __future__ import annotations

import os

_UNLIMITED = 1 << 60
"""Bytes: version 1 has no word for "no limit", but a number near the largest one."""
_NEARLY = 1 << 20
"""Bytes: the kernel reserves memory in batches, so a group's usage stops a little below its limit."""
_SETTERS = (
    # (pattern of the group's path, whose limit it is, how that is changed)
    (r"slurm.*/job_(\w+).*/step_(\w+)", r"Slurm's step \1.\2", "--mem of srun or sbatch sets it"),
    (r"slurm.*/job_(\w+)", r"Slurm's job \1", "--mem of srun or sbatch sets it"),
    (r"kubepods", "a Kubernetes pod", "resources.limits.memory of the pod sets it"),
    (r"docker|libpod|containerd|crio|lxc|machine\.slice", "a container", "as --memory of docker or podman run sets it"),
    (r"([^/]+\.(?:slice|service|scope))$", r"systemd's \1", "MemoryMax= sets it"),
    (r"^/$", "this container", "set from outside, as by docker run --memory or a pod's resources.limits.memory"),
    (r"(.*)", r"the control group \1", ""),
)


class OomWatch:
    """Compares the kernel's counts of out-of-memory kills, and its log, with their state when this was created."""

    def __init__(self, proc: str = "/proc", mounts: str = "/sys/fs/cgroup") -> None:
        self._mount, self._groups, self._is_v1 = _memory_groups(f"{proc}/self/cgroup", mounts)
        self._vmstat = f"{proc}/vmstat"
        self._before, self._hits = self._kills(), list(map(self._hit, self._groups))
        self._log = _log_from_now_on()
        # By the log, whose limit the killer enforces; "": the machine's memory is full; None: not said.
        self._group: str | None = None
        self._killed: dict[bytes, str | None] = {}  # the pids of processes that it has killed, with that group

    def struck(self, pid: int) -> str | None:
        """Which limit the killer enforced when it ended ``pid``; ``""``: the machine's memory; ``None``: it did not.

        The counters cannot tell one process from another: any kill since then counts for ``pid``.
        """
        self._read_log()
        if (by_log := self._killed.get(b"%d" % pid)) is not None:
            return self._limit(self._mount + by_log.rstrip("/"), by_log) if by_log else ""
        if b"%d" % pid not in self._killed and self._kills() <= self._before:
            return None
        for group, hits in zip(self._groups, self._hits, strict=True):
            if self._hit(group) > hits and (limit := self._limit(group, group[len(self._mount) :] or "/")):
                return limit
        return ""

    def close(self) -> None:
        """Close the kernel's log."""
        if self._log >= 0:
            os.close(self._log)
            self._log = -1

    def _read_log(self) -> None:
        """Note what was logged since; a pid in earlier records was that of another process."""
        while self._log >= 0:
            try:
                record = os.read(self._log, 8192)
            except BrokenPipeError:  # some records were overwritten unread: continue with the oldest one left
                continue
            except OSError:  # EAGAIN at the end
                return
            if not record:  # in a container this may be an ordinary file
                self._killed.clear()
                return
            if b"oom-kill:constraint=" in record:
                found = record.partition(b",oom_memcg=")[2].partition(b",task_memcg=")[0]
                self._group = os.fsdecode(found)
            if b"Killed process " in record:
                pid = record.partition(b"Killed process ")[2].partition(b" ")[0].rstrip(b",")
                self._killed[pid] = self._group

    def _kills(self) -> int:
        """How many processes of our group, else of the machine, the killer has ended."""
        if not self._groups:
            return _count(self._vmstat, "oom_kill")
        return _count(f"{self._groups[0]}/{'memory.oom_control' if self._is_v1 else 'memory.events'}", "oom_kill")

    def _hit(self, group: str) -> int:
        """How often this group, or with version 2 one below it, has reached its limit."""
        if self._is_v1:  # newer kernels do not count how often the limit with swap was reached
            swap = f"{group}/memory.memsw"
            is_full = _count(f"{swap}.max_usage_in_bytes") > _count(f"{swap}.limit_in_bytes") - _NEARLY
            return _count(f"{group}/memory.failcnt") + is_full
        return _count(f"{group}/memory.events", "oom")

    def _limit(self, group: str, path: str) -> str:
        """The limit of a group and who sets it; without its size if the group is gone, "" if it has none."""
        import re

        names = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes") if self._is_v1 else ("memory.max",)
        files = (f"{group}/{name}" for name in names)
        limits = [(size, file) for file in files if 0 < (size := _count(file)) < _UNLIMITED]
        if not limits and os.path.isdir(group):
            return ""
        size, file = min(limits, default=(0, path))
        found = ((re.search(pattern, path), whose, how) for pattern, whose, how in _SETTERS)
        whose, how = next((match.expand(whose), how) for match, whose, how in found if match)
        text = f"the limit of {f'{size / (1 << 20):,.0f} MiB of ' * bool(size)}{whose} ({file}{'; ' * bool(how)}{how})"
        return "".join(letter if letter.isprintable() else "?" for letter in text)


def part_left(proc: str = "/proc", mounts: str = "/sys/fs/cgroup") -> float:
    """The part of the memory that is still left: of the machine, or of the group around us that has the least.

    Files that the kernel has read and can forget do not count as used.
    """
    machine = f"{proc}/meminfo"
    parts = [_count(machine, "MemAvailable:", -2) / max(1, _count(machine, "MemTotal:", -2))]
    _, groups, is_v1 = _memory_groups(f"{proc}/self/cgroup", mounts)
    most, used, files = "memory.max", "memory.current", "inactive_file"
    if is_v1:
        most, used, files = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
    for group in groups:
        limit = _count(f"{group}/{most}")
        if 0 < limit < _UNLIMITED:
            in_use = _count(f"{group}/{used}") - _count(f"{group}/memory.stat", files)
            parts.append(1 - in_use / limit)
    return min(parts)


def _count(file: str, word: str = "", place: int = -1) -> int:
    """The number in a file, or behind a word in it; 0 if there is none."""
    try:
        with open(file) as lines:
            return next((int(line.split()[place]) for line in lines if line.startswith(f"{word} " * bool(word))), 0)
    except (OSError, ValueError, IndexError):
        return 0


def _memory_groups(listed: str, mounts: str) -> tuple[str, tuple[str, ...], bool]:
    """Where memory groups are mounted, our own and those around it, the inner first, and whether it is version 1.

    A container may see its own group as the root of the mount, and the path of it from outside.
    """
    try:
        with open(listed, errors="surrogateescape") as file:
            groups = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        groups = []
    for number, controllers, path in groups:
        is_v1 = "memory" in controllers.split(",")
        if not is_v1 and number != "0":
            continue
        mount, counter = (f"{mounts}/memory", "memory.oom_control") if is_v1 else (mounts, "memory.events")
        parts = [part for part in path.split("/") if part not in ("", "..")]
        around = ("/".join((mount, *parts[:depth])) for depth in range(len(parts), -1, -1))
        if found := tuple(group for group in around if os.path.exists(f"{group}/{counter}")):
            return mount, found, is_v1
    return mounts, (), False


def _log_from_now_on() -> int:
    """Open the kernel's log at its end; return the descriptor, -1 where we may not read it."""
    try:
        fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return -1
    try:
        os.lseek(fd, 0, os.SEEK_END)
    except OSError:
        os.close(fd)
        return -1
    return fd
