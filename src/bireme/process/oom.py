"""Decides whether the kernel's out-of-memory killer ended a rank that died by a SIGKILL that was not ours."""

from __future__ import annotations

import os


class OomWatch:
    """Compares the kernel's count of out-of-memory kills, and its log, with their state when this was created."""

    def __init__(self) -> None:
        self._counter = _counter_file()
        self._before = self._count()
        self._log = _log_from_now_on()
        self._read = b""

    def struck(self, pid: int) -> bool:
        """Whether the killer ended ``pid``, by the kernel's log or the counter of our control group."""
        return self._in_log(pid) or self._count() > self._before

    def close(self) -> None:
        """Close the kernel's log."""
        if self._log >= 0:
            os.close(self._log)
            self._log = -1

    def _in_log(self, pid: int) -> bool:
        """Look for ``Killed process PID`` in what was logged since; earlier, the pid was that of another process."""
        if self._log < 0:
            return False
        while True:
            try:
                record = os.read(self._log, 8192)
            except BrokenPipeError:  # some records were overwritten unread: continue with the oldest one left
                continue
            except OSError:  # EAGAIN at the end
                return f"Killed process {pid} ".encode() in self._read
            if not record:  # in a container this may be an ordinary file
                return False
            if b"Killed process " in record:
                self._read += record

    def _count(self) -> int:
        try:
            with open(self._counter) as file:
                return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), 0)
        except (OSError, ValueError, IndexError):
            return 0


def _counter_file() -> str:
    """The file that counts the processes killed: our control group's, else the machine's."""
    try:
        with open("/proc/self/cgroup", errors="surrogateescape") as listed:
            groups = [line.rstrip("\n").split(":", 2) for line in listed]
    except OSError:
        groups = []
    for number, controllers, path in groups:
        if "memory" in controllers.split(","):
            file = f"/sys/fs/cgroup/memory{path}/memory.oom_control"
        elif number == "0":
            file = f"/sys/fs/cgroup{path}/memory.events"
        else:
            continue
        if os.path.exists(file):
            return file
    return "/proc/vmstat"


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
