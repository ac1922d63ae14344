"""Decides which experiment starts when, and on which slots: the tuner's scheduler.

It has no threads, no processes and no clock. The caller reports what happens; :meth:`Scheduler.decide` returns the
tasks to start. The same events always give the same decisions. (When an experiment is tried again is decided in
`bireme.tune.execution.retries`.)

**Orders.** ``fifo`` starts tasks in the order of submission, each on the first nodes of the pool with room, as the
``ResourceManager`` of DeepSpeed's autotuner does. ``longest`` starts the widest task first, on the nodes where the
fewest slots are left over, so that tasks that need whole nodes do not run alone at the end.

**The head** is the first task in the queue. While it finds no room, the tasks behind it wait too. With ``backfill``
they may overtake it on slots that it could not need, whichever slots become free next; so it starts no later.

**Stuck tasks.** A task that the present nodes could not carry even if all were idle never becomes the head: the
others go on, and it stays in :attr:`Scheduler.stuck` until enough nodes are back.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Mapping
from typing import Literal

from bireme.errors import counted
from bireme.resources.filters import NodeFilter
from bireme.resources.pool import listed
from bireme.value import Value


class Shape(Value):
    """A request for ``slots`` slots on each of ``nodes`` different nodes."""

    nodes: int = 1
    slots: int = 1

    @property
    def size(self) -> int:
        """How many slots these are together."""
        return self.nodes * self.slots

    def __str__(self) -> str:
        return f"{self.nodes}x{self.slots}"


class SlotReservation(Value):
    """Reserved slots by their ids, on one or more nodes, in the pool's order."""

    places: tuple[tuple[str, tuple[str, ...]], ...]

    @property
    def size(self) -> int:
        """How many slots these are together."""
        return sum(len(slots) for _, slots in self.places)

    def include(self) -> str:
        """The slots as ``bireme run --include`` takes them: ``node1:0,1@node2:3``."""
        return "@".join(str(NodeFilter(host, slots)) for host, slots in self.places)


class FreeSlots:
    """The free slots of a pool; at first, all.

    An absent node gives no slots, but slots taken from it stay taken until they are given back.

    Args:
        pool: host → slot ids. Nodes and slots are given out in this order.
    """

    def __init__(self, pool: Mapping[str, tuple[str, ...]]) -> None:
        self.pool = dict(pool)
        self._free = dict(pool)
        self._absent: set[str] = set()

    def copy(self) -> FreeSlots:
        """An independent copy."""
        other = FreeSlots({})
        other.pool, other._free, other._absent = self.pool, dict(self._free), set(self._absent)
        return other

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def leave(self, host: str) -> None:
        """Make a node absent: it gives no slots. Raises KeyError: no such host in the pool."""
        if host not in self.pool:
            raise KeyError(host)
        self._absent.add(host)

    def come(self, host: str) -> None:
        """Make a node present again. Raises KeyError: no such host in the pool."""
        if host not in self.pool:
            raise KeyError(host)
        self._absent.discard(host)

    # -- slots ---------------------------------------------------------------------------------------------------------

    def carries(self, shape: Shape, avoid: Collection[str] = ()) -> bool:
        """Whether the present nodes outside ``avoid`` could carry the shape if all were idle."""
        return _valid(shape) and len(self._able(self.pool, shape, avoid)) >= shape.nodes

    def present(self, reservation: SlotReservation) -> bool:
        """Whether all nodes of these slots are present."""
        return not self._absent.intersection(host for host, _ in reservation.places)

    def has(self, reservation: SlotReservation) -> bool:
        """Whether all these slots are free, on present nodes."""
        free = all(set(slots) <= set(self._free[host]) for host, slots in reservation.places)
        return free and self.present(reservation)

    def find(self, shape: Shape, avoid: Collection[str] = (), *, tight: bool = False) -> SlotReservation | None:
        """Room for the shape on the present nodes outside ``avoid``: the first free slots of the first nodes.

        Args:
            tight: prefer the nodes where the fewest free slots are left over, so that others stay whole.

        Returns:
            The slots, which are not taken yet; None if there is no room.
        """
        able = self._able(self._free, shape, avoid)
        if not _valid(shape) or len(able) < shape.nodes:
            return None
        if tight:
            chosen = set(sorted(able, key=lambda host: len(self._free[host]))[: shape.nodes])
            able = [host for host in able if host in chosen]
        return SlotReservation(tuple((host, self._free[host][: shape.slots]) for host in able[: shape.nodes]))

    def take(self, reservation: SlotReservation) -> None:
        """Take slots; those already taken stay taken."""
        for host, slots in reservation.places:
            self._free[host] = tuple(slot for slot in self._free[host] if slot not in slots)

    def give(self, reservation: SlotReservation) -> None:
        """Free slots."""
        for host, slots in reservation.places:
            free = {*self._free[host], *slots}
            self._free[host] = tuple(slot for slot in self.pool[host] if slot in free)

    def kept_for(self, shape: Shape, avoid: Collection[str] = ()) -> SlotReservation:
        """Every free slot that the shape could need, whichever slots become free next.

        On each node with enough slots, free or not, these are the first free ones, up to the number that it needs.
        """
        hosts = self._able(self.pool, shape, avoid)
        return SlotReservation(tuple((host, self._free[host][: shape.slots]) for host in hosts))

    def view(self) -> dict[str, tuple[str, ...]]:
        """The free slots of each present node, in the pool's order."""
        return {host: slots for host, slots in self._free.items() if host not in self._absent}

    def _able(self, slots: Mapping[str, tuple[str, ...]], shape: Shape, avoid: Collection[str]) -> list[str]:
        """The present hosts outside ``avoid`` that have enough of these slots, in the pool's order."""
        without = self._absent.union(avoid)
        return [host for host, ids in slots.items() if len(ids) >= shape.slots and host not in without]


