"""DeepSpeed's ``Node`` and ``Reservation``: slots of a host, and some of them."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Node:
    """A host and its slots.

    Args:
        host: its name.
        max_slots: how many slots it has, numbered from 0; or which.
    """

    def __init__(self, host: str, max_slots: int | Sequence[int]) -> None:
        self.host = host
        self.slots = tuple(range(max_slots) if isinstance(max_slots, int) else max_slots)
        self.idle_slots = list(self.slots)
        self.max_slots = len(self.slots)

    def reserve_slots(self, slot_request: int) -> list[int] | None:
        """So many idle slots, which are idle no more; None: there are fewer."""
        if len(self.idle_slots) < slot_request:
            return None
        taken, self.idle_slots = self.idle_slots[:slot_request], self.idle_slots[slot_request:]
        return taken

    def restore_slots(self, slots: Iterable[int]) -> None:
        """They are idle again; those that were idle stay so."""
        self.idle_slots = sorted({*self.idle_slots, *slots})


class Reservation:
    """Some slots of a node."""

    def __init__(self, node: Node, slots: list[int]) -> None:
        self.node, self.slots = node, slots

    def restore_slots(self) -> None:
        """Give them back."""
        self.node.restore_slots(self.slots)

    def desc(self) -> str:
        """``host:0,1@``."""
        return f"{self.node.host}:{','.join(map(str, self.slots))}@"


def reserve(nodes: Iterable[Node], num_nodes: int, num_gpus: int) -> list[Reservation] | None:
    """So many slots on each of so many nodes, the first that have enough; None: they have not, and keep what they have.

    Reserving several nodes is one step, so that no two experiments wait for each other's slots.
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
    """Hosts and slots as the core names them."""
    return {host: tuple(map(str, slots)) for host, slots in places}
