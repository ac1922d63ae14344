"""The pid file of ``--save_pid``: ``/tmp/<pid>.deepspeed``, the reference's path and content.

The guardian makes it, so that there is no moment at which it stands there and nobody would remove it; but an elastic
job keeps it between two epochs, too, when there is no guardian.
"""

from __future__ import annotations

import os

from bireme.errors import BadInputError

DIRECTORY = "/tmp"


class PidFile:
    """The file of one command, from its first process to the end of a ``with``.

    Args:
        main_pid: of the command that was typed, which names the file; None: there is none, as nobody has asked for it.

    Raises:
        BadInputError: it belongs to a process that lives, or the directory cannot be written.
    """

    def __init__(self, main_pid: int | None) -> None:
        self.path = os.path.join(DIRECTORY, f"{main_pid}.deepspeed") if main_pid is not None else None
        self._launcher = os.getpid()
        if self.path is not None:
            _check(self.path)

    def create(self) -> None:
        """Write the launcher's pid; the file appears complete or not at all.

        Raises:
            OSError: it cannot be written.
        """
        if self.path is None:
            return
        draft = f"{self.path}.{self._launcher}.tmp"
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        try:
            os.write(fd, str(self._launcher).encode())
            os.rename(draft, self.path)  # replaces a link, too, instead of following it
        finally:
            os.close(fd)

    def remove(self) -> None:
        """Remove it if it is ours; a guardian may have done so already."""
        if self.path is not None and _owner(self.path) == self._launcher:
            try:
                os.unlink(self.path)
            except OSError:
                pass

    def __enter__(self) -> PidFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def _check(path: str) -> None:
    """One that a dead process has left will be replaced."""
    where = "--save_pid"
    if _belongs_to_the_living(path):
        raise BadInputError(f"{path} belongs to a launcher that is running", where=where)
    if not os.access(DIRECTORY, os.W_OK | os.X_OK):
        raise BadInputError(f"cannot write {path}", where=where)


def _owner(path: str) -> int:
    try:
        with open(path) as file:
            return int(file.read(20))
    except (OSError, ValueError):
        return 0


def _belongs_to_the_living(path: str) -> bool:
    owner = _owner(path)
    if owner <= 0 or owner == os.getpid():
        return False
    try:
        os.kill(owner, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True
