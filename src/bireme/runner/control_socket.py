"""The control socket, on which a running job takes requests of other commands (``bireme ps``, ``drain``, …).

It is a socket in the abstract namespace, named by user and pid, which leaves nothing behind when its owner is killed.
Only the job's owner and root may send requests. Any user can take any name, so the name ends in random digits;
`bireme.runner.job_client` finds it.

A request is a JSON object in one packet. The answer is an object too, in as many packets as it takes; then the
connection ends. A client that attaches to a job gets its output instead.
"""

from __future__ import annotations

import _socket
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from bireme.loop import Loop

_MOST_BYTES = 4096
"""Bytes of a request."""
_PACKET = 16384
_MOST_CLIENTS = 32
_MOST_WAITING = 1 << 20
"""Bytes that wait for a client; one that does not read is left."""


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
        """Notice when it leaves, unless it has been answered already."""
        if self.is_open:
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


def _has_hung_up(client: _socket.socket) -> bool:
    try:
        return client.recv(1, _socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
