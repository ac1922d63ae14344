"""The ranks of a simulated job: they work together, and when one dies, others may fail because it is missing."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from tests.simulation.truth import Truth, Violation
from tests.simulation.world import World

if TYPE_CHECKING:
    from tests.simulation.nodes import Node, Rank

_MUCH = b"a line\n" * 200_000 + b"unfinished"
"""More output than an agent may send before the runner has taken it."""
_SHARED = ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Epoch:
    """The ranks of one start of the job."""

    def __init__(self, number: int, world_size: int) -> None:
        self.number, self.world_size = number, world_size
        self.ranks: list[Rank] = []
        self.hurt = False


class Training:
    """The program of all ranks.

    Args:
        world: the world.
        truth: is told of failures.
        work: seconds from the moment at which all ranks are up to their success.
    """

    def __init__(self, world: World, truth: Truth, work: float) -> None:
        self.world, self.truth, self.work = world, truth, work
        self.epochs: dict[str, Epoch] = {}
        self.nodes: dict[str, Node] = {}
        self.fails_alone = world.random.random() < 0.5
        """Whether ranks fail when a peer is missing; otherwise they hang."""
        self.planned: dict[int, tuple[float, int, int]] = {}
        """Epoch to (seconds after the start, index of the rank, code) of a failure."""
        self.said: set[tuple[int, float]] = set()

    def begin(self, rank: Rank) -> None:
        job = rank.job
        if job not in self.epochs:
            self.epochs[job] = Epoch(len(self.epochs), int(rank.start.env["WORLD_SIZE"]))
        epoch = self.epochs[job]
        epoch.ranks.append(rank)
        self._check_place(rank, epoch)
        self._check_epochs(rank, epoch)
        if self.world.random.random() < 0.3:
            rank.after(
                self.world.random.uniform(0.0, self.work),
                lambda: rank.write(b"a prompt" if rank.rank % 2 else b"a line\n"),
            )
        if self.world.rare.random() < 0.05:
            rank.after(self.world.rare.uniform(0.0, self.work), lambda: rank.write(_MUCH))
        if len(epoch.ranks) == epoch.world_size:
            for other in epoch.ranks:
                jitter = self.world.random.uniform(0.0, 0.05)
                other.after(self.work + jitter, lambda other=other: self._finish(other, epoch))  # type: ignore[misc]
        planned = self.planned.get(epoch.number)
        if planned is not None and planned[1] % epoch.world_size == rank.rank:
            rank.after(planned[0], lambda: self.fail(rank, planned[2]))

    def _check_place(self, new: Rank, epoch: Epoch) -> None:
        """All ranks of an epoch are told the same of it, each has a place of its own, and they meet on the first node.

        With several nodes this is no address that each of them would take for its own.
        """
        told = [[rank.start.env[name] for name in _SHARED] for rank in (epoch.ranks[0], new)]
        if told[0] != told[1]:
            raise Violation(f"rank {new.rank} is told {told[1]}, and rank {epoch.ranks[0].rank} {told[0]}")
        places = [(rank.node.name, rank.start.env["LOCAL_RANK"]) for rank in epoch.ranks]
        if len(set(places)) < len(places) or len({rank.rank for rank in epoch.ranks}) < len(places):
            raise Violation(f"rank {new.rank} has the place {places[-1]} of another, or its number")
        if not 0 <= new.rank < epoch.world_size or not 0 <= int(places[-1][1]) < new.node.slots:
            raise Violation(f"there is no rank {new.rank} of {epoch.world_size} at {places[-1]}")
        address, nodes = told[1][1], {name for name, _ in places}
        first = {rank.node.name for rank in epoch.ranks if rank.rank == 0}
        if (len(nodes) > 1 and address not in self.nodes) or (first and address not in (*first, "127.0.0.1")):
            raise Violation(f"ranks on {sorted(nodes)}, the first of them on {first or 'none yet'}, meet at {address}")

    def _check_epochs(self, new: Rank, epoch: Epoch) -> None:
        """No two epochs live at once, but on a node that the runner has lost."""
        for other in self.epochs.values():
            for rank in other.ranks if other is not epoch else ():
                for process in (rank, *rank.left):
                    # What has cleared its environment is not counted; what a lost node starts late, it ends by itself.
                    lost = rank.node.given_up or new.node.given_up
                    if process.status is None and process.marked and (rank.node is new.node or not lost):
                        raise Violation(
                            f"rank {new.rank} of epoch {epoch.number} starts on {new.node.name}, while rank {rank.rank}"
                            f" of epoch {other.number} lives on {rank.node.name}"
                        )

    def _finish(self, rank: Rank, epoch: Epoch) -> None:
        if not epoch.hurt:  # otherwise it waits for its peers
            rank.end(0)

    def fail(self, rank: Rank, code: int) -> None:
        """A rank fails by itself."""
        if rank.status is None:
            self.truth.rank_failed(rank.node, rank.rank, code if code < 256 else 128 + (code >> 8))
            rank.end(code << 8 if code < 256 else code >> 8)

    def ended(self, rank: Rank) -> None:
        epoch = self.epochs.get(rank.job)
        self.world.note(f"rank {rank.rank} on {rank.node.name} has ended with status {rank.status}")
        if epoch is None or rank.status == 0:
            return
        epoch.hurt = True
        if self.fails_alone:
            for other in epoch.ranks:
                if other is not rank and other.status is None:
                    code = 100 + (other.rank * 7 + epoch.number) % 27
                    seconds = self.world.random.choice((0.05, 0.5, 3.0)) * self.world.random.uniform(1.0, 2.0)
                    other.after(seconds, lambda other=other, code=code: self.fail(other, code))  # type: ignore[misc]

    def seen(self, rank: Rank) -> None:
        """The guardian of a rank has seen its end."""
        self.said.add((rank.rank, rank.ended_at))
        self.truth.seen(rank.node, rank.rank, rank.ended_at)

    def reaches(self, node: Node, address: str) -> bool:
        first = self.nodes[address]
        return first is node or (first.host.up and not any(node.cut) and not any(first.cut))

    def kill(self, rank: Rank) -> None:
        """Kill a rank from outside."""
        self.fail(rank, int(signal.SIGKILL) << 8)
