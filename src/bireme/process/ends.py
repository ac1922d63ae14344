"""In which order children have ended, where the kernel tells: ``waitpid`` knows only that they have.

A node whose cores are all busy lets a guardian wait, and the rank that failed first may be followed by those that it
took along before anybody has looked. An ``epoll`` lists what is ready in the order in which it became so.
"""

from __future__ import annotations

import os
import select


class Ends:
    """Watches children by their pidfds; on kernels before Linux 5.3, and elsewhere, it knows of none."""

    def __init__(self) -> None:
        self._fds: dict[int, int] = {}
        self._pids: dict[int, int] = {}
        self._epoll: select.epoll | None = None

    def watch(self, pid: int) -> None:
        """Tell of its end, unless that cannot be had."""
        try:
            fd = os.pidfd_open(pid)
            self._epoll = self._epoll or select.epoll()
            self._epoll.register(fd, select.EPOLLIN)
        except (AttributeError, OSError):
            return
        self._fds[pid], self._pids[fd] = fd, pid

    def new(self) -> list[int]:
        """The pids of those that have ended and were not forgotten, the first at first; none was reaped by this."""
        if self._epoll is None or not self._pids:
            return []
        return [self._pids[fd] for fd, _ in self._epoll.poll(0, len(self._pids))]

    def forget(self, pid: int) -> None:
        """It was reaped."""
        fd = self._fds.pop(pid, None)
        if fd is not None and self._epoll is not None:
            del self._pids[fd]
            self._epoll.unregister(fd)  # a child in mid-fork may have it open as well: closing it is not enough
            os.close(fd)
