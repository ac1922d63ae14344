"""What ranks use of their nodes (``bireme top``)."""

from __future__ import annotations

from bireme.value import Value


class RankUses(Value):
    """What ranks and what is below them use, in columns: to take a thousand values apart takes milliseconds.

    Attributes:
        states: such as ``running``.
        cpu: seconds of processor time so far.
        rss: bytes of memory now.
    """

    ranks: tuple[int, ...]
    states: tuple[str, ...]
    cpu: tuple[float, ...]
    rss: tuple[int, ...]
