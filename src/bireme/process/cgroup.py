"""Puts a job into a control group of its own, where one is delegated to us, so that ``cgroup.kill`` kills all of it.

This needs cgroup v2, and a group that was delegated to us: systemd marks such groups with the extended attribute
``user.delegate``, or gives them to the user. The guardian enters the group before it forks, so that every process of
the job starts inside; moving each worker would cost an RCU grace period per rank. Elsewhere all functions do nothing.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_ROOTS = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")


def delegated() -> str:
    """The directory of our own group if it is v2 and delegated to us, else ``""``."""
    try:
        with open("/proc/self/cgroup") as file:
            path = next((line[3:].strip() for line in file if line.startswith("0::")), "")
    except OSError:
        return ""
    for root in _ROOTS:
        group = root + path.rstrip("/")
        if path and os.path.exists(f"{root}/cgroup.controllers") and os.access(f"{group}/cgroup.kill", os.W_OK):
            return group if _handed_over(group) else ""
    return ""


def _handed_over(group: str) -> bool:
    """Whether the group's manager lets us create groups below it."""
    for attribute in ("user.delegate", "trusted.delegate"):
        try:
            if os.getxattr(group, attribute) == b"1":
                return True
        except OSError:
            pass
    return os.geteuid() != 0 and os.access(group, os.W_OK) and os.access(f"{group}/cgroup.procs", os.W_OK)


def enter(pid: int) -> str:
    """In the guardian: create a group for the job and enter it; return its directory, ``""`` if there is none."""
    outer = delegated()
    if not outer:
        return ""
    inner = group_of(outer, pid)
    try:
        os.mkdir(inner)
        _write(f"{inner}/cgroup.procs", "0")
    except OSError:
        return ""
    return inner


def group_of(outer: str, pid: int) -> str:
    """The directory of the job's group, named by the pid of the agent's child, so that the agent can find it."""
    return f"{outer}/bireme-{pid}"


def leave(inner: str) -> None:
    """In the guardian: leave the group, so that it can be killed or removed."""
    if inner:
        _try(_write, f"{os.path.dirname(inner)}/cgroup.procs", "0")


def kill(inner: str) -> None:
    """Send SIGKILL to every process in the group at once."""
    if inner:
        _try(_write, f"{inner}/cgroup.kill", "1")


def remove(inner: str) -> None:
    """Remove the job's group, which must be empty."""
    if inner:
        _try(os.rmdir, inner)


def _try(call: Callable[..., object], *arguments: str) -> None:
    try:
        call(*arguments)
    except OSError:
        pass


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def named_by(pid: int) -> str:
    """In the agent or watcher: the job's group, by the pid that names it; ``""`` if there is none."""
    outer = delegated()
    return group_of(outer, pid) if outer and os.path.isdir(group_of(outer, pid)) else ""
