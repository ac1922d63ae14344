"""What really happened in a run, and whether the verdict agrees: the causes of an end, each with its true time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bireme.result.outcome import Outcome

if TYPE_CHECKING:
    from tests.simulation.nodes import Node
    from tests.simulation.world import Host, World

SEEN = 0.03
"""Seconds that a process may take, in a run, to see what the kernel tells it."""
NEWS = 0.25
"""Seconds by which the runner dates the end of a channel back (`bireme.cluster.cluster_crew`)."""


class Violation(BaseException):
    """An invariant does not hold. Not an `Exception`: nobody handles it on its way."""


class Cause:
    """Something that may end the job.

    Attributes:
        kind: as in `Outcome.cause`.
        when: its true time.
        earliest, latest: the times between which the protocol may date it.
        node: on which it happened; "": on none.
        rank, code: of a rank that failed.
        how: the runner learns that a node is lost (see `Truth.node_lost`); "": it is not.
        certain: whether the runner must learn of it.
        orphan: whether the runner had given up the node before.
        clock: what the node's clock showed then.
        apart: seconds between the clocks of the node and of the runner then; ``None``: that no longer matters.
    """

    def __init__(self, kind: str, when: float, earliest: float, latest: float) -> None:
        self.kind, self.when, self.earliest, self.latest = kind, when, earliest, latest
        self.node = self.how = ""
        self.rank = self.code = -1
        self.certain = self.orphan = False
        self.clock = 0.0
        self.apart: float | None = None

    def __repr__(self) -> str:
        what = f"rank {self.rank} with {self.code}" if self.rank >= 0 else self.node
        sure = "" if self.certain else "?"
        return f"{self.kind}{sure} {what} at {self.when:.4f} ({self.earliest:.4f}-{self.latest:.4f})"


class Truth:
    """All causes of one run."""

    def __init__(self, world: World, heartbeat: float) -> None:
        self.world, self.heartbeat = world, heartbeat
        self.runner: Host | None = None
        self.causes: list[Cause] = []
        self.runner_halts: list[tuple[float, float]] = []
        self.elastic = self.vague = False
        """Whether the runner was suspended, which forgives silence."""

    def _read(self, when: float) -> float:
        """When the runner sees, at the latest, what reaches it then."""
        for begin, end in sorted(self.runner_halts):
            if begin <= when + SEEN and when <= end:
                when = end
        return when + SEEN

    def rank_failed(self, node: Node, rank: int, code: int) -> None:
        now = self.world.now
        doubt = min(node.trip, node.measured) / 2 + SEEN
        for begin, end in (*node.host.frozen_times, *self.runner_halts):
            if begin <= now <= end + self.heartbeat:  # its clock may have stood still, and was not asked since
                doubt += end - begin
        cause = Cause("rank failed", now, now - doubt, now + doubt)
        cause.node, cause.rank, cause.code, cause.orphan = node.name, rank, code, node.given_up
        cause.clock, cause.apart = node.host.clock(), self._apart(node)
        self.causes.append(cause)
        self.world.note(f"{cause}")

    def seen(self, node: Node, rank: int, when: float) -> None:
        """The guardian sees that a rank has ended, and takes the time: later if its machine stood still."""
        for cause in self.causes:
            if (cause.node, cause.rank, cause.when) == (node.name, rank, when):
                cause.latest += max(0.0, node.host.clock() - cause.clock - SEEN)

    def node_lost(self, node: Node, how: str, *, certain: bool) -> None:
        """The node's part of the job ends: by a channel that ends, by silence, by its guardian's end, by a signal."""
        now = self.world.now
        trip = node.trip + SEEN
        if how == "channel":
            begin, end = now - NEWS, self._read(now + trip) - NEWS
        elif how in ("silence", "power"):
            begin, end = now - self.heartbeat / 4 - 2 * trip, self._read(now + trip)  # it counts from what was read
        elif how == "late silence":  # the way to the node is cut: it still sends what it has to say
            begin, end = now - self.heartbeat / 4 - 2 * trip, now + 1.5 * self.heartbeat
        elif how in ("signal", "shutdown"):
            begin, end = now - NEWS - trip / 2, now - NEWS + trip / 2 + SEEN
        elif how == "launchers":
            begin, end = now - 2 * NEWS, self._read(now) - NEWS
        else:  # its guardian or watcher
            begin, end = now - trip / 2, now + trip / 2 + 2 * SEEN
        cause = Cause("agent lost", now, begin, end)
        cause.node, cause.how, cause.certain = node.name, how, certain
        if how in ("guardian", "signal", "shutdown"):
            cause.apart = self._apart(node)
        self.causes.append(cause)
        self.world.note(f"{cause} by {how}")

    def _apart(self, node: Node) -> float:
        assert self.runner is not None
        return node.host.offset - self.runner.offset

    def learned(self, node: Node, rank: int, *how: str) -> None:
        """The runner learns what happened by the node's clock: if one of the clocks has stepped since, it errs."""
        for cause in self.causes:
            if cause.node != node.name or cause.rank != rank or cause.how not in how or cause.apart is None:
                continue
            step, cause.apart = self._apart(node) - cause.apart, None
            if step:
                doubt = node.measured / 2
                cause.earliest -= max(0.0, step) + doubt
                cause.latest += max(0.0, -step) + doubt

    def signal(self, signum: int) -> None:
        now = self.world.now
        cause = Cause("signal", now, now, self._read(now))
        cause.code, cause.certain = signum, True
        self.causes.append(cause)
        self.world.note(f"{cause} {signum}")

    def settle(self, nodes: dict[str, Node], said: set[tuple[int, float]]) -> None:
        """Find out which failures of ranks the runner must have learned of.

        Args:
            nodes: by name.
            said: (rank, time of its end) of what guardians have reported.
        """
        for cause in self.causes:
            if cause.how == "shutdown":
                cause.certain = cause.certain and not _during(cause.when, nodes[cause.node].disturbed)
            elif cause.how == "channel":  # its end may be lost on the way, and is sent again late
                node = nodes[cause.node]
                lost = any(0.0 <= begin - cause.when <= node.trip and end > begin for begin, end in node.disturbed)
                cause.certain = cause.certain and not lost
            elif cause.kind == "rank failed" or cause.how == "guardian":
                node = nodes[cause.node]
                well = not cause.orphan and not any(0.0 <= when - cause.when <= 2.0 for when in node.broken)
                well = well and not node.given_up
                if cause.how == "guardian":  # nobody can see it while the machine or the agent stands still
                    still = [*node.host.frozen_times, *(time for agent in node.agents for time in agent.stops)]
                    cause.certain = cause.certain and well and not _during(cause.when, still)
                else:
                    cause.certain = well and (cause.rank, cause.when) in said

    def check(self, outcome: Outcome, *, begin: float, started: bool, disturbed_before: bool) -> None:
        """Compare an outcome with what happened since ``begin``.

        Raises:
            Violation: it names another cause than the first.
        """
        causes = [cause for cause in self.causes if cause.when >= begin - self.heartbeat]
        certain = [cause for cause in causes if cause.certain and cause.when >= begin]
        if outcome.cause == "ok":
            failed = [cause for cause in certain if cause.kind == "rank failed"]
            if failed:
                raise Violation(f"the job succeeded, but {failed[0]}")
            return
        if self.elastic and outcome.cause == "membership":
            return  # something has happened in an earlier epoch
        if not started or outcome.cause in ("unfit", "membership", "too few nodes"):
            if not causes and not disturbed_before:
                raise Violation(f"nothing happened, but the job ended: {outcome.cause}, {outcome.note}")
            return
        chosen = [cause for cause in causes if self._fits(cause, outcome)]
        if not chosen:
            raise Violation(f"{_words(outcome)}; there was no such thing, but {causes}")
        if self.vague or (self.elastic and outcome.cause == "signal"):  # it may have come after the last epoch
            return
        latest = min(certain, key=lambda cause: cause.latest, default=None)
        if latest is not None and all(latest.latest < cause.earliest for cause in chosen):
            raise Violation(f"{_words(outcome)}; but before: {latest}, not {chosen}")

    def _fits(self, cause: Cause, outcome: Outcome) -> bool:
        if cause.kind != outcome.cause:
            return False
        if cause.kind == "rank failed":
            first = outcome.first
            return first is not None and (first.rank, first.code) == (cause.rank, cause.code) == (
                first.rank,
                outcome.exit_code,
            )
        if cause.kind == "signal":
            return outcome.exit_code == 128 + cause.code
        return not outcome.hosts or cause.node in outcome.hosts or not cause.node


def _during(when: float, times: list[tuple[float, float]]) -> bool:
    """Whether one of these times is within two seconds of ``when``, or includes it."""
    return any(begin <= when + 2.0 and when <= end for begin, end in times)


def _words(outcome: Outcome) -> str:
    first = outcome.first
    what = f"rank {first.rank} with {first.code}" if first is not None else f"{outcome.note} {outcome.hosts}"
    return f"the outcome is {outcome.exit_code}, {outcome.cause}: {what}"
