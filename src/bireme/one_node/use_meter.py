"""Measures what the ranks of this node use: processor time, memory, GPUs, and how far their scripts are."""

from __future__ import annotations

import os

from bireme.planning.environment import STEPS
from bireme.process import kernel
from bireme.result.rank_use import RankUses

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

STATES = {"R": "running", "S": "asleep", "D": "asleep in the kernel", "T": "stopped", "t": "traced", "Z": "ended"}
"""The kernel's letters."""


def step_of(rank: int, environ: Mapping[str, str]) -> float:
    """The number of the step that the script of a rank has reported; -1: none."""
    try:
        fd = os.open(f"{environ[STEPS]}{rank}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (OSError, KeyError):
        return -1.0
    try:
        step = float(os.read(fd, 24))
    except (OSError, ValueError):
        return -1.0
    finally:
        os.close(fd)
    return step if 0 <= step < float("inf") else -1.0


class UseMeter:
    """Stays connected to the driver of the GPUs.

    Args:
        environ: what the ranks have been given.
        gpus: the GPU of NVIDIA of each rank that has one.
    """

    def __init__(self, environ: Mapping[str, str], gpus: Mapping[int, str]) -> None:
        self._environ, self._gpus, self._driver = environ, gpus, None
        if gpus:
            from bireme.resources import nvidia

            self._driver = nvidia.open_driver()

    def measure(self, ranks: Mapping[int, int]) -> RankUses:
        """What each of these ranks, given with its pid, uses now."""
        tick, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
        known = kernel.stats()
        families = kernel.families(ranks.values(), known)
        below = [[known[each] for each in families[pid] if each in known] for pid in ranks.values()]
        states = (STATES.get(known[pid][1], known[pid][1]) if pid in known else "ended" for pid in ranks.values())
        gpus = list(self._of_gpus(ranks))
        return RankUses(
            ranks=tuple(ranks),
            states=tuple(states),
            cpu=tuple(sum(stat[3] for stat in family) / tick for family in below),
            rss=tuple(sum(stat[4] for stat in family) * page for family in below),
            gpu=tuple(busy for busy, _ in gpus),
            gpu_memory=tuple(size for _, size in gpus),
            steps=tuple(step_of(rank, self._environ) for rank in ranks),
        )

    def _of_gpus(self, ranks: Iterable[int]) -> Iterable[tuple[float, int]]:
        uses = self._driver.use() if self._driver is not None else []
        of = {slot: use for slot in self._gpus.values() for use in uses if use.is_meant(slot)}
        for rank in ranks:
            use = of.get(self._gpus.get(rank, ""))
            yield (-1.0, -1) if use is None else (use.busy, use.used)

    def close(self) -> None:
        """Leave the driver."""
        if self._driver is not None:
            self._driver.close()
