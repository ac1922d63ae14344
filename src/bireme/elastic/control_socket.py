"""The control socket, on which a running elastic job takes requests (``bireme drain``), and its client.

It is a socket in the abstract namespace, named by user and pid, which leaves nothing behind when its owner is killed.
Only the job's owner and root may send requests. Any user can take any name, so the name ends in random digits; a client
looks it up in ``/proc/net/unix`` and asks the kernel which process of which user listens there.
"""

from __future__ import annotations

import json
import os
import re
import socket
import time

from bireme.resources.ownership import peer_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from bireme.loop import Loop

_MOST_BYTES = 4096
_MOST_CLIENTS = 32
_PATIENCE = 5.0
"""Seconds that a runner may take to answer."""
_PAUSE = 0.05
"""Seconds between two attempts to connect to a runner with a full queue."""


class ControlSocket:
    """The runner's side: listens for requests and answers them.

    Attributes:
        is_open: whether this system has abstract sockets and the name was free.
    """

    def __init__(self) -> None:
        try:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError:  # not available on macOS
            self._socket = socket.socket()
        self._socket.setblocking(False)
        try:
            self._socket.bind(f"\0bireme-job-{os.geteuid()}-{os.getpid()}-{os.urandom(8).hex()}")
            self._socket.listen(8)
        except (OSError, TypeError):
            self.is_open = False
        else:
            self.is_open = True
        self._clients: dict[int, socket.socket] = {}

    def listen(self, loop: Loop, on_request: Callable[[dict[str, Any]], dict[str, object]]) -> None:
        """Answer requests while this loop runs."""
        if not self.is_open:
            return
        loop.watch(self._socket.fileno(), lambda: self._accept(loop, on_request))

    def _accept(self, loop: Loop, on_request: Callable[[dict[str, Any]], dict[str, object]]) -> None:
        try:
            client, _ = self._socket.accept()
        except OSError:
            return
        if peer_of(client)[1] not in (0, os.geteuid()) or len(self._clients) >= _MOST_CLIENTS:
            client.close()
            return
        client.setblocking(False)
        self._clients[client.fileno()] = client
        loop.watch(client.fileno(), lambda: self._hear(loop, client, on_request))

    def _hear(
        self, loop: Loop, client: socket.socket, on_request: Callable[[dict[str, Any]], dict[str, object]]
    ) -> None:
        loop.unwatch(client.fileno())
        del self._clients[client.fileno()]
        try:
            request = json.loads(client.recv(_MOST_BYTES))
            if _has_hung_up(client):  # we may have been suspended, and the client has given up
                raise ConnectionResetError
            answer = on_request(request if isinstance(request, dict) else {})
            client.send(json.dumps(answer).encode())
        except (OSError, ValueError, RecursionError):
            pass  # the client is gone, or sent no valid request
        client.close()

    def rest(self) -> None:
        """Answer nothing until the next :meth:`listen`; new clients wait."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    def close(self) -> None:
        """Stop listening for good."""
        self.rest()
        self._socket.close()


def ask(pid: int, **request: object) -> dict[str, Any]:
    """Send a request to the runner with this pid.

    Raises:
        ConnectionRefusedError: this user has no elastic job with this pid; root may ask the jobs of others.
        OSError: it does not answer.
        ValueError: its answer is not valid.
    """
    with connect(pid) as client:
        client.settimeout(_PATIENCE)
        client.send(json.dumps(request).encode())
        answer = json.loads(client.recv(_MOST_BYTES) or b'{"error": "it is not your job, or it has just ended"}')
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
            raise ConnectionRefusedError(f"you have no elastic job with pid {pid}")
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


def _names(pid: int) -> list[tuple[bytes, int]]:
    """The socket names for jobs with this pid, each with its user's id; for root, those of all users."""
    with open("/proc/net/unix", "rb") as file:
        found = re.findall(rb"^[^@\n]* @(bireme-job-(\d{1,10})-%d-[0-9a-f]{16})$" % pid, file.read(), re.MULTILINE)
    me = os.geteuid()
    return [(b"\0" + name, int(uid)) for name, uid in dict.fromkeys(found) if me in (0, int(uid))]


def _has_hung_up(client: socket.socket) -> bool:
    try:
        return client.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
