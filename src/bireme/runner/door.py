"""Where an elastic job hears requests while it runs: a socket of the abstract namespace, named by the runner's pid.

Such a socket leaves nothing behind when its owner is killed. Whoever asks must be the job's owner, or root.
"""

from __future__ import annotations

import json
import os
import socket
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from bireme.loop import Loop

_MOST_BYTES = 4096
_MOST_GUESTS = 32
_PATIENCE = 5.0
"""Seconds that a runner may take to answer."""


class Door:
    """The runner's side.

    Where containers share the network but not their pids, the name may be taken: then nobody can ask.
    """

    def __init__(self) -> None:
        try:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError:  # there is no such thing on macOS
            self._socket = socket.socket()
        self._socket.setblocking(False)
        try:
            self._socket.bind(_address(os.getpid()))
            self._socket.listen(8)
        except (OSError, TypeError):
            self.is_open = False
        else:
            self.is_open = True
        self._guests: dict[int, socket.socket] = {}

    def listen(self, loop: Loop, on_request: Callable[[dict[str, Any]], dict[str, object]]) -> None:
        """Answer requests while this loop runs."""
        if not self.is_open:
            return
        loop.watch(self._socket.fileno(), lambda: self._accept(loop, on_request))

    def _accept(self, loop: Loop, on_request: Callable[[dict[str, Any]], dict[str, object]]) -> None:
        try:
            guest, _ = self._socket.accept()
        except OSError:
            return
        if _uid_of(guest) not in (0, os.geteuid()) or len(self._guests) >= _MOST_GUESTS:
            guest.close()
            return
        guest.setblocking(False)
        self._guests[guest.fileno()] = guest
        loop.watch(guest.fileno(), lambda: self._hear(loop, guest, on_request))

    def _hear(
        self, loop: Loop, guest: socket.socket, on_request: Callable[[dict[str, Any]], dict[str, object]]
    ) -> None:
        loop.unwatch(guest.fileno())
        del self._guests[guest.fileno()]
        try:
            request = json.loads(guest.recv(_MOST_BYTES))
            if _has_hung_up(guest):  # we may have been halted, and it was told that nobody answers
                raise ConnectionResetError
            answer = on_request(request if isinstance(request, dict) else {})
            guest.send(json.dumps(answer).encode())
        except (OSError, ValueError, RecursionError):
            pass  # whoever has asked is gone, or has asked for nothing
        guest.close()

    def rest(self) -> None:
        """The loop is over: who asks now waits for the next."""
        for guest in self._guests.values():
            guest.close()
        self._guests.clear()

    def close(self) -> None:
        """Nobody is heard any more."""
        self.rest()
        self._socket.close()


def ask(pid: int, **request: object) -> dict[str, Any]:
    """Ask the runner with this pid; its answer has ``said`` or ``error``.

    Raises:
        ConnectionRefusedError: no elastic job has this pid.
        OSError: it does not answer.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as guest:
        guest.settimeout(_PATIENCE)
        guest.connect(_address(pid))
        guest.send(json.dumps(request).encode())
        answer: dict[str, Any] = json.loads(
            guest.recv(_MOST_BYTES) or b'{"error": "it is not your job, or has just ended"}'
        )
        return answer


def _has_hung_up(guest: socket.socket) -> bool:
    try:
        return guest.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False


def _address(pid: int) -> bytes:
    return f"\0bireme-job-{pid}".encode()


def _uid_of(guest: socket.socket) -> int:
    """Of the process at the other end, as the kernel knows it."""
    credentials = guest.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])
