"""Other users of this machine: who is at the other end of a local socket, and what they are called."""

from __future__ import annotations

import _socket
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket


def peer_of(connection: _socket.socket | socket.socket) -> tuple[int, int]:
    """(pid, uid) at the other end of a local socket, as the kernel knows them: of who has connected, or who listens.

    The pid is 0 where that process is in a container of its own, and not in ours.
    """
    credentials = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)  # pid, uid, gid
    return int.from_bytes(credentials[:4], sys.byteorder), int.from_bytes(credentials[4:8], sys.byteorder)


def name_of(uid: int) -> str:
    """A user's name; ``user 1234`` where there is none."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
