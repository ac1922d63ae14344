"""Looks up the addresses of a name. Also sent to nodes, so it imports little."""

from __future__ import annotations

import _socket

TYPE_CHECKING = False
if TYPE_CHECKING:
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
