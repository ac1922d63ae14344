"""The scheduler under a virtual clock: no real time passes. Makes the load too."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable, Iterator, Mapping
from itertools import count

from bireme.tune.execution.slot_scheduler import Scheduler, Shape, StartTask, Task

SHAPES = {Shape(1, 1): 30, Shape(1, 2): 20, Shape(1, 4): 20, Shape(1, 8): 15, Shape(2, 8): 10, Shape(4, 8): 5}
"""What the experiments of a mixed load ask for, and how many of a hundred do."""

MODES = tuple((order, backfill) for order in ("fifo", "longest") for backfill in (False, True))
"""Every way to schedule."""


def cluster(nodes: int, slots: int = 8) -> dict[str, tuple[str, ...]]:
    """A pool of equal nodes."""
    return {f"node{number}": tuple(map(str, range(slots))) for number in range(nodes)}


def mixed_load(number: int, seed: int = 0) -> dict[Task, float]:
    """Experiments of mixed widths, and how long each takes: one to ten minutes, none as long as another."""
    chance = random.Random(seed)
    shapes = chance.choices(list(SHAPES), weights=list(SHAPES.values()), k=number)
    return {Task(str(at), shape): chance.uniform(60, 600) for at, shape in enumerate(shapes)}


def bound(tasks: Mapping[Task, float], slots: int) -> float:
    """No schedule is shorter: all slots are busy all the time, or the longest task runs from the first moment on."""
    return max(sum(each * task.shape.size for task, each in tasks.items()) / slots, *tasks.values())


def simulate(
    scheduler: Scheduler, seconds: Mapping[str, float], events: Iterable[tuple[float, str]] = (), *, now: float = 0.0
) -> Iterator[tuple[float, StartTask]]:
    """Run what the scheduler has to the end; every start with its time.

    Args:
        scheduler: it may hold tasks already.
        seconds: how long tasks take, by key.
        events: with its time, the key of one that runs already and ends.
        now: when it begins.
    """
    number = count()  # so that what happens at one moment happens in a fixed order
    future = [(when, next(number), key) for when, key in events]
    heapq.heapify(future)
    starts = scheduler.decide()
    while True:
        for start in starts:
            yield now, start
            heapq.heappush(future, (now + seconds[start.task.key], next(number), start.task.key))
        if not future:
            return
        now = future[0][0]
        while future and future[0][0] == now:
            scheduler.ended(heapq.heappop(future)[2])
        starts = scheduler.decide()


def makespan(scheduler: Scheduler, tasks: Mapping[Task, float]) -> float:
    """When the last of the tasks ends, all submitted at 0."""
    for task in tasks:
        scheduler.submit(task)
    seconds = {task.key: each for task, each in tasks.items()}
    return max(now + seconds[start.task.key] for now, start in simulate(scheduler, seconds))
