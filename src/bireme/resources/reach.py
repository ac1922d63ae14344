"""Looks up the addresses of a name, and finds those that can be reached, by connecting to them. Also sent to nodes."""

from __future__ import annotations

import _socket
import errno
import select
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any, TypeAlias

    Found: TypeAlias = tuple[int, int, int, str, tuple[Any, ...]]
    """As ``socket.getaddrinfo`` has it: family, type, protocol, canonical name, address."""


def look_up(name: str, port: int | None = None) -> list[Found]:
    """The addresses of a name, or of an address as text, for TCP.

    Raises:
        OSError: it cannot be resolved, or is not a name.
    """
    if "\0" in name:
        raise OSError("a name cannot contain NUL")
    try:
        # As bytes: for text, Python would load its Unicode tables, which takes longer than all imports of an agent.
        host = name.encode("ascii" if name.isascii() else "idna")
    except UnicodeError as error:
        raise OSError(str(error)) from None
    found: list[Found] = _socket.getaddrinfo(host, port, 0, _socket.SOCK_STREAM)
    return found


def reachable(addresses: Sequence[str], port: int, *, seconds: float) -> list[str]:
    """Find the addresses to which a TCP connection succeeds, trying all at once.

    Args:
        addresses: numeric addresses, or names. A name is reached if one of its addresses is.
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