def _valid(shape: Shape) -> bool:
    return shape.nodes >= 1 and shape.slots >= 1


def why_impossible(pool: Mapping[str, tuple[str, ...]], shape: Shape) -> str:
    """Why the pool could never carry the shape, in one line; "" if it could."""
    if shape.nodes < 1 or shape.slots < 1:
        return f"{shape.slots} slots on {shape.nodes} nodes: at least one slot on one node is needed"
    able = [host for host, slots in pool.items() if len(slots) >= shape.slots]
    if len(able) >= shape.nodes:
        return ""
    asked = counted(shape.slots, "slot")
    if shape.nodes > len(pool):
        return f"{shape.nodes} nodes requested, but the pool has {len(pool)}: {listed(pool)}"
    if able:
        return (
            f"{asked} on each of {shape.nodes} nodes requested, but only {len(able)} can give that many: {listed(able)}"
        )
    largest = max(pool, key=lambda host: len(pool[host]))
    return f"{asked} on one node requested, but no node has more than {len(pool[largest])} ({largest})"


# -- the scheduler -----------------------------------------------------------------------------------

Order = Literal["fifo", "longest"]


class Task(Value):
    """A task to run.

    Attributes:
        key: its name, unique among the waiting and running tasks.
        avoid: hosts on which the infrastructure failed this task before. Ignored if the remaining nodes could not
            carry the task.
        pinned: the only slots that it may get; None: any. What is compared runs on the same slots.
    """

    key: str
    shape: Shape
    avoid: frozenset[str] = frozenset()
    pinned: SlotReservation | None = None


class StartTask(Value):
    """A decision to start a task on these slots, which are reserved for it until it has ended."""

    task: Task
    reservation: SlotReservation


class _Kind:
    """What a group of tasks requests: the same slots, and not on the same hosts. Either all of them find room, or none.

    Attributes:
        pinned: the only slots that they may get; None: any.
        avoid: the hosts that these tasks do avoid; none, if the others could not carry them.
        able: whether the present nodes could carry them if all were idle.
    """

    def __init__(
        self, shape: Shape, unwanted: frozenset[str], pinned: SlotReservation | None, slots: FreeSlots
    ) -> None:
        self.shape, self._unwanted, self.pinned = shape, unwanted, pinned
        self.update(slots)

    def update(self, slots: FreeSlots) -> None:
        """Decide by the nodes that are present which ones to avoid, and whether these tasks can run at all."""
        self.avoid = self._unwanted if slots.carries(self.shape, self._unwanted) else frozenset()
        self.able = slots.present(self.pinned) if self.pinned else slots.carries(self.shape, self.avoid)

    def find(self, slots: FreeSlots, *, tight: bool) -> SlotReservation | None:
        """Room for one of these tasks; None if there is none."""
        if self.pinned is not None:
            return self.pinned if slots.has(self.pinned) else None
        return slots.find(self.shape, self.avoid, tight=tight)


