"""The roster of an elastic job: which nodes are present, absent or drained, and when to probe one again. Pure."""

from __future__ import annotations

from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Iterable

FIRST_LOOK = 1.0
"""Seconds from the loss of a node to its first probe: if only its agent was killed, the node is well."""
LONGEST_WAIT = 3600.0
"""The longest time, in seconds, before a node is probed again, however often it was lost."""


class Absence(Value):
    """A node that is absent: why, when to probe it next, and the seconds to wait before that."""

    why: str
    next_look: float
    wait: float


class Roster:
    """All nodes that an elastic job may use, in the pool's order.

    A node is *present* until it is lost, *absent* until it is found again, and *drained* until it is taken back.
    Present nodes beyond ``max_nodes`` are spares. All times are seconds of one clock.

    Args:
        max_nodes: the most nodes that the job uses; None: all.
        interval: seconds at most between two probes of a node.
        window: seconds that a node must be present until its earlier losses are forgiven.
    """

    def __init__(
        self,
        names: Iterable[str],
        *,
        min_nodes: int,
        max_nodes: int | None,
        interval: float,
        window: float = float("inf"),
    ) -> None:
        self.min_nodes, self.max_nodes = min_nodes, max_nodes
        self._names = list(names)
        self._interval, self._window = interval, window
        self._absent: dict[str, Absence] = {}
        self._drained: set[str] = set()
        self._losses: dict[str, int] = {}
        self._found: dict[str, float] = {}
        self._working: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All nodes, in the pool's order."""
        return tuple(self._names)

    @property
    def present(self) -> tuple[str, ...]:
        """The nodes that are present, in the pool's order."""
        return tuple(name for name in self._names if name not in self._absent and name not in self._drained)

    def invited(self) -> tuple[str, ...]:
        """The nodes of the next epoch, in the pool's order; nodes of the last epoch are preferred over spares."""
        present = self.present
        if self.max_nodes is None or len(present) <= self.max_nodes:
            return present
        ranked = sorted(present, key=lambda name: name not in self._working)
        chosen = set(ranked[: self.max_nodes])
        return tuple(name for name in present if name in chosen)

    @property
    def lacking(self) -> int:
        """How many more nodes the job needs."""
        return max(0, self.min_nodes - len(self.present))

    @property
    def has_room(self) -> bool:
        """Whether the job could use more nodes than are present."""
        return self.max_nodes is None or len(self.present) < self.max_nodes

    def working(self, names: Iterable[str]) -> None:
        """Note the nodes of the present epoch."""
        self._working = tuple(names)

    # -- what happens to nodes -------------------------------------------------------------------

    def lose(self, names: Iterable[str], why: str, now: float) -> None:
        """Make nodes absent.

        Each further loss of a node doubles the time until its first probe, since its return stops the other nodes.
        """
        for name in names:
            if name in self._names and name not in self._drained:
                well = now - self._found.get(name, now)
                losses = self._losses[name] = self._losses.get(name, 0) + 1 if well < self._window else 1
                wait = min(FIRST_LOOK * 2.0 ** (losses - 1), LONGEST_WAIT)
                self._absent[name] = Absence(why, now + wait, wait)

    def missed(self, name: str, now: float, why: str = "") -> bool:
        """A probe found the node unfit or not at all; double the wait up to the interval.

        Args:
            why: the reason; "": as before.

        Returns:
            Whether the reason is a new one.
        """
        absence = self._absent.get(name)
        if absence is None:
            return False
        wait = min(absence.wait * 2, max(self._interval, absence.wait))
        self._absent[name] = absence.replace(next_look=now + wait, wait=wait, why=why or absence.why)
        return bool(why) and why != absence.why

    def find(self, name: str, now: float) -> None:
        """Make a node present."""
        self._absent.pop(name, None)
        self._found[name] = now

    def add(self, names: Iterable[str], now: float) -> tuple[str, ...]:
        """Add the nodes that are not yet in the roster, to be probed at once; return them."""
        new = tuple(name for name in names if name not in self._names)
        for name in new:
            self._names.append(name)
            self._absent[name] = Absence("new", now, FIRST_LOOK)
        return new

    def drain(self, name: str) -> bool:
        """Drain a node; return whether it was not drained before."""
        news = name not in self._drained
        self._drained.add(name)
        return news

    def call_back(self, name: str, now: float) -> bool:
        """End a node's drain, and probe it at once; return whether it was drained."""
        if name not in self._drained:
            return False
        self._drained.discard(name)
        self._absent[name] = Absence("was drained", now, FIRST_LOOK)
        return True

    # -- when to probe ------------------------------------------------------------------------

    def due(self, now: float, besides: Container[str] = ()) -> tuple[str, ...]:
        """The absent nodes that are due for a probe, without those of ``besides``."""
        return tuple(name for name, absence in self._sought(besides) if absence.next_look <= now)

    def next_look(self, besides: Container[str] = ()) -> float | None:
        """When the next probe is due, without the nodes of ``besides``; None: never."""
        return min((absence.next_look for _, absence in self._sought(besides)), default=None)

    def _sought(self, besides: Container[str]) -> list[tuple[str, Absence]]:
        """The absent nodes that are not drained, in the pool's order."""
        absent = [(name, self._absent[name]) for name in self._names if name in self._absent]
        return [(name, absence) for name, absence in absent if name not in self._drained and name not in besides]

    def missing(self) -> str:
        """The missing nodes and the reasons, for messages."""
        whys = [
            f"{name} ({'drained' if name in self._drained else self._absent[name].why})"
            for name in self._names
            if name in self._drained or name in self._absent
        ]
        return ", ".join(whys)
