"""Finds the process and user at the other end of a local socket, and the names of users."""

from __future__ import annotations

import _socket
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket


def peer_of(connection: _socket.socket | socket.socket) -> tuple[int, int]:
    """(pid, uid) of the process that has connected to a local socket or listens on it, from the kernel.

    The pid is 0 if that process is in another pid namespace, as in a container.
    """
    credentials = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)  # pid, uid, gid
    return int.from_bytes(credentials[:4], sys.byteorder), int.from_bytes(credentials[4:8], sys.byteorder)


def name_of(uid: int) -> str:
    """The name of a user; ``user 1234`` if it has none."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
