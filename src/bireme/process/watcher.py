"""The watcher: a process between agent and guardian, which kills what is below should both be killed at once.

Agent, watcher and guardian are subreapers, each below the one before it. So whichever two of them are killed in the
same instant, the third is an ancestor of everything, or everything falls to it. The watcher only waits for the
guardian's end; it is a fork of the agent and needs next to no memory of its own.

It writes into the guardian's events (see :mod:`bireme.process.guardian`), whose end the agent thus sees only when
both are gone, and reads the agent's commands when the guardian cannot any more.
"""

from __future__ import annotations

import os
import signal
import time

from bireme.process import cgroup, kernel
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn


class Shared(Value):
    """What both watcher and guardian need.

    ``commands`` and ``events`` are the guardian's ends of its pipes; for the rest see
    :func:`bireme.process.guardian.start`.
    """

    commands: int
    events: int
    keep: tuple[int, ...]
    at_loss: Callable[[], object]
    farewell: float


def stand_between(shared: Shared) -> tuple[int, int]:
    """Become the watcher, and fork the guardian; only the guardian returns from here.

    All signals must be blocked; the watcher leaves them so. Returns a descriptor that is at its end when the watcher
    is, and the watcher's pid.
    """
    os.setsid()
    kernel.become_subreaper()
    kernel.name_process("bireme-watch")
    lifeline, ours = os.pipe()
    pid = os.getpid()
    guardian = -1
    try:
        guardian = os.fork()
    except OSError as error:
        _say(shared, "unguarded", error.errno)
    if guardian == 0:
        os.close(ours)
        return lifeline, pid
    kernel.close_all_but({shared.commands, shared.events, ours, *shared.keep})
    if guardian > 0 and os.waitpid(guardian, 0)[1] != 0:
        _sweep(shared, guardian)
    _await_agent(shared)


def _sweep(shared: Shared, guardian: int) -> None:
    """The guardian was killed: tell the agent, and kill what has fallen to us."""
    _say(shared, "lost", guardian)
    if shared.farewell:
        _bid_farewell(shared.farewell)
    group = cgroup.named_by(os.getpid())
    cgroup.kill(group)
    stuck = kernel.kill_below((), kernel.STUCK_WAIT)
    cgroup.remove(group)
    _say(shared, "swept", *stuck)


def _await_agent(shared: Shared) -> NoReturn:
    """The agent still reads what ranks have recorded, and then removes the files: unless it is lost before."""
    os.close(shared.events)
    while data := os.read(shared.commands, 65536):
        if data.endswith(b"gone\n"):
            os._exit(0)
    shared.at_loss()
    os._exit(0)


def _bid_farewell(seconds: float) -> None:
    """Ask what has fallen to us to end, and give it so long."""
    deadline = time.monotonic() + seconds
    for pid in kernel.descendants([os.getpid()]):
        kernel.send(pid, signal.SIGTERM)
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0 and signal.sigtimedwait({signal.SIGCHLD}, max(0.0, deadline - time.monotonic())) is None:
            return


def _say(shared: Shared, *words: object) -> None:
    try:
        os.write(shared.events, (" ".join(map(str, words)) + "\n").encode())
    except OSError:  # the agent is gone
        pass
