"""What an earlier tuner has left: its experiments end by themselves, and until then their slots are not free.

A tuner holds this lock, and so do the guardians of its experiments, for as long as anything of them lives: who gets it
knows that nothing is left, whatever has become of the tuner.
"""

from __future__ import annotations

import fcntl
import os
from types import TracebackType

from bireme.errors import BadInputError


class ExperimentsLock:
    """The lock of a results folder.

    Args:
        path: its file, made where it is missing.

    Raises:
        BadInputError: the file cannot be opened.
    """

    def __init__(self, path: str) -> None:
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            if os.fstat(self._fd).st_uid == os.geteuid():  # whoever can read it could take the lock, and let us wait
                os.fchmod(self._fd, 0o600)
        except OSError as error:
            raise BadInputError(f"cannot be opened: {error.strerror}", where=path) from None

    def fileno(self) -> int:
        """The descriptor, for the guardians to keep."""
        return self._fd

    def taken(self) -> bool:
        """Take the lock if nobody has it; return whether we have it now."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def wait(self) -> None:
        """Take the lock when everybody has let go of it."""
        fcntl.flock(self._fd, fcntl.LOCK_EX)

    def __enter__(self) -> ExperimentsLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)
