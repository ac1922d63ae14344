"""The process that runs a job for `bireme.start` and its kin: a ``bireme run`` whose stdin is a socket to the caller.

The caller sends the job, and what the ranks of functions are to hear follows. It gets what they answer, as frames of
``!II``: the rank and the length of what it has written, 0 when the rank has ended; and the outcome at the end, as a
frame of `OUTCOME`. If the socket ends before, the caller is gone, and the job is stopped: the session sees it where it
reads for ranks of functions, and else the kernel sends SIGTERM.
"""

from __future__ import annotations

import os
import struct

from bireme import signal_numbers as signal
from bireme.errors import BiremeError
from bireme.job import JobSpec
from bireme.launching import placement
from bireme.process.kernel import LINUX
from bireme.validate import build

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

HEAD = struct.Struct("!II")
OUTCOME = 0xFFFFFFFF
"""Stands in the place of the rank: the outcome of the job follows as JSON."""


def command() -> NoReturn:
    """Run the job of which the caller sends the description."""
    import json

    for signum in (signal.SIGINT, signal.SIGTERM):  # with them the caller stops the job, also where it ignores them
        if signal.getsignal(signum) is signal.SIG_IGN:
            signal.signal(signum, signal.SIG_DFL)
    text = _read(HEAD.unpack(_read(HEAD.size))[1])
    spec = build(JobSpec, json.loads(text))
    caller = 0
    if not spec.answers:
        caller = os.dup(0)
        os.dup2(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), 0)
        _stop_without(caller)
    os.set_blocking(caller, False)
    if spec.events.startswith("/proc/self/fd/"):  # the ranks do not inherit it
        os.set_inheritable(int(os.path.basename(spec.events)), False)
    try:
        outcome = placement.launch(spec)
        said: dict[str, Any] = {"outcome": outcome.as_dict()}
    except BiremeError as error:
        said = {"error": [type(error).__name__, error.what, error.hint, error.where]}
    os.set_blocking(caller, True)
    record = json.dumps(said).encode()
    try:
        with open(caller, "wb") as file:
            file.write(HEAD.pack(OUTCOME, len(record)) + record)
    except OSError:
        pass  # the caller is gone
    os._exit(0)


def _stop_without(caller: int) -> None:
    """Have this process get SIGTERM when the caller is gone, who has no more to say."""
    import fcntl
    import select

    if LINUX:
        fcntl.fcntl(caller, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(caller, fcntl.F_SETSIG, signal.SIGTERM)
        fcntl.fcntl(caller, fcntl.F_SETFL, fcntl.fcntl(caller, fcntl.F_GETFL) | os.O_ASYNC)
    poll = select.poll()
    poll.register(caller)
    if any(what & select.POLLHUP for _, what in poll.poll(0)):
        os._exit(0)


def _read(size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = os.read(0, size - len(data))
        if not more:
            os._exit(0)  # the caller is gone already
        data += more
    return data
