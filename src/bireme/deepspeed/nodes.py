"""DeepSpeed's ``Node`` and ``Reservation``: the slots of a host, and reserved ones."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Node:
    """A host and its slots.

    Args:
        host: its name.
        max_slots: the number of its slots, counted from 0, or the list of them.
    """

    def __init__(self, host: str, max_slots: int | Sequence[int]) -> None:
        self.host = host
        self.slots = tuple(range(max_slots) if isinstance(max_slots, int) else max_slots)
        self.idle_slots = list(self.slots)
        self.max_slots = len(self.slots)

    def reserve_slots(self, slot_request: int) -> list[int] | None:
        """Reserve this many idle slots; None if there are fewer."""
        if len(self.idle_slots) < slot_request:
            return None
        taken, self.idle_slots = self.idle_slots[:slot_request], self.idle_slots[slot_request:]
        return taken

    def restore_slots(self, slots: Iterable[int]) -> None:
        """Make slots idle again; those already idle stay so."""
        self.idle_slots = sorted({*self.idle_slots, *slots})


class Reservation:
    """Reserved slots of a node."""

    def __init__(self, node: Node, slots: list[int]) -> None:
        self.node, self.slots = node, slots

    def restore_slots(self) -> None:
        """Make the slots idle again."""
        self.node.restore_slots(self.slots)

    def desc(self) -> str:
        """The slots as DeepSpeed writes them: ``host:0,1@``."""
        return f"{self.node.host}:{','.join(map(str, self.slots))}@"


def reserve(nodes: Iterable[Node], num_nodes: int, num_gpus: int) -> list[Reservation] | None:
    """Reserve slots on the first nodes that have enough; None, and nothing reserved, if there are too few.

    All nodes are reserved in one step, so that two experiments cannot wait for each other's slots.

    Args:
        num_gpus: how many slots on each.
    """
    reservations: list[Reservation] = []
    for node in nodes:
        if len(reservations) == num_nodes:
            break
        if slots := node.reserve_slots(num_gpus):
            reservations.append(Reservation(node, slots))
    if len(reservations) == num_nodes:
        return reservations
    for reservation in reservations:
        reservation.restore_slots()
    return None


def pool_of(places: Iterable[tuple[str, Sequence[int]]]) -> dict[str, tuple[str, ...]]:
    """The hosts and slots as a resource pool: host → slot ids."""
    return {host: tuple(map(str, slots)) for host, slots in places}
