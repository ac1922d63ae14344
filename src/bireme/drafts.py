"""Writes files atomically: a draft is written beside the file and then renamed to it.

The draft is a new file with a random name, so another user who can write to the folder can neither make us follow a
link nor block the name.
"""

from __future__ import annotations

import os

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def create(path: str, mode: int = 0o666) -> tuple[int, str]:
    """Create a draft of the file ``path``; return its descriptor and its name, ``PATH.PID.RANDOM.tmp``.

    Raises:
        OSError: the draft cannot be created.
    """
    draft = f"{path}.{os.getpid()}.{os.urandom(6).hex()}.tmp"
    return os.open(draft, _NEW, mode), draft


def write(path: str, data: bytes, *, mode: int = 0o666, sync: bool = False) -> None:
    """Write a file atomically. An existing file or link is replaced (the link is not followed), or kept after an error.

    Args:
        mode: its permissions, restricted by the umask.
        sync: wait until the disk has the data before renaming.

    Raises:
        OSError: the file cannot be written.
    """
    fd, draft = create(path, mode)
    try:
        try:
            while data:
                data = data[os.write(fd, data) :]
            if sync:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(draft, path)
    except BaseException:
        remove(draft)
        raise


def remove(path: str, folder: int | None = None) -> None:
    """Remove a file, below an open folder if one is given; do nothing if that fails."""
    try:
        os.unlink(path, dir_fd=folder)
    except OSError:
        pass
