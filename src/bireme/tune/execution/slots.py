"""Slots: what an experiment requests, what is reserved for it, and which slots of the pool are free."""

from __future__ import annotations

from collections.abc import Collection, Mapping

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
        # How many present nodes have exactly this many free slots. It answers `fits`, which is asked most, by itself.
        self._counts = [0] * (1 + max(map(len, pool.values()), default=0))
        for slots in pool.values():
            self._counts[len(slots)] += 1

    def copy(self) -> FreeSlots:
        """An independent copy."""
        other = FreeSlots({})
        other.pool, other._free, other._absent = self.pool, dict(self._free), set(self._absent)
        other._counts = list(self._counts)
        return other

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def leave(self, host: str) -> None:
        """Make a node absent: it gives no slots. Raises KeyError: no such host in the pool."""
        free = len(self._free[host])
        if host not in self._absent:
            self._absent.add(host)
            self._counts[free] -= 1

    def come(self, host: str) -> None:
        """Make a node present again. Raises KeyError: no such host in the pool."""
        free = len(self._free[host])
        if host in self._absent:
            self._absent.remove(host)
            self._counts[free] += 1

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

    def fits(self, shape: Shape, avoid: Collection[str] = ()) -> bool:
        """Whether there is room for the shape now on the present nodes outside ``avoid``."""
        able = sum(self._counts[shape.slots :])
        if avoid:
            able -= sum(host not in self._absent and len(self._free.get(host, ())) >= shape.slots for host in avoid)
        return _valid(shape) and able >= shape.nodes

    def find(self, shape: Shape, avoid: Collection[str] = (), *, tight: bool = False) -> SlotReservation | None:
        """Room for the shape on the present nodes outside ``avoid``: the first free slots of the first nodes.

        Args:
            tight: prefer the nodes where the fewest free slots are left over, so that others stay whole.

        Returns:
            The slots, which are not taken yet; None if there is no room.
        """
        if not self.fits(shape, avoid):
            return None
        able = self._able(self._free, shape, avoid)
        if tight:
            chosen = set(sorted(able, key=lambda host: len(self._free[host]))[: shape.nodes])
            able = [host for host in able if host in chosen]
        return SlotReservation(tuple((host, self._free[host][: shape.slots]) for host in able[: shape.nodes]))

    def take(self, reservation: SlotReservation) -> None:
        """Take slots; those already taken stay taken."""
        for host, slots in reservation.places:
            self._set_free(host, tuple(slot for slot in self._free[host] if slot not in slots))

    def give(self, reservation: SlotReservation) -> None:
        """Free slots."""
        for host, slots in reservation.places:
            free = {*self._free[host], *slots}
            self._set_free(host, tuple(slot for slot in self.pool[host] if slot in free))

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

    def _set_free(self, host: str, free: tuple[str, ...]) -> None:
        if host not in self._absent:
            self._counts[len(self._free[host])] -= 1
            self._counts[len(free)] += 1
        self._free[host] = free


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
