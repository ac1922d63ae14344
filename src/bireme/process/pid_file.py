"""The pid file of ``--save_pid``: ``/tmp/<pid>.deepspeed``, DeepSpeed's path and content.

The guardian creates it, so that there is always a process that will remove it. Only an elastic job keeps it between two
epochs, when there is no guardian.

Anyone may write to ``/tmp``. Only files of this user are trusted, and no link is followed. If another user's file is in
the way and cannot be replaced, the job runs without a pid file.
"""

from __future__ import annotations

import os
import stat

from bireme import drafts
from bireme.errors import BadInputError
from bireme.logs.console import complain
from bireme.process.kernel import exists

DIRECTORY = "/tmp"


class PidFile:
    """The pid file of one command; removed at the end of a ``with``.

    Args:
        main_pid: the pid of the command that was typed, which names the file; None: no file is wanted.

    Attributes:
        path: the path of the file; None: there is none.
    """

    def __init__(self, main_pid: int | None) -> None:
        self.path = os.path.join(DIRECTORY, f"{main_pid}.deepspeed") if main_pid is not None else None
        self._launcher = os.getpid()
        if self.path is not None and _belongs_to_another_user(self.path):
            complain(f"{self.path} belongs to another user: no pid file is written; the pid is {self._launcher}")
            self.path = None
        if self.path is not None:
            _check(self.path)

    def create(self) -> None:
        """Write this command's pid; the file appears complete or not at all.

        Raises:
            OSError: it cannot be written.
        """
        if self.path is not None:
            drafts.write(self.path, str(self._launcher).encode(), mode=0o644)

    def remove(self) -> None:
        """Remove the file if it is ours; a guardian may have done so already."""
        if self.path is not None and _owner(self.path) == self._launcher:
            drafts.remove(self.path)

    def __enter__(self) -> PidFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def _check(path: str) -> None:
    """Refuse the file of a running job, and a directory that is not writable."""
    where = "--save_pid"
    if _belongs_to_running_process(path):
        raise BadInputError(f"{path} belongs to a job that is running", where=where)
    if not os.access(DIRECTORY, os.W_OK | os.X_OK):
        raise BadInputError(f"cannot write {path}", where=where)


def _belongs_to_another_user(path: str) -> bool:
    """Whether something is in the way that we may not replace; in a sticky directory only its owner may."""
    try:
        found, folder = os.lstat(path), os.stat(DIRECTORY)
    except OSError:
        return False
    is_ours = os.geteuid() in (0, found.st_uid, folder.st_uid) or not folder.st_mode & stat.S_ISVTX
    return not is_ours or stat.S_ISDIR(found.st_mode)


def _owner(path: str) -> int:
    """The pid in the file; 0: none, or the file is not a regular file of this user."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            return 0
        return int(os.read(fd, 20))
    except (OSError, ValueError):
        return 0
    finally:
        os.close(fd)


def _belongs_to_running_process(path: str) -> bool:
    owner = _owner(path)
    return owner > 0 and owner != os.getpid() and exists(owner)
