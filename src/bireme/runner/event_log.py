"""``--events``: writes the events of a job as lines of JSON, as they happen."""

from __future__ import annotations

import os
import select
import stat
import time

from bireme import jsontext
from bireme.errors import BadInputError
from bireme.logs.console import Sink

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from bireme.loop import Loop

VERSION = 1
"""Of the lines: it grows when a field changes its meaning. New events and fields may come at any time."""

_PATIENCE = 1.0
"""Seconds that a job which has ended waits for a reader that does not read."""


listener: Callable[[dict[str, Any]], object] | None = None
"""Who hears the events too: the ``on_event`` of `bireme.run`, while that runs."""


def prepare(path: str, *, anew: bool = True) -> None:
    """Make or empty the file. A pipe stays open until this process ends, so that its reader sees the end only then."""
    try:
        fd = _open(path, os.O_TRUNC if anew else 0)
    except OSError as error:
        raise BadInputError(f"cannot write {path}: {error.strerror}", where="--events") from None
    if not stat.S_ISFIFO(os.fstat(fd).st_mode):
        os.close(fd)


def _open(path: str, flags: int = 0) -> int:
    """Open the file for writing. Opening a pipe for both waits for no reader."""
    try:
        if stat.S_ISFIFO(os.stat(path).st_mode):
            return os.open(path, os.O_RDWR | os.O_NONBLOCK)
    except FileNotFoundError:
        pass
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | flags, 0o666)


class EventLog:
    """The file, and who complains if it cannot be written any more. A reader that is slow holds up nothing.

    Args:
        path: of the file; "": there is none, only a `listener`.
    """

    def __init__(self, loop: Loop, path: str, complain: Callable[[str], object]) -> None:
        self._complain = complain
        self._fd = -1
        if not path:
            return
        try:
            self._fd = _open(path)
        except OSError as error:
            complain(f"cannot write {path}: {error.strerror}; the job continues without its events")
        else:
            self._sink = Sink(loop, self._fd, on_error=self._failed, on_room=lambda: None)

    def write(self, event: str, **fields: object) -> None:
        """Write one event."""
        said = {"v": VERSION, "time": round(time.time(), 6), "event": event, **fields}
        if listener is not None:
            try:
                listener(said)
            except Exception as error:  # the job is not at fault
                self._complain(f"on_event: {type(error).__name__}: {error}")
        if self._fd >= 0:
            self._sink.write(f"{jsontext.dumps(said)}\n".encode())

    def _failed(self, error: OSError) -> None:
        self._complain(f"events cannot be written any more: {error.strerror}")

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            while self._sink.pending and select.select((), (self._fd,), (), _PATIENCE)[1]:
                self._sink.write_more()
            self._sink.close()
            os.close(self._fd)
            self._fd = -1
