"""Files that appear whole or not at all: written beside their place, then moved there.

A draft is created anew, and its name cannot be guessed: whoever else may write to the folder cannot have laid a link
there for us to follow, nor a file that stands in our way.
"""

from __future__ import annotations

import os

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def create(path: str, mode: int = 0o666) -> tuple[int, str]:
    """Create a draft of the file ``path``; return its descriptor and its name, ``PATH.PID.RANDOM.tmp``.

    Raises:
        OSError: the folder takes none.
    """
    draft = f"{path}.{os.getpid()}.{os.urandom(6).hex()}.tmp"
    return os.open(draft, _NEW, mode), draft


def write(path: str, data: bytes, *, mode: int = 0o666, sync: bool = False) -> None:
    """Write a file; what stood there before is replaced (a link too: it is not followed), or left as it was.

    Args:
        path: the file.
        data: all that is to be in it.
        mode: who may read and write it, as far as the umask allows.
        sync: move it only when the disk has it.

    Raises:
        OSError: it cannot be written.
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


def remove(path: str) -> None:
    """Remove a file that may not be there, or not be ours to remove."""
    try:
        os.unlink(path)
    except OSError:
        pass
