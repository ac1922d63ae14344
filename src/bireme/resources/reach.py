"""Finds which addresses can be reached from this node, by connecting to them."""

from __future__ import annotations

import _socket
import errno
import select
import time

from bireme.resources.name_lookup import look_up

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def reachable(addresses: Sequence[str], port: int, *, seconds: float) -> list[str]:
    """Find the addresses to which a TCP connection succeeds, trying all at once.

    Args:
        addresses: numeric addresses, or names. A name is reached if one of its addresses is.
        seconds: time limit for all connections together.
    """
    deadline = time.monotonic() + seconds
    poll = select.poll()
    trying: dict[int, tuple[str, _socket.socket]] = {}
    good = set()
    for address in addresses:
        for sock in _connect(address, port):
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


def _connect(address: str, port: int) -> Iterator[_socket.socket]:
    """A socket that is connecting for each numeric address, without those for which that failed at once."""
    try:
        found = look_up(address, port)
    except OSError:
        return
    for family, *_, place in found:
        try:
            sock = _socket.socket(family, _socket.SOCK_STREAM)
        except OSError:
            continue
        sock.setblocking(False)
        if sock.connect_ex(place) in (0, errno.EINPROGRESS):
            yield sock
        else:
            sock.close()
