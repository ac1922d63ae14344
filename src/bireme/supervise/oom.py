"""Did the kernel's out-of-memory killer strike? Asked only when a rank died by a SIGKILL that was not ours."""

from __future__ import annotations

import os


class OomWatch:
    """Remembers how often the killer had struck when the job began."""

    def __init__(self) -> None:
        self._counter, self._field = _counter_file()
        self._before = self._count()

    def struck(self, pid: int) -> bool:
        """Whether the killer ended ``pid``, as the kernel's log or the counter of our control group says."""
        return _in_kernel_log(pid) or self._count() > self._before

    def _count(self) -> int:
        try:
            with open(self._counter) as file:
                return next((int(line.split()[1]) for line in file if line.startswith(self._field)), 0)
        except (OSError, ValueError, IndexError):
            return 0


def _counter_file() -> tuple[str, str]:
    """(file, beginning of the line) that counts processes killed: our control group's, else the machine's."""
    try:
        with open("/proc/self/cgroup") as file:
            groups = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        groups = []
    for number, controllers, path in groups:
        candidates = []
        if "memory" in controllers.split(","):
            candidates = [(f"/sys/fs/cgroup/memory{path}/memory.oom_control", "oom_kill ")]
        elif number == "0":
            candidates = [(f"/sys/fs/cgroup{path}/memory.events", "oom_kill ")]
        for candidate in candidates:
            if os.path.exists(candidate[0]):
                return candidate
    return "/proc/vmstat", "oom_kill "


def _in_kernel_log(pid: int) -> bool:
    """Look for ``Killed process PID`` in the kernel's log, where we may read it."""
    try:
        fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return False
    needle = f"Killed process {pid} ".encode()
    try:
        while True:
            if needle in os.read(fd, 8192):
                return True
    except OSError:  # EAGAIN at the end; EPIPE when a record was overwritten while we read
        return False
    finally:
        os.close(fd)
