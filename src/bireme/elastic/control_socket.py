"""Where an elastic job hears requests while it runs: a socket of the abstract namespace, named by its user and pid.

Such a socket leaves nothing behind when its owner is killed. Whoever asks must be the job's owner, or root. Anyone can
take a name: this one ends in random digits, so that nobody has taken it before, and whoever asks looks for it in the
kernel's list, and has the kernel say whose process listens there.
"""

from __future__ import annotations

import json
import os
import re
import socket
import time

from bireme.resources.users import peer_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from bireme.loop import Loop

_MOST_BYTES = 4096
_MOST_GUESTS = 32
_PATIENCE = 5.0
"""Seconds that a runner may take to answer."""
_PAUSE = 0.05
"""Seconds between two tries to reach one that has many waiting."""


class ControlSocket:
    """The runner's side."""

    def __init__(self) -> None:
        try:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError:  # there is no such thing on macOS
            self._socket = socket.socket()
        self._socket.setblocking(False)
        try:
            self._socket.bind(f"\0bireme-job-{os.geteuid()}-{os.getpid()}-{os.urandom(8).hex()}")
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
        if peer_of(guest)[1] not in (0, os.geteuid()) or len(self._guests) >= _MOST_GUESTS:
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
        ConnectionRefusedError: no elastic job of this user has this pid; root may ask those of others.
        OSError: it does not answer.
        ValueError: its answer is none.
    """
    with connect(pid) as guest:
        guest.settimeout(_PATIENCE)
        guest.send(json.dumps(request).encode())
        answer = json.loads(guest.recv(_MOST_BYTES) or b'{"error": "it is not your job, or has just ended"}')
    if not isinstance(answer, dict) or not answer.keys() & {"said", "error"}:
        raise ValueError("it says nothing that could be understood")
    return answer


def connect(pid: int) -> socket.socket:
    """A connection to the runner with this pid.

    Raises:
        OSError: as `ask`.
    """
    deadline = time.monotonic() + _PATIENCE
    while True:
        reached, busy = _reach(pid)
        chosen = [guest for guest, peer in reached if peer == pid]
        if not chosen and not busy:  # it may be in a container of its own, where it has another pid than here
            chosen = [guest for guest, _ in reached]
        for guest, _ in reached:
            if guest not in chosen[:1]:
                guest.close()
        if len(chosen) == 1:
            return chosen[0]
        if chosen:
            chosen[0].close()
            raise OSError("containers have several jobs with this pid: ask from within the job's own")
        if not busy:
            raise ConnectionRefusedError(f"no elastic job of this user has pid {pid}")
        if time.monotonic() > deadline:
            raise TimeoutError("it does not take the request")
        time.sleep(_PAUSE)


def _reach(pid: int) -> tuple[list[tuple[socket.socket, int]], bool]:
    """Connections to the runners that may be meant, each with its pid; and whether one was too busy to take any."""
    reached: list[tuple[socket.socket, int]] = []
    busy = False
    for name, uid in _names(pid):
        guest = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        guest.setblocking(False)
        try:
            guest.connect(name)
            peer, owner = peer_of(guest)
        except OSError as error:
            busy = busy or isinstance(error, BlockingIOError)
            guest.close()
            continue
        if owner == uid and (uid == os.geteuid() or peer == pid):
            reached.append((guest, peer))
        else:  # another user has taken the name of a job
            guest.close()
    return reached, busy


def _names(pid: int) -> list[tuple[bytes, int]]:
    """The names under which a job of this pid could be heard, each with its user; root may ask those of others."""
    with open("/proc/net/unix", "rb") as file:
        found = re.findall(rb"^[^@\n]* @(bireme-job-(\d{1,10})-%d-[0-9a-f]{16})$" % pid, file.read(), re.MULTILINE)
    me = os.geteuid()
    return [(b"\0" + name, int(uid)) for name, uid in dict.fromkeys(found) if me in (0, int(uid))]


def _has_hung_up(guest: socket.socket) -> bool:
    try:
        return guest.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
