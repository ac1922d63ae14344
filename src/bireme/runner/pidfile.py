"""The pid file of ``--save_pid``: ``/tmp/<pid>.deepspeed``, the reference's path and content.

The guardian makes it, so that there is no moment at which it stands there and nobody would remove it.
"""

from __future__ import annotations

import os

from bireme.errors import BadInputError

DIRECTORY = "/tmp"


def path_of(main_pid: int) -> str:
    """Where the launcher's pid is to be found, by the pid of the command that was typed."""
    return os.path.join(DIRECTORY, f"{main_pid}.deepspeed")


def check(path: str) -> None:
    """Whether the file can be made; one that a dead process has left will be replaced.

    Raises:
        BadInputError: it belongs to a process that lives, or the directory cannot be written.
    """
    where = "--save_pid"
    if _belongs_to_the_living(path):
        raise BadInputError(f"{path} belongs to a launcher that is running", where=where)
    if not os.access(DIRECTORY, os.W_OK | os.X_OK):
        raise BadInputError(f"cannot write {path}", where=where)


def create(path: str, pid: int) -> None:
    """Write ``pid`` into the file, which appears complete or not at all.

    Raises:
        OSError: it cannot be written.
    """
    draft = f"{path}.{pid}.tmp"
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
    try:
        os.write(fd, str(pid).encode())
        os.rename(draft, path)  # replaces a link, too, instead of following it
    finally:
        os.close(fd)


def remove(path: str, pid: int) -> None:
    """Remove the file if it is ours; a guardian may have done so already."""
    if _owner(path) == pid:
        try:
            os.unlink(path)
        except OSError:
            pass


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
