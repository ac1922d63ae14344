"""Slots: what an experiment requests, what is reserved for it, and which slots of the pool are free.

Sets of slots and of nodes are integers, one bit for each member: a thousand nodes are searched in less than a
microsecond, and the free slots are copied by copying two lists, which the scheduler does at every decision.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise

from bireme.resources.filters import NodeFilter
from bireme.resources.pool import listed
from bireme.value import Value

Places = tuple[tuple[int, int], ...]
"""Pairs of a node's number in the pool and a set of its slots, in the pool's order."""


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
        self.numbers = {host: number for number, host in enumerate(self.pool)}
        self._hosts = tuple(self.pool)
        self._present = (1 << len(self.pool)) - 1
        self._free = [(1 << len(slots)) - 1 for slots in self.pool.values()]
        most = max(map(len, self.pool.values()), default=0)
        # Index: a number of slots; value: the nodes with at least that many, in all and free. The last set is empty.
        self._sized = [_set(len(slots) >= count for slots in self.pool.values()) for count in range(most + 2)]
        self._roomy = list(self._sized)

    def copy(self) -> FreeSlots:
        """An independent copy."""
        other = object.__new__(FreeSlots)
        other.__dict__.update(self.__dict__)
        other._free, other._roomy = list(self._free), list(self._roomy)
        return other

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def leave(self, host: str) -> None:
        """Make a node absent: it gives no slots. Raises KeyError: no such host in the pool."""
        self._present &= ~(1 << self.numbers[host])

    def come(self, host: str) -> None:
        """Make a node present again. Raises KeyError: no such host in the pool."""
        self._present |= 1 << self.numbers[host]

    def nodes(self, hosts: Iterable[str]) -> int:
        """The set of these nodes; unknown hosts are ignored."""
        return _union(1 << self.numbers[host] for host in hosts if host in self.numbers)

    # -- slots ---------------------------------------------------------------------------------------------------------

    def carries(self, shape: Shape, avoid: int = 0) -> bool:
        """Whether the present nodes outside ``avoid`` could carry the shape if all were idle."""
        return self._enough(self._sized, shape, avoid)

    def fits(self, shape: Shape, avoid: int = 0) -> bool:
        """Whether there is room for the shape now on the present nodes outside ``avoid``."""
        return self._enough(self._roomy, shape, avoid)

    def first(self, shape: Shape, avoid: int = 0) -> Places | None:
        """The first nodes with enough free slots, and their first free slots; None if there is no room."""
        if not self.fits(shape, avoid):
            return None
        return self._places(_lowest(self._roomy[shape.slots] & self._present & ~avoid, shape.nodes), shape)

    def tightest(self, shape: Shape, avoid: int = 0) -> Places | None:
        """The nodes where the fewest free slots are left over, so that others stay whole; None if there is no room."""
        if not self.fits(shape, avoid):
            return None
        chosen, missing = 0, shape.nodes
        for roomy, roomier in pairwise(self._roomy[shape.slots :]):
            some = _lowest(roomy & ~roomier & self._present & ~avoid, missing)
            chosen |= some
            missing -= some.bit_count()
            if not missing:
                break
        return self._places(chosen, shape)

    def take(self, places: Places) -> None:
        """Take slots; those already taken stay taken."""
        for node, slots in places:
            self._set_free(node, self._free[node] & ~slots)

    def give(self, places: Places) -> None:
        """Free slots."""
        for node, slots in places:
            self._set_free(node, self._free[node] | slots)

    def kept_for(self, shape: Shape, avoid: int = 0) -> Places:
        """Every free slot that the shape could need, whichever slots become free next.

        On each node with enough slots, free or not, these are the first free ones, up to the number that it needs.
        """
        nodes = self._sized[shape.slots] & self._present & ~avoid
        return tuple((node, _lowest(self._free[node], shape.slots)) for node in _members(nodes))

    # -- in words ------------------------------------------------------------------------------------------------------

    def reservation(self, places: Places) -> SlotReservation:
        """The places by host names and slot ids."""
        return SlotReservation(tuple((self._hosts[node], self._ids(node, slots)) for node, slots in places))

    def view(self) -> dict[str, tuple[str, ...]]:
        """The free slots of each present node, in the pool's order."""
        return {self._hosts[node]: self._ids(node, self._free[node]) for node in _members(self._present)}

    # -- inside --------------------------------------------------------------------------------------------------------

    def _enough(self, nodes: list[int], shape: Shape, avoid: int) -> bool:
        if not (shape.nodes >= 1 and 1 <= shape.slots < len(nodes)):
            return False
        return (nodes[shape.slots] & self._present & ~avoid).bit_count() >= shape.nodes

    def _places(self, nodes: int, shape: Shape) -> Places:
        return tuple((node, _lowest(self._free[node], shape.slots)) for node in _members(nodes))

    def _set_free(self, node: int, free: int) -> None:
        before, after = self._free[node].bit_count(), free.bit_count()
        self._free[node] = free
        for count in range(min(before, after) + 1, max(before, after) + 1):
            self._roomy[count] ^= 1 << node

    def _ids(self, node: int, slots: int) -> tuple[str, ...]:
        names = self.pool[self._hosts[node]]
        return tuple(names[number] for number in _members(slots))


def why_impossible(pool: Mapping[str, tuple[str, ...]], shape: Shape) -> str:
    """Why the pool could never carry the shape, in one line; "" if it could."""
    if shape.nodes < 1 or shape.slots < 1:
        return f"{shape.slots} slots on {shape.nodes} nodes: at least one slot on one node is needed"
    able = [host for host, slots in pool.items() if len(slots) >= shape.slots]
    if len(able) >= shape.nodes:
        return ""
    asked = f"{shape.slots} {'slot' if shape.slots == 1 else 'slots'}"
    if shape.nodes > len(pool):
        return f"{shape.nodes} nodes requested, but the pool has {len(pool)}: {listed(pool)}"
    if able:
        return (
            f"{asked} on each of {shape.nodes} nodes requested, but only {len(able)} can give that many: {listed(able)}"
        )
    largest = max(pool, key=lambda host: len(pool[host]))
    return f"{asked} on one node requested, but no node has more than {len(pool[largest])} ({largest})"


def _set(members: Iterable[bool]) -> int:
    return _union(1 << number for number, member in enumerate(members) if member)


def _union(sets: Iterable[int]) -> int:
    union = 0
    for each in sets:
        union |= each
    return union


def _lowest(members: int, count: int) -> int:
    """The set of the first ``count`` members, or of all if there are fewer."""
    chosen = 0
    while members and count:
        bit = members & -members
        chosen, members, count = chosen | bit, members ^ bit, count - 1
    return chosen


def _members(members: int) -> Iterator[int]:
    while members:
        bit = members & -members
        yield bit.bit_length() - 1
        members ^= bit
