"""Which task starts when, and on which slots: the tuner's core, as state + event → actions.

There are no threads here, no processes and no clock: what happens is told, with its time, and
:meth:`Scheduler.decide` answers with what is to be started. The same events give the same answers.

**Orders.** ``fifo``: as they were submitted, each on the first nodes of the pool with room, as the
``ResourceManager`` of DeepSpeed's autotuner does. ``longest``: the longest first, where the fewest
slots are left over; what is long and what needs whole nodes is not left to the end, when little
else runs beside it.

**The head** is the first task in line. When it finds no room, those behind it wait too. With
``backfill`` (EASY: Lifka, *The ANL/IBM SP scheduling system*, 1995) they may pass where they are
not in its way. From the predicted ends of what runs follows the earliest moment at which the head
finds room, and where; a task may start if it ends by then, or on slots that the head will not get.
So the head starts no later than was predicted. Where that moment cannot be predicted, for want of
durations, nothing is taken that the head could need, whoever ends first.

**Aside.** What the nodes that are left cannot carry, however idle, is nobody's head: the others go
on, and it is :attr:`Scheduler.stuck` until enough nodes are back.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import groupby
from math import inf
from typing import Literal

from bireme.tune.slots import FreeSlots, Places, Shape, SlotReservation, why_impossible
from bireme.tune.wait_queue import Entry, Rank, WaitQueue
from bireme.value import Value

Order = Literal["fifo", "longest"]


class Task(Value):
    """What is to be run.

    Attributes:
        key: its name; no two tasks that wait or run have the same.
        shape: the slots that it needs.
        seconds: how long it is predicted to take; None where nobody knows.
        avoid: hosts not to run on, for a task that failed there through no fault of its own. Where the nodes that are
            left could not carry it without them, they are not avoided.
    """

    key: str
    shape: Shape
    seconds: float | None = None
    avoid: frozenset[str] = frozenset()


class StartTask(Value):
    """A task is to be started on these slots, which are its own until it has ended."""

    task: Task
    reservation: SlotReservation


class _Kind:
    """The waiting tasks that need the same, in order."""

    def __init__(self, shape: Shape, unwanted: int, slots: FreeSlots) -> None:
        self.shape, self.unwanted = shape, unwanted
        self.line: WaitQueue[Task] = WaitQueue()
        self.judge(slots)

    def judge(self, slots: FreeSlots) -> None:
        """See what is left to these tasks by the nodes that are here: whom to avoid, and whether to wait at all."""
        self.avoid = self.unwanted if slots.carries(self.shape, self.unwanted) else 0
        self.able = slots.carries(self.shape, self.avoid)


class _Running(Value):
    """A task that runs; ``end`` is when it is predicted to end, infinity where nobody knows."""

    start: StartTask
    places: Places
    end: float


class Scheduler:
    """Decides which tasks start, and where.

    Times are seconds on any clock that never goes back, the same for all calls. Every event is dated, so that events
    can be kept and told again, although the present policies look at the time only to decide.

    Args:
        pool: host → slot ids.
        order: who is first.
        backfill: whether others may pass a head that waits.
    """

    def __init__(self, pool: Mapping[str, tuple[str, ...]], *, order: Order = "fifo", backfill: bool = False) -> None:
        if order not in ("fifo", "longest"):
            raise ValueError(f"order {order!r} is neither 'fifo' nor 'longest'")
        self._order, self._backfill = order, backfill
        self._slots = FreeSlots(pool)
        self._kinds: dict[tuple[Shape, int], _Kind] = {}
        self._waiting: dict[str, tuple[_Kind, Rank]] = {}
        self._running: dict[str, _Running] = {}
        self._ends: list[_Running] = []  # by predicted end
        self._submitted = 0

    # -- what happens --------------------------------------------------------------------------------------------------

    def submit(self, task: Task, now: float) -> None:
        """A task is to be run. Raises ValueError: one with the same key waits or runs."""
        if task.key in self._waiting or task.key in self._running:
            raise ValueError(f"there is a task {task.key!r} already")
        seconds = inf if task.seconds is None else task.seconds
        self._submitted += 1
        rank = (self._submitted,) if self._order == "fifo" else (-seconds, -task.shape.size, self._submitted)
        kind = self._kind(task)
        kind.line.add((rank, seconds, task))
        self._waiting[task.key] = kind, rank

    def withdraw(self, key: str) -> None:
        """A waiting task is not wanted any more. Raises KeyError: no such task waits."""
        kind, rank = self._waiting.pop(key)
        kind.line.remove(rank)
        if not kind.line:
            del self._kinds[kind.shape, kind.unwanted]

    def ended(self, key: str, now: float) -> None:
        """A running task has ended, and nothing of it is left: its slots are free. Raises KeyError: it does not run."""
        run = self._running.pop(key)
        at = bisect_left(self._ends, run.end, key=_end)
        while self._ends[at] is not run:
            at += 1
        del self._ends[at]
        self._slots.give(run.places)

    def lost(self, host: str, now: float) -> tuple[str, ...]:
        """A node is lost, and gives no slots until it is :meth:`back`.

        Returns:
            The running tasks that have slots there. All their slots stay theirs until each has :meth:`ended`, since
            processes of theirs may be left on other nodes.

        Raises:
            KeyError: the pool has no such host.
        """
        self._slots.leave(host)
        self._judge()
        return tuple(key for key, run in self._running.items() if host in dict(run.start.reservation.places))

    def back(self, host: str, now: float) -> None:
        """A lost node gives slots again. Raises KeyError: the pool has no such host."""
        self._slots.come(host)
        self._judge()

    # -- what to do ----------------------------------------------------------------------------------------------------

    def decide(self, now: float) -> tuple[StartTask, ...]:
        """The tasks that start now; their slots are reserved from here on."""
        starts: list[StartTask] = []
        while head := min(self._able(), key=_next_rank, default=None):
            places = self._find(self._slots, head)
            if places is None:
                return (*starts, *self._pass(head, now)) if self._backfill else tuple(starts)
            starts.append(self._start(head.line.first, places, now))
        return tuple(starts)

    # -- views ---------------------------------------------------------------------------------------------------------

    def impossible(self, shape: Shape, *, without: Collection[str] = ()) -> str:
        """Why no nodes of the whole pool, lost ones included, could ever carry the shape; empty where some could.

        ``without``: nodes that are not to be counted on.
        """
        return why_impossible({host: ids for host, ids in self._slots.pool.items() if host not in without}, shape)

    @property
    def free(self) -> dict[str, tuple[str, ...]]:
        """The free slots of each node that is not lost."""
        return self._slots.view()

    @property
    def running(self) -> dict[str, StartTask]:
        """What runs, by its key, in the order of the starts."""
        return {key: run.start for key, run in self._running.items()}

    @property
    def queued(self) -> tuple[str, ...]:
        """What waits, in order."""
        return self._in_order(self._kinds.values())

    @property
    def stuck(self) -> tuple[str, ...]:
        """What waits and could not start on the nodes that are left, even if all were idle."""
        return self._in_order(kind for kind in self._kinds.values() if not kind.able)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _kind(self, task: Task) -> _Kind:
        unwanted = self._slots.nodes(task.avoid)
        kind = self._kinds.get((task.shape, unwanted))
        if kind is None:
            kind = self._kinds[task.shape, unwanted] = _Kind(task.shape, unwanted, self._slots)
        return kind

    def _judge(self) -> None:
        for kind in self._kinds.values():
            kind.judge(self._slots)

    def _able(self) -> Iterator[_Kind]:
        return (kind for kind in self._kinds.values() if kind.able)

    def _find(self, slots: FreeSlots, kind: _Kind) -> Places | None:
        find = slots.first if self._order == "fifo" else slots.tightest
        return find(kind.shape, kind.avoid)

    def _start(self, entry: Entry[Task], places: Places, now: float) -> StartTask:
        _, seconds, task = entry
        self.withdraw(task.key)
        self._slots.take(places)
        run = _Running(StartTask(task, self._slots.reservation(places)), places, now + seconds)
        self._running[task.key] = run
        insort(self._ends, run, key=_end)
        return run.start

    def _pass(self, head: _Kind, now: float) -> tuple[StartTask, ...]:
        """Start what is not in the head's way."""
        until, kept = self._promise(head, now)
        spare = self._slots.copy()
        spare.take(kept)
        starts: list[StartTask] = []
        while choice := min(self._candidates(spare, now, until), key=_rank_of, default=None):
            kind, entry = choice
            ends_in_time = now + entry[1] <= until
            places = self._find(self._slots if ends_in_time else spare, kind)
            assert places is not None, "it was a candidate"
            spare.take(places)
            starts.append(self._start(entry, places, now))
        return tuple(starts)

    def _candidates(self, spare: FreeSlots, now: float, until: float) -> Iterator[tuple[_Kind, Entry[Task]]]:
        """Of each kind the first that may start now: on slots to spare, or on any if it ends in time."""
        for kind in self._able():
            if spare.fits(kind.shape, kind.avoid):
                yield kind, kind.line.first
            elif self._slots.fits(kind.shape, kind.avoid) and (entry := kind.line.first_ending(now, until)):
                yield kind, entry

    def _promise(self, head: _Kind, now: float) -> tuple[float, Places]:
        """When the head finds room, and which slots it then gets; the time is in the past when it is not known."""
        later = self._slots.copy()
        for when, runs in groupby(self._ends, key=lambda run: max(run.end, now)):
            if when == inf:
                break
            for run in runs:
                later.give(run.places)
            if places := self._find(later, head):
                return when, places
        return -inf, self._slots.kept_for(head.shape, head.avoid)

    def _in_order(self, kinds: Iterable[_Kind]) -> tuple[str, ...]:
        return tuple(task.key for _, _, task in sorted(entry for kind in kinds for entry in kind.line))


def _next_rank(kind: _Kind) -> Rank:
    return kind.line.first[0]


def _rank_of(choice: tuple[_Kind, Entry[Task]]) -> Rank:
    return choice[1][0]


def _end(run: _Running) -> float:
    return run.end
