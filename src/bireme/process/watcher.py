"""The watcher: a process between agent and guardian, which kills everything below if both are killed at once.

Agent, watcher and guardian are subreapers, each below the one before. If any two of them are killed in the same
instant, the third is an ancestor of all remaining processes, or becomes their parent. The watcher only waits for the
end of the guardian. It is a fork of the agent and needs almost no memory of its own.

It shares the guardian's pipe of events (see :mod:`bireme.process.guardian`), so the agent sees end of file only when
both are dead. It reads the agent's commands once the guardian is dead.
"""

from __future__ import annotations

import os
import time

from bireme import signal_numbers as signal
from bireme.process import cgroup, kernel
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn


CLEANED = 2
"""Exit code of a guardian that the agent has told ``gone``: the watcher is not needed either."""


class Shared(Value):
    """What both watcher and guardian need.

    Attributes:
        job_name: by which both are shown; "": they are shown by their own names.
    """

    commands: int
    events: int
    keep: tuple[int, ...]
    at_loss: Callable[[], object]
    farewell: float
    job_name: str


def stand_between(shared: Shared) -> tuple[int, int]:
    """Become the watcher, and fork the guardian. Only the guardian returns from this call.

    All signals must be blocked; the watcher keeps them blocked.

    Returns:
        A descriptor that reaches end of file when the watcher dies, and the watcher's pid.
    """
    os.setsid()
    kernel.become_subreaper()
    kernel.name_process(f"bireme:{shared.job_name}" if shared.job_name else "bireme-watch")
    lifeline, ours = os.pipe()
    pid = os.getpid()
    guardian = -1
    try:
        guardian = os.fork()
    except OSError as error:
        write_line(shared.events, "unguarded", error.errno)
    if guardian == 0:
        os.close(ours)
        return lifeline, pid
    kernel.close_all_but({shared.commands, shared.events, ours, *shared.keep})
    status = os.waitpid(guardian, 0)[1] if guardian > 0 else 0
    if status == CLEANED << 8:
        os._exit(0)
    if status:
        _sweep(shared, guardian)
    _await_agent(shared)


def _sweep(shared: Shared, guardian: int) -> None:
    """The guardian was killed: tell the agent, and kill the processes that are now below us."""
    write_line(shared.events, "lost", guardian)
    if shared.farewell:
        _bid_farewell(shared.farewell)
    group = cgroup.named_by(os.getpid())
    cgroup.kill(group)
    stuck = kernel.kill_below((), kernel.STUCK_WAIT)
    cgroup.remove(group)
    write_line(shared.events, "swept", *stuck)


def _await_agent(shared: Shared) -> NoReturn:
    """Wait until the agent has read what ranks recorded and removed the files; remove them if it dies first."""
    os.close(shared.events)
    while data := os.read(shared.commands, 65536):
        if data.endswith(b"gone\n"):
            os._exit(0)
    shared.at_loss()
    os._exit(0)


def _bid_farewell(seconds: float) -> None:
    """Send SIGTERM once to everything below, and wait up to ``seconds`` for its end."""
    deadline = time.monotonic() + seconds
    asked: set[int] = set()
    while True:
        # A process whose parent dies while this list is made is missing in it; that death wakes us.
        below = kernel.descendants([os.getpid()])
        for pid in below:
            if pid not in asked:
                kernel.send(pid, signal.SIGTERM)
        asked.update(below)
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0 and signal.sigtimedwait({signal.SIGCHLD}, max(0.0, deadline - time.monotonic())) is None:
            return


def write_line(fd: int, *words: object) -> None:
    """Write a line of words to a pipe. Its reader may be gone, which another pipe shows."""
    try:
        os.write(fd, (" ".join(map(str, words)) + "\n").encode())
    except OSError:
        pass
