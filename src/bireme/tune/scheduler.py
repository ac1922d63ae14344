"""Decides which experiment starts when, and on which slots: the tuner's scheduler.

It has no threads, no processes and no clock. The caller reports what happens; :meth:`Scheduler.decide` returns the
tasks to start. The same events always give the same decisions. (When an experiment is retried is decided in
`bireme.tune.executor`.)

**Orders.** ``fifo`` starts tasks in the order of submission, each on the first nodes of the pool with room, as the
``ResourceManager`` of DeepSpeed's autotuner does. ``longest`` starts the longest task first, on the nodes where the
fewest slots are left over, so that long tasks and tasks that need whole nodes do not run alone at the end.

**The head** is the first task in the queue. While it finds no room, the tasks behind it wait too. With ``backfill``
(EASY: Lifka, *The ANL/IBM SP scheduling system*, 1995) they may overtake the head if they do not delay it. The
predicted ends of the running tasks give the earliest time at which the head finds room, and on which slots. A task may
start if it ends by then, or on slots that the head will not get; so the head starts no later than predicted. Where
durations are unknown and the time cannot be predicted, backfill leaves free every slot that the head could need.

**Stuck tasks.** A task that the present nodes could not carry even if all were idle never becomes the head: the
others go on, and it stays in :attr:`Scheduler.stuck` until enough nodes are back.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import groupby
from math import inf
from typing import Literal

from bireme.tune.slots import FreeSlots, Shape, SlotReservation, why_impossible
from bireme.value import Value

Order = Literal["fifo", "longest"]


class Task(Value):
    """A task to run.

    Attributes:
        key: its name, unique among the waiting and running tasks.
        shape: the slots that it needs.
        seconds: its predicted duration; None if unknown.
        avoid: hosts on which the infrastructure failed this task before. Ignored if the remaining nodes could not
            carry the task.
    """

    key: str
    shape: Shape
    seconds: float | None = None
    avoid: frozenset[str] = frozenset()


class StartTask(Value):
    """A decision to start a task on these slots, which are reserved for it until it has ended."""

    task: Task
    reservation: SlotReservation


_Rank = tuple[float, ...]
_Entry = tuple[_Rank, float, Task]
"""_Rank, predicted seconds, task. No two ranks are equal, and the lowest is first."""


class _WaitQueue:
    """The waiting tasks that need the same slots, in the order of their ranks."""

    def __init__(self, shape: Shape, unwanted: frozenset[str], slots: FreeSlots) -> None:
        self.shape, self.unwanted = shape, unwanted
        self.entries: list[_Entry] = []
        self.update(slots)

    def first_ending(self, now: float, by: float) -> _Entry | None:
        """The first task that ends by then if it starts now."""
        for entry in self.entries:
            if now + entry[1] <= by:
                return entry
        return None

    def update(self, slots: FreeSlots) -> None:
        """Decide by the nodes that are present which ones to avoid, and whether these tasks can run at all."""
        self.avoid = self.unwanted if slots.carries(self.shape, self.unwanted) else frozenset()
        self.able = slots.carries(self.shape, self.avoid)


class _Running(Value):
    """A running task; ``end`` is its predicted end, infinity if unknown."""

    start: StartTask
    end: float


class Scheduler:
    """Decides which tasks start, and where.

    Args:
        pool: host → slot ids.
        order: which task is first: ``fifo`` or ``longest``.
        backfill: whether other tasks may overtake a head that waits.

    Raises:
        ValueError: the order is unknown.
    """

    def __init__(self, pool: Mapping[str, tuple[str, ...]], *, order: Order = "fifo", backfill: bool = False) -> None:
        if order not in ("fifo", "longest"):
            raise ValueError(f"unknown order: {order!r} (expected 'fifo' or 'longest')")
        self._order, self._backfill = order, backfill
        self._slots = FreeSlots(pool)
        self._queues: dict[tuple[Shape, frozenset[str]], _WaitQueue] = {}
        self._waiting: dict[str, tuple[_WaitQueue, _Rank]] = {}
        self._running: dict[str, _Running] = {}
        self._ends: list[_Running] = []  # by predicted end
        self._submitted = 0

    # -- events --------------------------------------------------------------------------------------------------------

    def submit(self, task: Task) -> None:
        """Queue a task. Raises ValueError: a task with this key is already waiting or running."""
        if task.key in self._waiting or task.key in self._running:
            raise ValueError(f"task {task.key!r} is already waiting or running")
        seconds = inf if task.seconds is None else task.seconds
        self._submitted += 1
        rank = (self._submitted,) if self._order == "fifo" else (-seconds, -task.shape.size, self._submitted)
        queue = self._queue_of(task)
        insort(queue.entries, (rank, seconds, task), key=_rank)
        self._waiting[task.key] = queue, rank

    def withdraw(self, key: str) -> None:
        """Remove a waiting task. Raises KeyError: no such task is waiting."""
        queue, rank = self._waiting.pop(key)
        del queue.entries[bisect_left(queue.entries, rank, key=_rank)]
        if not queue.entries:
            del self._queues[queue.shape, queue.unwanted]

    def ended(self, key: str) -> None:
        """Free the slots of a task that has ended and left nothing behind. Raises KeyError: it is not running."""
        run = self._running.pop(key)
        at = bisect_left(self._ends, run.end, key=_end)
        while self._ends[at] is not run:
            at += 1
        del self._ends[at]
        self._slots.give(run.start.reservation)

    def lost(self, host: str) -> tuple[str, ...]:
        """Take a lost node out of the pool until it is :meth:`back`.

        Returns:
            The running tasks that have slots there. Each keeps all its slots until it has :meth:`ended`, because it may
            still have processes on other nodes.

        Raises:
            KeyError: no such host in the pool.
        """
        self._slots.leave(host)
        self._update_queues()
        return tuple(key for key, run in self._running.items() if host in dict(run.start.reservation.places))

    def back(self, host: str) -> None:
        """Put a lost node back into the pool. Raises KeyError: no such host in the pool."""
        self._slots.come(host)
        self._update_queues()

    # -- decisions -----------------------------------------------------------------------------------------------------

    def decide(self, now: float) -> tuple[StartTask, ...]:
        """Choose the tasks that start now (``now`` in seconds of a monotonic clock), and reserve their slots."""
        starts: list[StartTask] = []
        while head := min(self._able(), key=_next_rank, default=None):
            room = self._find(self._slots, head)
            if room is None:
                return (*starts, *self._start_behind(head, now)) if self._backfill else tuple(starts)
            starts.append(self._start(head.entries[0], room, now))
        return tuple(starts)

    # -- views ---------------------------------------------------------------------------------------------------------

    def impossible(self, shape: Shape, *, without: Collection[str] = ()) -> str:
        """Why the whole pool, lost nodes included, could never carry the shape; "" if it could.

        ``without``: nodes to leave out.
        """
        return why_impossible({host: ids for host, ids in self._slots.pool.items() if host not in without}, shape)

    @property
    def free(self) -> dict[str, tuple[str, ...]]:
        """The free slots of each node that is not lost."""
        return self._slots.view()

    @property
    def running(self) -> dict[str, StartTask]:
        """The running tasks by key, in the order of their starts."""
        return {key: run.start for key, run in self._running.items()}

    @property
    def queued(self) -> tuple[str, ...]:
        """The keys of the waiting tasks, in order."""
        return self._in_order(self._queues.values())

    @property
    def stuck(self) -> tuple[str, ...]:
        """The keys of waiting tasks that the present nodes could not carry even if all were idle."""
        return self._in_order(queue for queue in self._queues.values() if not queue.able)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _queue_of(self, task: Task) -> _WaitQueue:
        unwanted = task.avoid.intersection(self._slots.pool)
        queue = self._queues.get((task.shape, unwanted))
        if queue is None:
            queue = self._queues[task.shape, unwanted] = _WaitQueue(task.shape, unwanted, self._slots)
        return queue

    def _update_queues(self) -> None:
        for queue in self._queues.values():
            queue.update(self._slots)

    def _able(self) -> Iterator[_WaitQueue]:
        return (queue for queue in self._queues.values() if queue.able)

    def _find(self, slots: FreeSlots, queue: _WaitQueue) -> SlotReservation | None:
        return slots.find(queue.shape, queue.avoid, tight=self._order == "longest")

    def _start(self, entry: _Entry, room: SlotReservation, now: float) -> StartTask:
        _, seconds, task = entry
        self.withdraw(task.key)
        self._slots.take(room)
        run = _Running(StartTask(task, room), now + seconds)
        self._running[task.key] = run
        insort(self._ends, run, key=_end)
        return run.start

    def _start_behind(self, head: _WaitQueue, now: float) -> tuple[StartTask, ...]:
        """Start the tasks that do not delay the head."""
        until, kept = self._predicted_start(head, now)
        spare = self._slots.copy()
        spare.take(kept)
        starts: list[StartTask] = []
        while choice := min(self._candidates(spare, now, until), key=_rank_of, default=None):
            queue, entry = choice
            ends_in_time = now + entry[1] <= until
            room = self._find(self._slots if ends_in_time else spare, queue)
            assert room is not None, "it was a candidate"
            spare.take(room)
            starts.append(self._start(entry, room, now))
        return tuple(starts)

    def _candidates(self, spare: FreeSlots, now: float, until: float) -> Iterator[tuple[_WaitQueue, _Entry]]:
        """For each queue the first task that may start now: on spare slots, or on any free slots if it ends in time."""
        for queue in self._able():
            if spare.fits(queue.shape, queue.avoid):
                yield queue, queue.entries[0]
            elif self._slots.fits(queue.shape, queue.avoid) and (entry := queue.first_ending(now, until)):
                yield queue, entry

    def _predicted_start(self, head: _WaitQueue, now: float) -> tuple[float, SlotReservation]:
        """When the head finds room, and which slots it then gets; the time is -infinity if it cannot be predicted."""
        later = self._slots.copy()
        for when, runs in groupby(self._ends, key=lambda run: max(run.end, now)):
            if when == inf:
                break
            for run in runs:
                later.give(run.start.reservation)
            if room := self._find(later, head):
                return when, room
        return -inf, self._slots.kept_for(head.shape, head.avoid)

    def _in_order(self, queues: Iterable[_WaitQueue]) -> tuple[str, ...]:
        return tuple(task.key for _, _, task in sorted(entry for queue in queues for entry in queue.entries))


def _next_rank(queue: _WaitQueue) -> _Rank:
    return queue.entries[0][0]


def _rank_of(choice: tuple[_WaitQueue, _Entry]) -> _Rank:
    return choice[1][0]


def _rank(entry: _Entry) -> _Rank:
    return entry[0]


def _end(run: _Running) -> float:
    return run.end
