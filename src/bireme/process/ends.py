"""Finds the order in which child processes ended, which ``waitpid`` does not tell, by an ``epoll`` of their pidfds.

On a busy node the guardian may run late, after the rank that failed first and the ranks that failed because of it have
all ended. An ``epoll`` lists ready descriptors in the order in which they became ready.
"""

from __future__ import annotations

import os
import select


class Ends:
    """Watches children by their pidfds. Before Linux 5.3, and on other systems, it never reports any."""

    def __init__(self) -> None:
        self._fds: dict[int, int] = {}
        self._pids: dict[int, int] = {}
        self._epoll: select.epoll | None = None

    def watch(self, pid: int) -> None:
        """Watch a child, where the kernel can."""
        try:
            fd = os.pidfd_open(pid)
            self._epoll = self._epoll or select.epoll()
            self._epoll.register(fd, select.EPOLLIN)
        except (AttributeError, OSError):
            return
        self._fds[pid], self._pids[fd] = fd, pid

    def new(self) -> list[int]:
        """The pids of ended children that were not forgotten yet, in the order of their ends. Does not reap them."""
        if self._epoll is None or not self._pids:
            return []
        return [self._pids[fd] for fd, _ in self._epoll.poll(0, len(self._pids))]

    def forget(self, pid: int) -> None:
        """Stop watching a child that was reaped."""
        fd = self._fds.pop(pid, None)
        if fd is not None and self._epoll is not None:
            del self._pids[fd]
            self._epoll.unregister(fd)  # closing is not enough: a child between fork and exec may hold a copy
            os.close(fd)
