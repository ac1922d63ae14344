"""Reads files that others wrote: never blocks on a pipe, refuses large ones, and may take a missing file as empty."""

from __future__ import annotations

import errno
import os
import stat

_MOST = 1 << 26


def open_regular(path: str, flags: int = 0) -> int:
    """Open a file for reading; return its descriptor.

    Args:
        flags: more flags of ``open(2)``.

    Raises:
        OSError: it cannot be opened, or is a pipe, folder or device.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | flags)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return fd


def read_regular(path: str, flags: int = 0, most: int = _MOST) -> bytes:
    """The content of a file of at most ``most`` bytes.

    Raises:
        OSError: it cannot be read, is larger, or is no regular file.
    """
    with open(open_regular(path, flags), "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"larger than {most >> 20} MiB", path)
    return data


def text_of(path: str) -> str:
    """The text of a file of /proc or /sys without white space around it; "" if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def listing(path: str) -> list[str]:
    """The entries of a directory, in no particular order; none if it cannot be read."""
    try:
        return os.listdir(path)
    except OSError:
        return []
