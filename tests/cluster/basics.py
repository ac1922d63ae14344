"""What the test host and the test cluster share: commands, files, and waiting for a condition."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from tests.kit.waiting import wait_for

T = TypeVar("T")

HERE = str(Path(__file__).resolve().parent)
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def sh(cmd: Sequence[str], stdin: str | None = None, quiet: bool = False) -> str:
    """The output of a command that has to succeed; it may be one of root's, which a user's PATH may lack."""
    stderr = subprocess.DEVNULL if quiet else None
    env = {**os.environ, "PATH": PATH}
    return subprocess.run(
        cmd, check=True, text=True, input=stdin, stdout=subprocess.PIPE, stderr=stderr, env=env
    ).stdout


def read(path: str) -> str:
    """A file's text; nothing if it cannot be read."""
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def write(path: str, text: str) -> None:
    """Write to a file, be it one of the kernel's."""
    with open(path, "w") as file:
        file.write(text)


def put(path: str, text: str, mode: int = 0o644) -> None:
    """Make a file with this mode, whatever the umask."""
    write(path, text)
    os.chmod(path, mode)


def children(pid: int) -> list[int]:
    """The processes that a process of one thread has started."""
    return [int(child) for child in read(f"/proc/{pid}/task/{pid}/children").split()]


def outermost(pids: Collection[int]) -> list[int]:
    """Those whose parent is none of them. One that has ended since it was listed is left out."""
    above = {pid: read(f"/proc/{pid}/stat").rpartition(")")[2].split()[1:2] for pid in pids}
    return [pid for pid, parent in above.items() if parent and int(parent[0]) not in above]


def signal_all(pids: Iterable[int], number: int) -> None:
    """Send a signal to those that still are."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def reap(pids: Iterable[int]) -> None:
    """Wait for those that are dead children of ours.

    A command's parent is its nsenter. Where that one has been killed, and we are a subreaper, we have inherited it.
    """
    for pid in pids:
        try:
            os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            pass


def wait_until(what: str, condition: Callable[[], T], timeout: float, every: float = 0.02) -> T:
    """The same as `wait_for`, with a time limit in each call: hosts are slower than processes."""
    return wait_for(condition, what, timeout, every)
