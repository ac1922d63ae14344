"""Takes py-spy from the runner where a node has none, and keeps it by its hash where only this user can write."""

from __future__ import annotations

import os
import stat

from bireme.control import messages
from bireme.errors import BadInputError, ProtocolError
from bireme.regular_file import open_regular
from bireme.resources.ownership import cache_folder, check_owned, keep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bireme.loop import Loop, Timer

_PATIENCE = 3.0
"""Seconds after which stacks are taken without it; what still comes is for the next time."""


class StackTool:
    """The tool of one node.

    Args:
        environ: names the user's cache.
    """

    def __init__(self, loop: Loop, send: Callable[[messages.Message], object], environ: Mapping[str, str]) -> None:
        self._loop, self._send, self._environ = loop, send, environ
        self._path = ""
        self._left = -1  # bytes that are still to come; -1: it is not asked for
        self._digest = ""
        self._came = bytearray()
        self._is_known = False  # whether `_path` is all that there will be
        self._waiting: Callable[[str], object] = lambda _: None
        self._timer: Timer | None = None

    def bring(self, then: Callable[[str], object]) -> None:
        """Call ``then`` with the path of the tool; "": there is none, or not yet."""
        if self._is_known:
            then(self._path)
            return
        if self._timer is None:
            self._send(messages.NeedTool(machine=os.uname().machine))
        else:
            self._timer.cancel()
        self._waiting = then
        self._timer = self._loop.after(_PATIENCE, self._tell)

    def offered(self, tool: messages.Tool) -> None:
        """Take the kept one, or have it sent."""
        self._digest = tool.digest
        path = os.path.join(cache_folder(self._environ), "tools", f"py-spy-{tool.digest}")
        if not tool.digest or _is_right(path, tool.digest):
            self._know(path if tool.digest else "")
            return
        self._path, self._left = path, tool.size
        self._send(messages.NeedTool(machine=os.uname().machine, send=True))

    def take(self, data: bytes) -> None:
        """Take a part of it."""
        if len(data) > self._left:
            raise ProtocolError("it sent a tool that was not asked for")
        self._came += data
        self._left -= len(data)
        if not self._left:
            keep(self._path, bytes(self._came), mode=0o700)
            self._came.clear()
            self._know(self._path if _is_right(self._path, self._digest) else "")

    def _know(self, path: str) -> None:
        self._path, self._is_known = path, True
        self._tell()

    def _tell(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        then, self._waiting = self._waiting, lambda _: None
        then(self._path if self._is_known else "")

    def close(self) -> None:
        """Wait no longer."""
        self._waiting = lambda _: None
        if self._timer is not None:
            self._timer.cancel()


def _is_right(path: str, digest: str) -> bool:
    """Whether this file is the tool, and nobody else can change it."""
    import hashlib

    try:
        check_owned(path)
        with open(open_regular(path, os.O_NOFOLLOW), "rb") as file:
            runs = os.fstat(file.fileno()).st_mode & stat.S_IXUSR
            return bool(runs) and hashlib.sha256(file.read()).hexdigest() == digest
    except (OSError, BadInputError):
        return False
