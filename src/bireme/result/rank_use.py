"""What ranks use of their nodes (``bireme top``)."""

from __future__ import annotations

from bireme.resources.pool import ranges
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


class RankUses(Value):
    """What ranks and what is below them use, in columns: to take a thousand values apart takes milliseconds.

    Attributes:
        states: such as ``running``.
        cpu: seconds of processor time so far.
        rss: bytes of memory now.
        gpu: the share of the last moment in which the rank's GPU computed, 0 to 1; -1: not known.
        gpu_memory: bytes that are used of the rank's GPU; -1: not known.
        steps: the number of the step that the script has reported (`bireme.report`); -1: none.
    """

    ranks: tuple[int, ...]
    states: tuple[str, ...]
    cpu: tuple[float, ...]
    rss: tuple[int, ...]
    gpu: tuple[float, ...]
    gpu_memory: tuple[int, ...]
    steps: tuple[float, ...]


def behind(steps: Mapping[int, float]) -> str:
    """Which ranks are how many steps behind, of those whose step is known (not -1); "": none are."""
    known = {rank: step for rank, step in steps.items() if step >= 0}
    least, most = min(known.values(), default=0.0), max(known.values(), default=0.0)
    if least == most:
        return ""
    late = [rank for rank, step in known.items() if step == least]
    who = f"rank {late[0]} is" if len(late) == 1 else f"ranks {ranges(late)} are"
    return f"{who} at step {least:.15g}, {most - least:.15g} behind the first"
