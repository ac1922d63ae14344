"""The scheduler under a virtual clock: tasks take as long as predicted, and no real time passes. Makes the load too."""

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


def mixed_load(number: int, seed: int = 0) -> list[Task]:
    """Experiments of mixed widths, of one to ten minutes; none takes as long as another."""
    chance = random.Random(seed)
    shapes = chance.choices(list(SHAPES), weights=list(SHAPES.values()), k=number)
    return [Task(str(at), shape, chance.uniform(60, 600)) for at, shape in enumerate(shapes)]


def bound(tasks: Iterable[Task], slots: int) -> float:
    """No schedule is shorter: all slots are busy all the time, or the longest task runs from the first moment on."""
    tasks = list(tasks)
    seconds = [task.seconds or 0 for task in tasks]
    work = sum(each * task.shape.size for each, task in zip(seconds, tasks, strict=True))
    return max(work / slots, *seconds)


def simulate(
    scheduler: Scheduler,
    events: Iterable[tuple[float, Task | str]] = (),
    *,
    now: float = 0.0,
    seconds: Mapping[str, float] | None = None,
) -> Iterator[tuple[float, StartTask]]:
    """Run what the scheduler has to the end, and what comes to it; every start with its time.

    Args:
        scheduler: it may hold tasks already.
        events: with its time, a task that comes, or the key of one that runs already and ends.
        now: when it begins.
        seconds: how long tasks truly take, by key, where that is not what they say.
    """
    true = seconds or {}
    number = count()  # so that what happens at one moment happens in a fixed order
    future: list[tuple[float, int, Task | str]] = [(when, next(number), what) for when, what in events]
    heapq.heapify(future)
    starts = scheduler.decide(now)
    while True:
        for start in starts:
            yield now, start
            takes = true.get(start.task.key, start.task.seconds)
            assert takes is not None
            heapq.heappush(future, (now + takes, next(number), start.task.key))
        if not future:
            return
        now = future[0][0]
        while future and future[0][0] == now:
            _, _, what = heapq.heappop(future)
            if isinstance(what, Task):
                scheduler.submit(what)
            else:
                scheduler.ended(what)
        starts = scheduler.decide(now)


def makespan(scheduler: Scheduler, tasks: Iterable[Task]) -> float:
    """When the last of the tasks ends, all submitted at 0."""
    for task in tasks:
        scheduler.submit(task)
    return max(now + (start.task.seconds or 0) for now, start in simulate(scheduler))
