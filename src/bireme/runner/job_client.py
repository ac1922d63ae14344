"""Finds the jobs that run on this machine, and asks them (`bireme.runner.control_socket`).

Their sockets stand in ``/proc/net/unix``. Any user can take any name, so the kernel is asked which process of which
user listens there.
"""

from __future__ import annotations

import os
import re
import socket
import time

from bireme import jsontext
from bireme.process import kernel
from bireme.resources.ownership import peer_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_PACKET = 16384
"""Bytes that are read at once."""
_PATIENCE = 10.0
"""Seconds that a runner may take to answer."""
_PAUSE = 0.05
"""Seconds between two attempts to connect to a runner with a full queue."""
_NAME = rb"bireme-job-(\d{1,10})-%s-[0-9a-f]{16}"


def ask(pid: int, **request: object) -> dict[str, Any]:
    """Send a request to the runner with this pid.

    Raises:
        ConnectionRefusedError: this user has no elastic job with this pid; root may ask the jobs of others.
        TimeoutError: it does not answer in time, or is suspended.
        OSError: it ends.
        ValueError: its answer is not valid.
    """
    with connect(pid) as client:
        found = kernel.stat_of(peer_of(client)[0])
        if found is not None and found[1] == "T":
            raise TimeoutError(f"it is suspended; fg in its terminal lets it go on, or kill -CONT {pid}")
        client.settimeout(_PATIENCE)
        client.send(jsontext.dumps(request).encode())
        said = b"".join(iter(lambda: client.recv(_PACKET), b""))
    answer = jsontext.loads(said or b'{"error": "it is not your job, or it has just ended"}')
    if not isinstance(answer, dict) or not answer.keys() & {"said", "error"}:
        raise ValueError("its answer cannot be understood")
    return answer


def connect(pid: int) -> socket.socket:
    """Connect to the runner with this pid.

    Raises:
        OSError: as for `ask`.
    """
    deadline = time.monotonic() + _PATIENCE
    while True:
        reached, busy = _reach(pid)
        chosen = [client for client, peer in reached if peer == pid]
        if not chosen and not busy:  # it may run in a container, where its pid differs from the one here
            chosen = [client for client, _ in reached]
        for client, _ in reached:
            if client not in chosen[:1]:
                client.close()
        if len(chosen) == 1:
            return chosen[0]
        if chosen:
            chosen[0].close()
            raise OSError(
                "several containers have a job with this pid: run the command inside the container of the job"
            )
        if not busy:
            raise ConnectionRefusedError(f"you have no job with pid {pid}")
        if time.monotonic() > deadline:
            raise TimeoutError("it does not accept the request")
        time.sleep(_PAUSE)


def _reach(pid: int) -> tuple[list[tuple[socket.socket, int]], bool]:
    """Connect to the runners that may be meant; return the connections with their pids, and whether one was busy."""
    reached: list[tuple[socket.socket, int]] = []
    busy = False
    for name, uid in _names(pid):
        client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        client.setblocking(False)
        try:
            client.connect(name)
            peer, owner = peer_of(client)
        except OSError as error:
            busy = busy or isinstance(error, BlockingIOError)
            client.close()
            continue
        if owner == uid and (uid == os.geteuid() or peer == pid):
            reached.append((client, peer))
        else:  # another user imitates the name of a job
            client.close()
    return reached, busy


def jobs() -> Iterator[int]:
    """The pids in the names of this user's jobs on this machine; for root, those of all users."""
    return iter(sorted({int(name.split(b"-")[3]) for name, _ in _names(None)}))


def _names(pid: int | None) -> list[tuple[bytes, int]]:
    """The socket names for jobs with this pid (None: any), each with its user's id; for root, those of all users."""
    wanted = rb"^[^@\n]* @(" + _NAME % (b"\\d{1,10}" if pid is None else str(pid).encode()) + rb")$"
    with open("/proc/net/unix", "rb") as file:
        found = re.findall(wanted, file.read(), re.MULTILINE)
    me = os.geteuid()
    return [(b"\0" + name, int(uid)) for name, uid in dict.fromkeys(found) if me in (0, int(uid))]
