"""``--fold``: groups equal lines of several ranks, to show them once. Pure: lines in, groups out.

The order of each rank's lines is kept. A line waits while other ranks have it further back in their queues, so that
``rank 0``, ``done`` and ``rank 1``, ``done`` result in a single ``done``.
"""

from __future__ import annotations

from collections import Counter, deque


class _Queue:
    """The waiting lines of one rank, and how often it has each of them."""

    def __init__(self) -> None:
        self.lines: deque[bytes] = deque()
        self.counts: Counter[bytes] = Counter()

    def extend(self, lines: list[bytes]) -> None:
        self.lines.extend(lines)
        self.counts.update(lines)

    def pop(self) -> None:
        self.counts[self.lines.popleft()] -= 1


class Folder:
    """Collects whole lines of one stream of all ranks."""

    def __init__(self) -> None:
        self._queues: dict[int, _Queue] = {}
        self.size = 0
        """Bytes collected."""

    def add(self, rank: int, lines: bytes) -> None:
        """Add whole lines of a rank, each with its newline."""
        self._queues.setdefault(rank, _Queue()).extend(lines.splitlines(keepends=True))
        self.size += len(lines)

    def take(self) -> list[tuple[tuple[int, ...], bytes]]:
        """Remove and return all lines, each as (the ranks that wrote it, the line)."""
        groups = []
        while self._queues:
            line = self._next()
            ranks = tuple(sorted(rank for rank, queue in self._queues.items() if queue.lines[0] == line))
            for rank in ranks:
                self._queues[rank].pop()
                if not self._queues[rank].lines:
                    del self._queues[rank]
            groups.append((ranks, line))
        self.size = 0
        return groups

    def _next(self) -> bytes:
        """The first line that no rank has further back; else the one that most ranks have in front."""
        heads = Counter(self._queues[rank].lines[0] for rank in sorted(self._queues))
        for line, count in heads.items():
            if count == sum(1 for queue in self._queues.values() if queue.counts[line] > 0):
                return line
        return heads.most_common(1)[0][0]
