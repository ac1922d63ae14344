"""The control socket, on which a running job takes requests of other commands (``bireme ps``, ``drain``, …).

It is a socket in the abstract namespace, named by user and pid, which leaves nothing behind when its owner is killed.
Only the job's owner and root may send requests. Any user can take any name, so the name ends in random digits; a client
looks it up in ``/proc/net/unix`` and asks the kernel which process of which user listens there.

A request is a JSON object in one packet. The answer is an object too, in as many packets as it takes; then the
connection ends. Who attaches to a job gets its output instead.
"""

from __future__ import annotations

import _socket
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator
    from typing import Any

    from bireme.loop import Loop

_MOST_BYTES = 4096
"""Bytes of a request."""
_PACKET = 16384
_MOST_CLIENTS = 32
_MOST_WAITING = 1 << 20
"""Bytes that wait for a client; one that does not read is left."""
_PATIENCE = 5.0
"""Seconds that a runner may take to answer."""
_PAUSE = 0.05
"""Seconds between two attempts to connect to a runner with a full queue."""
_NAME = rb"bireme-job-(\d{1,10})-%s-[0-9a-f]{16}"


class Client:
    """Who has sent a request."""

    def __init__(self, loop: Loop, connection: _socket.socket, on_end: Callable[[Client], object]) -> None:
        self._loop, self._socket, self._on_end = loop, connection, on_end
        self._waiting = bytearray()
        self._is_last = False
        self.is_open = True

    def answer(self, answer: dict[str, Any]) -> None:
        """Send the answer, and end the connection."""
        self._is_last = True
        from bireme import jsontext

        self.send(jsontext.dumps(answer).encode())

    def send(self, data: bytes) -> None:
        """Send a part of what it wants to read."""
        if self.is_open:
            self._waiting += data
            self._write()

    def _write(self) -> None:
        try:
            while self._waiting:
                self._socket.send(self._waiting[:_PACKET])
                del self._waiting[:_PACKET]
        except BlockingIOError:
            if len(self._waiting) <= _MOST_WAITING:
                self._loop.watch_write(self._socket.fileno(), self._write)
                return
        except OSError:
            self._is_last = True
        if self._is_last or self._waiting:
            self.close()
        else:
            self._loop.unwatch_write(self._socket.fileno())

    def watch(self) -> None:
        """Notice when it leaves."""
        self._loop.watch(self._socket.fileno(), self.close)

    def close(self) -> None:
        """End the connection."""
        if self.is_open:
            self.is_open = False
            self._loop.unwatch(self._socket.fileno())
            self._loop.unwatch_write(self._socket.fileno())
            self._socket.close()
            self._on_end(self)


class ControlSocket:
    """The runner's side: listens for requests and answers them.

    Attributes:
        is_open: whether this system has abstract sockets and the name was free.
    """

    def __init__(self) -> None:
        self.is_open = False
        self._loop: Loop | None = None
        self._clients: set[Client] = set()
        try:
            self._socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        except OSError:  # not available on macOS
            return
        os.set_inheritable(self._socket.fileno(), False)
        self._socket.setblocking(False)
        try:
            self._socket.bind(f"\0bireme-job-{os.geteuid()}-{os.getpid()}-{os.urandom(8).hex()}")
            self._socket.listen(8)
        except OSError:
            self._socket.close()
        else:
            self.is_open = True

    def listen(self, loop: Loop, on_request: Callable[[dict[str, Any], Client], dict[str, Any] | None]) -> None:
        """Answer requests while this loop runs.

        Args:
            on_request: returns the answer; None: it answers the client later, or goes on sending.
        """
        self._loop = loop
        if self.is_open:
            loop.watch(self._socket.fileno(), lambda: self._accept(loop, on_request))

    def _accept(self, loop: Loop, on_request: Callable[[dict[str, Any], Client], dict[str, Any] | None]) -> None:
        try:
            accepted, _ = self._socket._accept()  # type: ignore[attr-defined]
            connection = _socket.socket(fileno=accepted)
        except OSError:
            return
        from bireme.resources.ownership import peer_of  # only for clients, as most jobs have none

        if peer_of(connection)[1] not in (0, os.geteuid()) or len(self._clients) >= _MOST_CLIENTS:
            connection.close()
            return
        connection.setblocking(False)
        client = Client(loop, connection, self._clients.discard)
        self._clients.add(client)
        loop.watch(connection.fileno(), lambda: self._hear(loop, connection, client, on_request))

    def _hear(
        self,
        loop: Loop,
        connection: _socket.socket,
        client: Client,
        on_request: Callable[[dict[str, Any], Client], dict[str, Any] | None],
    ) -> None:
        from bireme import jsontext

        loop.unwatch(connection.fileno())
        try:
            request = jsontext.loads(connection.recv(_MOST_BYTES))
            if _has_hung_up(connection):  # we may have been suspended, and the client has given up
                raise ConnectionResetError
            answer = on_request(request if isinstance(request, dict) else {}, client)
        except (OSError, ValueError, RecursionError):  # the client is gone, or sent no valid request
            client.close()
            return
        if answer is not None:
            client.answer(answer)
        else:
            client.watch()

    def rest(self) -> None:
        """Answer nothing until the next :meth:`listen`; new clients wait."""
        for client in list(self._clients):
            client.close()
        if self._loop is not None and self.is_open:
            self._loop.unwatch(self._socket.fileno())

    def close(self) -> None:
        """Stop listening for good."""
        self.rest()
        if self.is_open:
            self._socket.close()
            self.is_open = False


def ask(pid: int, **request: object) -> dict[str, Any]:
    """Send a request to the runner with this pid.

    Raises:
        ConnectionRefusedError: this user has no elastic job with this pid; root may ask the jobs of others.
        OSError: it does not answer.
        ValueError: its answer is not valid.
    """
    from bireme import jsontext

    with connect(pid) as client:
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
    import socket  # only for clients: it takes a while to import

    from bireme.resources.ownership import peer_of

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
    import re

    wanted = rb"^[^@\n]* @(" + _NAME % (b"\\d{1,10}" if pid is None else str(pid).encode()) + rb")$"
    with open("/proc/net/unix", "rb") as file:
        found = re.findall(wanted, file.read(), re.MULTILINE)
    me = os.geteuid()
    return [(b"\0" + name, int(uid)) for name, uid in dict.fromkeys(found) if me in (0, int(uid))]


def _has_hung_up(client: _socket.socket) -> bool:
    try:
        return client.recv(1, _socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
