"""Opens a pseudo-terminal for a rank's stream, used instead of a pipe if our own stream is a terminal."""

from __future__ import annotations

import fcntl
import os
import termios
from struct import pack

_OUTPUT = 1
"""The place of the modes of output in the list of `termios.tcgetattr`."""


def open_pair(size: os.terminal_size) -> tuple[int, int]:
    """Open a pseudo-terminal of this size; return the descriptors to read from and for the rank to write to.

    Raises:
        OSError: there are no more pseudo-terminals, or no more files may be opened.
    """
    read_fd, write_fd = os.openpty()
    modes = termios.tcgetattr(write_fd)
    modes[_OUTPUT] &= ~termios.OPOST  # our own terminal adds the carriage returns
    termios.tcsetattr(write_fd, termios.TCSANOW, modes)
    resize(read_fd, size)
    return read_fd, write_fd


def resize(fd: int, size: os.terminal_size) -> None:
    """Change the size of a pseudo-terminal."""
    fcntl.ioctl(fd, termios.TIOCSWINSZ, pack("HHHH", size.lines, size.columns, 0, 0))