_Entry = tuple[tuple[int, ...], _Kind, Task]
"""A waiting task: its rank, its kind. No two ranks are equal, and the lowest is first."""


class Scheduler:
    """Decides which tasks start, and where.

    Args:
        backfill: whether other tasks may overtake a head that waits.

    Attributes:
        running: the running tasks by key, in the order of their starts.

    Raises:
        ValueError: the order is unknown.
    """

    def __init__(self, pool: Mapping[str, tuple[str, ...]], *, order: Order = "fifo", backfill: bool = False) -> None:
        if order not in ("fifo", "longest"):
            raise ValueError(f"unknown order: {order!r} (expected 'fifo' or 'longest')")
        self._order, self._backfill = order, backfill
        self._slots = FreeSlots(pool)
        self._kinds: dict[tuple[Shape, frozenset[str], SlotReservation | None], _Kind] = {}
        self._queue: list[_Entry] = []
        self._waiting: dict[str, _Entry] = {}
        self.running: dict[str, StartTask] = {}
        self._submitted = 0

    # -- events --------------------------------------------------------------------------------------------------------

    def submit(self, task: Task) -> None:
        """Queue a task. Raises ValueError: a task with this key is already waiting or running."""
        if task.key in self._waiting or task.key in self.running:
            raise ValueError(f"task {task.key!r} is already waiting or running")
        asked = task.shape, task.avoid.intersection(self._slots.pool), task.pinned
        kind = self._kinds.get(asked) or self._kinds.setdefault(asked, _Kind(*asked, self._slots))
        self._submitted += 1
        rank = (self._submitted,) if self._order == "fifo" else (-task.shape.size, self._submitted)
        entry = self._waiting[task.key] = (rank, kind, task)
        insort(self._queue, entry)

    def withdraw(self, key: str) -> None:
        """Remove a waiting task. Raises KeyError: no such task is waiting."""
        self._queue.remove(self._waiting.pop(key))

    def ended(self, key: str) -> None:
        """Free the slots of a task that has ended and left nothing behind. Raises KeyError: it is not running."""
        self._slots.give(self.running.pop(key).reservation)

    def lost(self, host: str) -> tuple[str, ...]:
        """Take a lost node out of the pool until it is :meth:`back`.

        Returns:
            The running tasks that have slots there. Each keeps all its slots until it has :meth:`ended`, because it may
            still have processes on other nodes.

        Raises:
            KeyError: no such host in the pool.
        """
        self._slots.leave(host)
        self._update_kinds()
        return tuple(key for key, start in self.running.items() if host in dict(start.reservation.places))

    def back(self, host: str) -> None:
        """Put a lost node back into the pool. Raises KeyError: no such host in the pool."""
        self._slots.come(host)
        self._update_kinds()

    def _update_kinds(self) -> None:
        for kind in self._kinds.values():
            kind.update(self._slots)

    # -- decisions -----------------------------------------------------------------------------------------------------

    def decide(self) -> tuple[StartTask, ...]:
        """Choose the tasks that start now, and reserve their slots."""
        starts: list[StartTask] = []
        slots, tight = self._slots, self._order == "longest"  # once the head waits, the slots that it cannot need
        no_room = {kind for kind in self._kinds.values() if not kind.able}
        for _, kind, task in tuple(self._queue):
            if kind in no_room:
                continue
            if room := kind.find(slots, tight=tight):
                self.withdraw(task.key)
                self._slots.take(room)
                start = self.running[task.key] = StartTask(task, room)
                starts.append(start)
                if slots is not self._slots:
                    slots.take(room)
                continue
            if not self._backfill:
                break
            no_room.add(kind)
            if slots is self._slots:  # this is the head
                slots = self._slots.copy()
                slots.take(kind.pinned or slots.kept_for(kind.shape, kind.avoid))
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
    def queued(self) -> tuple[str, ...]:
        """The keys of the waiting tasks, in order."""
        return tuple(task.key for *_, task in self._queue)

    @property
    def stuck(self) -> tuple[str, ...]:
        """The keys of waiting tasks that the present nodes could not carry even if all were idle."""
        return tuple(task.key for *_, kind, task in self._queue if not kind.able)
