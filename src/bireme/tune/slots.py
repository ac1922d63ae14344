"""Slots: what an experiment asks for, what it gets, and which slots of a pool are free.

Sets are whole numbers, one bit for each member: of a node's slots, and of the pool's nodes. Python
works on thirty of them at a time, so that a thousand nodes are searched in less than a microsecond,
and what is free is copied by copying two lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise

from bireme.resources.filters import NodeFilter
from bireme.resources.pool import listed
from bireme.value import Value

Places = tuple[tuple[int, int], ...]
"""A node's number in the pool and a set of its slots, for each of some nodes; in the pool's order."""


class Shape(Value):
    """What is asked for: ``slots`` slots on each of ``nodes`` different nodes."""

    nodes: int = 1
    slots: int = 1

    @property
    def size(self) -> int:
        """How many slots these are together."""
        return self.nodes * self.slots

    def __str__(self) -> str:
        return f"{self.nodes}x{self.slots}"


class SlotReservation(Value):
    """What is given: slots by their ids, on one or several nodes, in the pool's order."""

    places: tuple[tuple[str, tuple[str, ...]], ...]

    @property
    def size(self) -> int:
        """How many slots these are together."""
        return sum(len(slots) for _, slots in self.places)

    def include(self) -> str:
        """For ``bireme run --include``: ``node1:0,1@node2:3``."""
        return "@".join(str(NodeFilter(host, slots)) for host, slots in self.places)


class FreeSlots:
    """The slots of a pool that nobody has; at first, all.

    A node that is away gives no slots, but who has some of it keeps them until they are given back.

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
        # By number of slots: the nodes that have at least so many, in all and free. The last of these sets is empty.
        self._sized = [_set(len(slots) >= count for slots in self.pool.values()) for count in range(most + 2)]
        self._roomy = list(self._sized)

    def copy(self) -> FreeSlots:
        """Another, which has its own ways from here on."""
        other = object.__new__(FreeSlots)
        other.__dict__.update(self.__dict__)
        other._free, other._roomy = list(self._free), list(self._roomy)
        return other

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def leave(self, host: str) -> None:
        """The node gives no slots any more. Raises KeyError: the pool has no such host."""
        self._present &= ~(1 << self.numbers[host])

    def come(self, host: str) -> None:
        """The node gives slots again. Raises KeyError: the pool has no such host."""
        self._present |= 1 << self.numbers[host]

    def nodes(self, hosts: Iterable[str]) -> int:
        """These nodes as a set; hosts that the pool has not are left out."""
        return _union(1 << self.numbers[host] for host in hosts if host in self.numbers)

    # -- slots ---------------------------------------------------------------------------------------------------------

    def carries(self, shape: Shape, avoid: int = 0) -> bool:
        """Whether the nodes that are here could carry the shape if all were idle, those of `avoid` left out."""
        return self._enough(self._sized, shape, avoid)

    def fits(self, shape: Shape, avoid: int = 0) -> bool:
        """Whether there is room for the shape now, on nodes that are not in `avoid`."""
        return self._enough(self._roomy, shape, avoid)

    def first(self, shape: Shape, avoid: int = 0) -> Places | None:
        """The first nodes with enough free slots, and the first of these; None where there is no room."""
        if not self.fits(shape, avoid):
            return None
        return self._places(_lowest(self._roomy[shape.slots] & self._present & ~avoid, shape.nodes), shape)

    def tightest(self, shape: Shape, avoid: int = 0) -> Places | None:
        """The nodes where the fewest free slots are left over, so that wide nodes stay whole; None: no room."""
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
        """These slots are not free any more; those that were not free stay so."""
        for node, slots in places:
            self._set_free(node, self._free[node] & ~slots)

    def give(self, places: Places) -> None:
        """These slots are free."""
        for node, slots in places:
            self._set_free(node, self._free[node] | slots)

    def kept_for(self, shape: Shape, avoid: int = 0) -> Places:
        """Every free slot that the shape could need, whichever slots become free next.

        On each node that has slots enough, free or not, these are the first free ones, as many as it needs.
        """
        nodes = self._sized[shape.slots] & self._present & ~avoid
        return tuple((node, _lowest(self._free[node], shape.slots)) for node in _members(nodes))

    # -- in words ------------------------------------------------------------------------------------------------------

    def reservation(self, places: Places) -> SlotReservation:
        """The places by their names."""
        return SlotReservation(tuple((self._hosts[node], self._ids(node, slots)) for node, slots in places))

    def view(self) -> dict[str, tuple[str, ...]]:
        """The free slots of each node that is here, in the pool's order."""
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
    """Why no nodes of the pool could ever carry the shape, in one line; empty where some could."""
    if shape.nodes < 1 or shape.slots < 1:
        return f"{shape.slots} slots on {shape.nodes} nodes: at least one slot on one node is needed"
    able = [host for host, slots in pool.items() if len(slots) >= shape.slots]
    if len(able) >= shape.nodes:
        return ""
    asked = f"{shape.slots} {'slot' if shape.slots == 1 else 'slots'}"
    if shape.nodes > len(pool):
        return f"{shape.nodes} nodes are asked for, the pool has {len(pool)}: {listed(pool)}"
    if able:
        return f"{asked} on each of {shape.nodes} nodes are asked for, so many are only on {listed(able)}"
    largest = max(pool, key=lambda host: len(pool[host]))
    return f"{asked} on one node are asked for, no node has more than {len(pool[largest])} ({largest})"


def _set(members: Iterable[bool]) -> int:
    return _union(1 << number for number, member in enumerate(members) if member)


def _union(sets: Iterable[int]) -> int:
    union = 0
    for each in sets:
        union |= each
    return union


def _lowest(members: int, count: int) -> int:
    """The set of the first ``count`` members, of all where there are fewer."""
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
