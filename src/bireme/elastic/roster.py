"""The nodes of an elastic job: which take part, which are gone, when one is looked for again. Pure: seconds in."""

from __future__ import annotations

from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Iterable

FIRST_LOOK = 1.0
"""Seconds between the loss of a node and the first look for it: an agent that was killed leaves a node that is well."""
LONGEST_WAIT = 3600.0
"""Seconds that a node is left alone, however often it was lost."""


class Absence(Value):
    """Why a node is not there, when it is looked for next, and how long to wait if it is not found then, in seconds."""

    why: str
    next_look: float
    wait: float


class Roster:
    """All nodes that an elastic job may use, in the pool's order.

    A node is *present* until it is lost, *absent* until it is found again, *drained* until it is called back. Present
    nodes beyond the most that the job may have are spares.

    Args:
        names: the nodes of the pool.
        min_nodes: with fewer the job waits.
        max_nodes: it uses no more; None: all.
        interval: seconds at most between two looks for a node.
        window: seconds that a node must have been there until its earlier losses are forgiven.
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
        """The nodes that are there, as far as is known."""
        return tuple(name for name in self._names if name not in self._absent and name not in self._drained)

    def invited(self) -> tuple[str, ...]:
        """The nodes of the next rendezvous, in the pool's order: those that have worked stay, as many as may be."""
        present = self.present
        if self.max_nodes is None or len(present) <= self.max_nodes:
            return present
        ranked = sorted(present, key=lambda name: name not in self._working)
        chosen = set(ranked[: self.max_nodes])
        return tuple(name for name in present if name in chosen)

    @property
    def lacking(self) -> int:
        """How many nodes more the job needs."""
        return max(0, self.min_nodes - len(self.present))

    @property
    def has_room(self) -> bool:
        """Whether the job could use another node than those that are there."""
        return self.max_nodes is None or len(self.present) < self.max_nodes

    def working(self, names: Iterable[str]) -> None:
        """These take part in the job now."""
        self._working = tuple(names)

    # -- what happens to nodes -------------------------------------------------------------------

    def lose(self, names: Iterable[str], why: str, now: float) -> None:
        """Nodes are gone. The more often one was lost, the later it is looked for: it would stop the others again."""
        for name in names:
            if name in self._names and name not in self._drained:
                well = now - self._found.get(name, now)
                losses = self._losses[name] = self._losses.get(name, 0) + 1 if well < self._window else 1
                wait = min(FIRST_LOOK * 2.0 ** (losses - 1), LONGEST_WAIT)
                self._absent[name] = Absence(why, now + wait, wait)

    def missed(self, name: str, now: float, why: str = "") -> bool:
        """A look has not found it fit; return whether the reason is news."""
        absence = self._absent.get(name)
        if absence is None:
            return False
        wait = min(absence.wait * 2, max(self._interval, absence.wait))
        self._absent[name] = absence.replace(next_look=now + wait, wait=wait, why=why or absence.why)
        return bool(why) and why != absence.why

    def find(self, name: str, now: float) -> None:
        """It is there."""
        self._absent.pop(name, None)
        self._found[name] = now

    def add(self, names: Iterable[str], now: float) -> tuple[str, ...]:
        """The pool as it is now; return the nodes that it had not before, which are looked for at once."""
        new = tuple(name for name in names if name not in self._names)
        for name in new:
            self._names.append(name)
            self._absent[name] = Absence("new", now, FIRST_LOOK)
        return new

    def drain(self, name: str) -> bool:
        """It shall not be used any more; return whether it was not drained before."""
        news = name not in self._drained
        self._drained.add(name)
        return news

    def call_back(self, name: str, now: float) -> bool:
        """It may be used again, if it is found; return whether it was drained."""
        if name not in self._drained:
            return False
        self._drained.discard(name)
        self._absent[name] = Absence("was drained", now, FIRST_LOOK)
        return True

    # -- looking for them ------------------------------------------------------------------------

    def due(self, now: float, besides: Container[str] = ()) -> tuple[str, ...]:
        """The absent nodes that are to be looked for now, besides these."""
        return tuple(name for name, absence in self._sought(besides) if absence.next_look <= now)

    def next_look(self, besides: Container[str] = ()) -> float | None:
        """The second at which the next node is due, besides these; None: there is none to look for."""
        return min((absence.next_look for _, absence in self._sought(besides)), default=None)

    def _sought(self, besides: Container[str]) -> list[tuple[str, Absence]]:
        """Who is absent, and not because it was drained, in the pool's order."""
        absent = [(name, self._absent[name]) for name in self._names if name in self._absent]
        return [(name, absence) for name, absence in absent if name not in self._drained and name not in besides]

    def missing(self) -> str:
        """Who is not there and why, for a person."""
        whys = [
            f"{name} ({'drained' if name in self._drained else self._absent[name].why})"
            for name in self._names
            if name in self._drained or name in self._absent
        ]
        return ", ".join(whys)
