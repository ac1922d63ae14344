"""``--events``: writes what happens to a job as lines of JSON, each when it happens."""

from __future__ import annotations

import os
import time

from bireme import jsontext
from bireme.errors import BadInputError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

VERSION = 1
"""Of the lines: it grows when a field changes its meaning. New events and fields may come at any time."""


def prepare(path: str) -> None:
    """Make the file anew; a pipe is left as it is."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666))
    except OSError as error:
        raise BadInputError(f"cannot write {path}: {error.strerror}", where="--events") from None


class EventLog:
    """The file, and who complains if it cannot be written any more."""

    def __init__(self, path: str, complain: Callable[[str], object]) -> None:
        self._complain = complain
        self._fd = -1
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        except OSError as error:
            complain(f"cannot write {path}: {error.strerror}; the job continues without its events")

    def write(self, event: str, **fields: object) -> None:
        """Write one event."""
        if self._fd < 0:
            return
        line = jsontext.dumps({"v": VERSION, "time": round(time.time(), 6), "event": event, **fields})
        try:
            os.write(self._fd, f"{line}\n".encode())
        except OSError as error:
            self._complain(f"events cannot be written any more: {error.strerror}")
            self.close()

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
