"""Measures the peak memory of the trials that run on this machine, by polling several times a second.

A trial's ranks are the processes with its name, a rank and this tuner's mark in their environment, so that neither
Bireme's own nor those of another study on this machine count. Of the host's memory, pages that several processes share
count once (their proportional set size), and files that the kernel caches do not count, which a control group's
``memory.peak`` includes. What one process needed between two polls is known too (``VmHWM``), and what a rank needed
after the last look, or if it ended before the first, the kernel says at its end (``ru_maxrss``).

Of a GPU, the memory of the ranks counts. Where the driver does not know the processes by their ids, as in many
containers, what is used more than at its lowest during the trial counts: a trial has its GPUs for itself.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Collection, Mapping, Sequence

from bireme.errors import BadInputError
from bireme.planning.environment import TRIAL, TUNER
from bireme.resources.nvidia import open_driver
from bireme.tune.metrics.metric import Measure

_PAUSE = 0.05
"""Seconds between two polls, at least; more where a poll takes long: this machine runs the trials too."""

_SHARE = 50

_OF_A_GUARDIAN = 32 << 20
"""What the kernel says about a rank includes the process that forked it, which has less than this."""


def check(measure: Measure, *, local: bool) -> None:
    """Refuse what cannot be measured, before anything starts; ``local``: whether all slots are on this machine."""
    for kind in measure.memory:
        if not local:
            raise BadInputError(
                f"{kind} is measured only where all slots are on this machine",
                hint="let the program report its memory, as in 'max memory: {}'",
            )
        if kind == "peak_gpu_memory" and open_driver() is None:
            raise BadInputError(f"{kind} cannot be measured: no NVIDIA driver answers on this machine")
        if kind == "peak_memory" and not os.path.exists("/proc/self/status"):
            raise BadInputError(f"{kind} cannot be measured: this machine has no /proc")


@functools.cache
def mark() -> str:
    """What tells the trials of this process from those of another tuner, also of one in a container."""
    return f"{os.getpid()}-{os.urandom(4).hex()}"


class MemoryUse:
    """Watches the memory of trials.

    Args:
        kinds: which peaks are measured (`Measure.memory`); with none, nothing is done.
        tuner: the mark of the tuner (``BIREME_TUNER`` in the ranks' environment); "": of this process.
    """

    def __init__(self, kinds: Collection[str], tuner: str = "") -> None:
        self._kinds, self._tuner = kinds, tuner or mark()
        self._others: set[str] = set()  # the pids of older processes than all trials
        self._gpus = open_driver() if "peak_gpu_memory" in kinds else None
        self._trials: dict[str, _Trial] = {}
        self._due = 0.0

    def begin(self, name: str, slots: Sequence[str]) -> None:
        """Watch a trial, by its name in its environment and the ids of its GPUs. Call this before it starts."""
        if self._kinds:
            if not self._trials:
                self._others = _pids()
            self._trials[name] = _Trial(slots)
            self._due = 0.0

    def look(self) -> None:
        """Measure all trials, if it is time. Call this several times a second."""
        begin = time.thread_time()
        if not self._trials or time.monotonic() < self._due:
            return
        there = _pids()
        self._others &= there
        ranks = _ranks(there - self._others, self._tuner, self._trials)
        devices = self._gpus.use() if self._gpus is not None else ()
        for name, trial in self._trials.items():
            if "peak_memory" in self._kinds:
                trial.take_host(ranks[name])
            for device in devices:
                if any(device.is_meant(slot) for slot in trial.slots):
                    trial.take_gpu(device.uuid, device.used, device.by_process, ranks[name])
        self._due = time.monotonic() + max(_PAUSE, _SHARE * (time.thread_time() - begin))

    def end(self, name: str, report: Mapping[str, object] | None = None) -> Mapping[str, float]:
        """The peaks of a trial that has ended, in bytes; of a kind that could not be measured, none.

        Args:
            report: what the ``--report`` of its run wrote, which has what the kernel says about each rank at its end.
        """
        trial = self._trials.pop(name, None)
        if trial is None:
            return {}
        ends = (report or {}).get("ends")
        ranks = [end.get("peak_memory", 0) for end in ends if isinstance(end, dict)] if isinstance(ends, list) else []
        if trial.host is None and sum(ranks):
            trial.host = sum(ranks)
        elif max(ranks, default=0) > _OF_A_GUARDIAN:
            trial.host = max(trial.host or 0, *ranks)
        gpu = max((trial.gpu_by_process or trial.gpu_by_device).values(), default=None)
        peaks = {"peak_memory": trial.host, "peak_gpu_memory": gpu}
        return {kind: float(peak) for kind, peak in peaks.items() if kind in self._kinds and peak is not None}


class _Trial:
    def __init__(self, slots: Sequence[str]) -> None:
        self.slots = slots
        self.host: int | None = None
        self.gpu_by_process: dict[str, int] = {}  # the peak of each device
        self.gpu_by_device: dict[str, int] = {}
        self._lowest: dict[str, int] = {}

    def take_host(self, ranks: Collection[int]) -> None:
        resident = {pid: _resident(pid) for pid in ranks}
        together = sum(now for now, _ in resident.values())
        if len(resident) > 1 and together > (self.host or 0):  # an upper bound: look closer, which takes longer
            # Shared pages are divided among those that share them.
            together = sum(_sizes(f"/proc/{pid}/smaps_rollup").get("Pss", now) for pid, (now, _) in resident.items())
        if resident:
            self.host = max(self.host or 0, together, *(highest for _, highest in resident.values()))

    def take_gpu(self, device: str, used: int, by_process: Mapping[int, int], ranks: Collection[int]) -> None:
        of_ranks = sum(size for pid, size in by_process.items() if pid in ranks)
        if of_ranks:
            self.gpu_by_process[device] = max(self.gpu_by_process.get(device, 0), of_ranks)
        self._lowest[device] = min(self._lowest.get(device, used), used)
        self.gpu_by_device[device] = max(self.gpu_by_device.get(device, 0), used - self._lowest[device])


def _pids() -> set[str]:
    """All processes."""
    return set(filter(str.isdigit, os.listdir("/proc")))


def _ranks(pids: Collection[str], tuner: str, trials: Collection[str]) -> dict[str, set[int]]:
    """Of these processes, each trial's ranks and those that these have started."""
    found: dict[str, set[int]] = {name: set() for name in trials}
    for pid in pids:
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                words = file.read().decode(errors="replace").split("\0")
        except OSError:  # it has ended, or is not ours
            continue
        environ = dict(word.split("=", 1) for word in words if "=" in word)
        name = environ.get(TRIAL, "")
        if name in found and environ.get(TUNER) == tuner and "RANK" in environ:
            found[name].add(int(pid))
    return found


def _resident(pid: int) -> tuple[int, int]:
    """Resident memory of a process in bytes: now, and at most until now."""
    sizes = _sizes(f"/proc/{pid}/status")
    return sizes.get("VmRSS", 0), sizes.get("VmHWM", 0)


def _sizes(path: str) -> dict[str, int]:
    """The sizes in a file of ``/proc``, in bytes; none if the process has ended."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            words = [line.split() for line in file if line.endswith(" kB\n")]
    except OSError:
        return {}
    return {word[0].rstrip(":"): int(word[1]) * 1024 for word in words}
