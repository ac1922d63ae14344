"""Finds which addresses can be reached from this node, by connecting to them."""

from __future__ import annotations

import _socket
import errno
import select
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def reachable(addresses: Sequence[str], port: int, *, seconds: float) -> list[str]:
    """Find the addresses to which a TCP connection succeeds, trying all at once.

    Args:
        addresses: numeric addresses.
        port: the TCP port.
        seconds: time limit for all connections together.
    """
    deadline = time.monotonic() + seconds
    poll = select.poll()
    trying: dict[int, tuple[str, _socket.socket]] = {}
    good = set()
    for address in addresses:
        sock = _connect(address, port)
        if sock is not None:
            trying[sock.fileno()] = address, sock
            poll.register(sock.fileno(), select.POLLOUT)
    while trying:
        left = max(0.0, deadline - time.monotonic())
        ready = poll.poll(left * 1000)  # once more at the deadline: this process may have been suspended
        if not ready and not left:
            break
        for fd, _ in ready:
            address, sock = trying.pop(fd)
            poll.unregister(fd)
            if sock.getsockopt(_socket.SOL_SOCKET, _socket.SO_ERROR) == 0:
                good.add(address)
            sock.close()
    for _, sock in trying.values():
        sock.close()
    return [address for address in addresses if address in good]


def _connect(address: str, port: int) -> _socket.socket | None:
    """A socket that is connecting, or ``None`` if that failed at once."""
    family = _socket.AF_INET6 if ":" in address else _socket.AF_INET
    try:
        sock = _socket.socket(family, _socket.SOCK_STREAM)
    except OSError:
        return None
    sock.setblocking(False)
    if sock.connect_ex((address, port)) not in (0, errno.EINPROGRESS):
        sock.close()
        return None
    return sock
