"""The experiments lock: makes a tuner wait until no experiment of an earlier tuner is left.

When a tuner dies its experiments end by themselves, and their slots are not free until then. The tuner and the
guardians of its experiments hold this lock as long as any of their processes lives. So a tuner that gets the lock knows
that none is left.
"""

from __future__ import annotations

import fcntl
import os
from types import TracebackType

from bireme.errors import BadInputError

LOCK = "trials.lock"


class ExperimentsLock:
    """The lock of a results folder, released when it is closed here and in all guardians.

    Args:
        path: its file, created if missing.
    """

    def __init__(self, path: str) -> None:
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            if os.fstat(self._fd).st_uid == os.geteuid():  # anyone who can read it could take the lock and block us
                os.fchmod(self._fd, 0o600)
        except OSError as error:
            raise BadInputError(f"cannot be opened: {error.strerror}", where=path) from None

    def fileno(self) -> int:
        """The file descriptor, for the guardians to hold."""
        return self._fd

    def taken(self) -> bool:
        """Take the lock if it is free; return whether we have it now."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def wait(self) -> None:
        """Wait until the lock is free, and take it."""
        fcntl.flock(self._fd, fcntl.LOCK_EX)

    def __enter__(self) -> ExperimentsLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)
