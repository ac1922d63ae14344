"""Where agents dial back, when the engine owns their stdin and stdout (pdsh, mpirun, srun).

The token never stands in arguments: it travels in the engine's environment, by name. Both sides prove that they know
it before anything else is said: the runner answers the agent's nonce with an HMAC, and the agent the runner's.
"""

from __future__ import annotations

import os
import socket

from bireme.control.handshake import MOST_BYTES, Runner
from bireme.resources.locality import own_addresses

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from bireme.loop import Loop


class Dial:
    """A listening socket for the agents of one job."""

    def __init__(self, variable: str) -> None:
        self._variable = variable
        self._token = os.urandom(32).hex()
        self._socket = _listening()
        self._loop: Loop | None = None
        self._pending: dict[int, tuple[socket.socket, Runner]] = {}

    def fileno(self) -> int:
        """The listening socket's descriptor."""
        return self._socket.fileno()

    def environment(self) -> dict[str, str]:
        """What the engine's own environment needs."""
        return {self._variable: self._token}

    def arguments(self) -> tuple[str, ...]:
        """What the agent needs on its command line: where to dial, and the *name* of the token's variable."""
        addresses = ",".join((*own_addresses(), "127.0.0.1"))
        return "--dial", addresses, str(self._socket.getsockname()[1]), self._variable

    def listen(self, loop: Loop, on_agent: Callable[[dict[str, str], int], None]) -> None:
        """Take agents from now on: ``on_agent`` is called with who it says it is, and its socket's descriptor."""
        self._loop, self._on_agent = loop, on_agent
        loop.watch(self._socket.fileno(), self._accept)

    def _accept(self) -> None:
        assert self._loop is not None
        try:
            connection, _ = self._socket.accept()
        except OSError:
            return
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        fd = connection.fileno()
        self._pending[fd] = connection, Runner(self._token)
        self._loop.watch(fd, lambda: self._readable(fd))

    def _readable(self, fd: int) -> None:
        connection, handshake = self._pending[fd]
        try:
            data = connection.recv(MOST_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        answer = handshake.feed(data) if data else None
        if answer is None:
            self._drop(fd).close()
            return
        try:
            connection.sendall(answer)
        except OSError:
            self._drop(fd).close()
            return
        if handshake.agent is not None:
            self._on_agent(handshake.agent, self._drop(fd).detach())

    def _drop(self, fd: int) -> socket.socket:
        assert self._loop is not None
        self._loop.unwatch(fd)
        return self._pending.pop(fd)[0]

    def close(self) -> None:
        """Take no more agents."""
        if self._loop is not None:
            self._loop.unwatch(self._socket.fileno())
            for fd in list(self._pending):
                self._drop(fd).close()
        self._socket.close()


def _listening() -> socket.socket:
    """A socket on every address of this machine, IPv6 and IPv4 in one where there is IPv6."""
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024)
        except OSError:
            pass
    return socket.create_server(("0.0.0.0", 0), backlog=1024)
