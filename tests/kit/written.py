"""What ``programs/writer.py`` writes, and how it is found again in the output of a job."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping

from tests.conftest import PROGRAMS

WRITER = PROGRAMS / "writer.py"
LABEL = re.compile(rb"\[([^:]+):(\d+)(\+?)\] ")


def expected(rank: int, name: bytes, count: int) -> bytes:
    """So many lines of a rank."""
    letters = b"abcdefghij"
    return b"".join(b"%s of rank %d: %d %s\n" % (name, rank, i, letters[: i % 11] * (i % 7)) for i in range(count))


def by_rank(output: bytes, host_of: Mapping[int, str]) -> dict[int, bytes]:
    """The bytes of each rank, from labelled output: the label is taken off, marked pieces are put together."""
    lines: dict[int, list[bytes]] = defaultdict(list)
    for line in output.removesuffix(b"\n").split(b"\n") if output else ():
        match = LABEL.match(line)
        assert match, f"not labelled: {line[:80]!r}"
        rank, goes_on, rest = int(match[2]), match[3], line[match.end() :]
        assert match[1].decode() == host_of[rank]
        lines[rank].append((lines[rank].pop() if goes_on else b"") + rest)
    return {rank: b"\n".join(mine) + b"\n" for rank, mine in lines.items()}
