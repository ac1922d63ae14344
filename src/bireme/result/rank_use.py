"""What a rank uses of its node (``bireme top``)."""

from __future__ import annotations

from bireme.value import Value


class RankUse(Value):
    """What a rank and what is below it use.

    Attributes:
        state: such as ``running``.
        cpu: seconds of processor time so far.
        rss: bytes of memory now.
    """

    rank: int
    state: str
    cpu: float
    rss: int
