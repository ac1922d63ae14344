"""The pid file of ``--save_pid``: ``/tmp/<pid>.deepspeed``, the reference's path and content."""

from __future__ import annotations

import os

from bireme.errors import BadInputError

DIRECTORY = "/tmp"


def path_of(main_pid: int) -> str:
    """Where the launcher's pid is to be found, by the pid of the command that was typed."""
    return os.path.join(DIRECTORY, f"{main_pid}.deepspeed")


def create(main_pid: int) -> str:
    """Write our pid into the file, which appears complete or not at all; return its path.

    A file that a dead process has left is replaced.

    Raises:
        BadInputError: the file belongs to a process that lives, or cannot be written.
    """
    path = path_of(main_pid)
    draft = f"{path}.{os.getpid()}.tmp"
    try:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        with os.fdopen(fd, "w") as file:
            file.write(str(os.getpid()))
        try:
            os.link(draft, path)
        except FileExistsError:
            _replace_stale(draft, path)
    except OSError as error:
        raise BadInputError(f"cannot write {path}: {error.strerror}", where="--save_pid") from None
    finally:
        try:
            os.unlink(draft)
        except OSError:
            pass
    return path


def remove(path: str) -> None:
    """Remove the file, which a guardian may have done already."""
    try:
        os.unlink(path)
    except OSError:
        pass


def _replace_stale(draft: str, path: str) -> None:
    try:
        with open(path) as file:
            owner = int(file.read(20))
        alive = owner > 0 and owner != os.getpid()
        if alive:
            os.kill(owner, 0)
    except (ValueError, OverflowError, ProcessLookupError):
        alive = False
    except PermissionError:
        alive = True
    if alive:
        raise BadInputError(f"{path} belongs to a launcher that is running", where="--save_pid")
    os.rename(draft, path)
