"""One run of a simulated job on a few nodes, with the faults that its seed decides, and the check of its invariants."""

from __future__ import annotations

import os
import traceback
from collections import Counter

from bireme.cluster.agent_handle import AgentHandle
from bireme.cluster.cluster_crew import ClusterCrew
from bireme.cluster.connections import NodeConnections
from bireme.cluster.node_selection import DeclaredPool, select
from bireme.errors import BiremeError
from bireme.job import JobSpec, Program
from bireme.launching import many_nodes
from bireme.resources.hostfile import HostEntry
from bireme.result.outcome import Outcome, RankEnd
from bireme.value import Value
from tests.simulation.descriptors import Killed, RunnerProcess
from tests.simulation.node_faults import Faults
from tests.simulation.nodes import AgentProcess, Node, RunnerMachine, Stray
from tests.simulation.training import Training
from tests.simulation.truth import NEWS, Truth, Violation
from tests.simulation.world import DeadlockError, Host, World

ENVIRON = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}
_QUIET_END = 1.0
"""Seconds that the end of a job takes in which nothing was disturbed."""
_PATIENCE = 60.0
"""Seconds of silence that an agent forgives before it was told what the runner regards as silence."""
_SLACK = 0.2
"""Seconds, beyond the bound, from a silence to its detection: a machine that has to do everything else first."""


class Result(Value):
    """What came of a run.

    Attributes:
        seed: of the run.
        steps: how many events it had.
        digest: a checksum of their times.
        violation: the invariant that did not hold; "": none.
        words: the outcome, or why there is none.
        log: what happened.
    """

    seed: int
    steps: int
    digest: int
    violation: str
    words: str
    log: tuple[str, ...]


class Run:
    """A job, and all that surrounds it.

    Attributes:
        disturbed_before: whether something went wrong that may keep the job from starting.
    """

    elastic = False
    current: Run | None = None
    """The run in progress: what is observed in the real code is reported to it."""

    def __init__(self, seed: int, *, keep_log: bool = False) -> None:
        self.seed = seed
        world = self.world = World(seed, keep_log=keep_log)
        random = world.random
        self.heartbeat = random.choice((2.0, 4.0, 10.0))
        self.grace = random.choice((0.5, 2.0, 6.0))
        self.work = random.choice((0.5, 4.0, 15.0)) * random.uniform(0.8, 1.2)
        self.truth = Truth(world, self.heartbeat)
        self.training = Training(world, self.truth, self.work)
        self.host = self.truth.runner = Host(world, "runner")
        self.process = RunnerProcess(self.host, "runner")
        names = [f"203.0.113.{number + 1}" for number in range(random.choice((1, 2, 2, 3, 4)))]
        self.nodes = {name: Node(world, name, random.choice((1, 1, 2)), self.training) for name in names}
        self.training.nodes = self.nodes
        self.machine = RunnerMachine(self.process, self.nodes)
        self.disturbed_before = False
        self.began = 0.0
        self.asked: dict[str, float] = {}
        self.started_at: float | None = None
        self.faults = Faults(self)
        self.received: Counter[int] = Counter()
        self.host.on_thaw.append(self.overdue)
        for node in self.nodes.values():
            node.on_heal = self.overdue

    def unhurt(self, node: Node, *, seen_there: bool = False) -> bool:
        """Whether the runner still learns what happens to a node, and needs to: nothing has gone wrong before.

        Args:
            node: the node.
            seen_there: whether the node's agent sees it, and tells the runner once it is connected again.
        """
        now = self.world.now
        return (
            not node.given_up
            and self.started_at is not None
            and node.host.up
            and not node.host.frozen
            and (seen_there or not any(begin <= now <= end + 2.0 for begin, end in node.disturbed))
        )

    # -- running -------------------------------------------------------------------------------------

    def go(self) -> Result:
        """Run to the end, and check."""
        words, violation = "", ""
        Run.current = self
        try:
            try:
                words = self._go()
            except Killed:
                words = "the runner was killed"
            self.process.die()
            self._settle()
        except Violation as error:
            violation = str(error)
        except DeadlockError:
            violation = "the runner waits, and nothing can happen any more"
        except BiremeError as error:
            violation = f"{type(error).__name__}: {error}"
        except Exception:
            violation = traceback.format_exc()
        finally:
            Run.current = None
        world = self.world
        return Result(self.seed, world.steps, world.digest, violation, words, tuple(world.log or ()))

    def spec(self) -> JobSpec:
        return JobSpec(
            Program("train.py"),
            launcher="ssh",
            force_multi=True,
            grace=self.grace,
            heartbeat=self.heartbeat,
            log_level="critical",
            output="raw",
            hang_timeout="off",
        )

    def pool(self) -> DeclaredPool:
        entries = tuple(HostEntry(name, slots=node.slots) for name, node in self.nodes.items())
        return DeclaredPool(entries, "the simulation")

    def _go(self) -> str:
        random = self.world.random
        self.faults.plan(random.choice((0, 1, 1, 2, 2, 3, 5)), self.work + 4.0)
        self.world.at(self._bound(), self._too_long)
        outcome = many_nodes.run(self.spec(), ENVIRON, select(self.spec(), self.pool()), "ssh", self.machine)
        self._check(outcome)
        return f"{outcome.cause} {outcome.exit_code} {outcome.note}"

    def _bound(self) -> float:
        """The longest time, in seconds, that any run may take: each wait of the program once, and every halt."""
        return 200.0 + self.work + 20 * self.heartbeat + 2 * self.grace

    def _too_long(self) -> None:
        if self.process.alive:
            raise Violation(f"the run does not end (now {self.world.now:.1f} s)")

    def _longest_end(self, begin: float) -> float:
        """When everything has ended on every node, if the runner is gone since ``begin``."""
        times = [end for node in self.nodes.values() for _, end in node.disturbed if end < 1e8]
        times += [end for host in self.world.hosts for _, end in host.frozen_times]
        return max(begin, *times, begin) + 1.25 * self.heartbeat + self.grace + 5.0 + 5.0

    def _settle(self) -> None:
        """Let the rest happen, and see that nothing is left."""
        begin = self.world.now
        while self.world.next_time <= self._longest_end(begin):
            self.world.step()
        for node in self.nodes.values():
            for rank in node.live_ranks():
                if isinstance(rank, Stray) and rank.deserted:
                    continue  # what a rank had started may live on when all three are killed in the same instant
                raise Violation(f"process {rank.pid} on {node.name} is left (now {self.world.now:.1f} s)")
            for agent in node.agents:
                if agent.alive:
                    raise Violation(f"{agent.name} does not end (now {self.world.now:.1f} s)")
        for guardian in self.machine.guardians:
            for ssh in guardian.workers.values():
                if ssh.status is None:
                    raise Violation(f"an ssh to {ssh.node.name} is left")  # type: ignore[attr-defined]

    def _check(self, outcome: Outcome) -> None:
        self.world.note(f"outcome: {outcome.cause} {outcome.exit_code} {outcome.note} {outcome.first}")
        for node in self.nodes.values():
            left = [rank for rank in node.live_ranks() if rank.marked or not self.elastic]
            if left and not node.given_up and node.host.up:
                raise Violation(f"the runner has ended, and {len(left)} processes live on {node.name}")
        self.truth.settle(self.nodes, self.training.said)
        started = self.started_at is not None
        unfit = any(node.unfit for node in self.nodes.values())
        disturbed = self.disturbed_before or unfit or any(node.disturbed for node in self.nodes.values())
        self.truth.check(outcome, begin=self.began, started=started, disturbed_before=disturbed)
        if outcome.first is not None:
            self._check_end(outcome.first)
        if outcome.cause == "rank failed" and outcome.first and not {outcome.first.host}.issuperset(outcome.hosts):
            raise Violation(f"rank {outcome.first.rank} has failed, and {outcome.hosts} are blamed")
        if outcome.cause == "ok":
            epoch = list(self.training.epochs.values())[-1]
            all_of_them = (process for rank in epoch.ranks for process in (rank, rank.stray or rank))
            after = self.world.now - max(process.ended_at for process in all_of_them)
            if not disturbed and not self.process.stops and after > _QUIET_END:
                raise Violation(f"the job takes {after:.3f} s to end, although nothing has happened")
            if any(rank.status != 0 for rank in epoch.ranks) or len(epoch.ranks) < epoch.world_size:
                raise Violation("the job succeeded, but not each of its ranks")
            for rank in epoch.ranks:
                if self.received[rank.rank] != rank.written:
                    raise Violation(f"{self.received[rank.rank]} of {rank.written} bytes of rank {rank.rank} arrived")

    def _check_end(self, end: RankEnd) -> None:
        """What is said of the rank that failed first is true."""
        ranks = [rank for epoch in self.training.epochs.values() for rank in epoch.ranks if rank.pid == end.pid]
        if not ranks or (ranks[0].node.name, ranks[0].rank) != (end.host, end.rank):
            raise Violation(f"there was no such rank: {end}")
        rank = ranks[0]
        took = rank.ended_at - rank.began
        well = not rank.node.host.frozen_times and rank.status is not None
        if well and (abs(end.seconds - took) > 0.1 or end.by_signal != os.WIFSIGNALED(rank.status or 0)):
            raise Violation(f"rank {end.rank} lived for {took:.3f} s and has ended with {rank.status}: {end}")
        if end.out_of_memory or end.device != "cpu":
            raise Violation(f"rank {end.rank} had memory, and was on a processor: {end}")

    # -- what is observed in the real code -------------------------------------------------------------

    def begins(self, nodes: NodeConnections) -> None:
        """The runner begins to connect to its nodes."""
        self.began, self.started_at = self.world.now, None
        self.world.note("the runner connects")

    def starts(self, crew: ClusterCrew) -> None:
        """The runner starts the ranks."""
        self.started_at = self.world.now
        for member in crew.members:
            self.nodes[member.name].given_up = False
            self.nodes[member.name].handle = member
        self.world.note(f"the runner starts the ranks on {[member.name for member in crew.members]}")
        self.received.clear()
        chunk = crew._session.chunk

        def count(rank: int, number: int, data: bytes) -> None:
            self.received[rank] += len(data)
            chunk(rank, number, data)

        crew._session.chunk = count  # type: ignore[method-assign]

    def silent(self, member: AgentHandle) -> None:
        """The runner has found that an agent is silent."""
        node = self.nodes[member.name]
        now = self.world.now
        awake, halts = self.process.awake(node.heard, now), self.process.halts(node.heard, now)
        if awake < self.heartbeat * (1 - 0.25 * halts) - 1e-3:
            raise Violation(f"{node.name} was given up as silent, but was heard {awake:.3f} s before")
        if awake > self.heartbeat * (1.25 + 0.25 * halts) + _SLACK and not self.truth.vague:
            raise Violation(f"the silence of {node.name} was noticed only after {awake:.3f} s")

    def is_lost(self, member: AgentHandle) -> None:
        """The runner has lost a node: what connects it to that node ends, and is not left to wait for it."""
        guardian, begin = self.machine.guardians[-1], self.world.now

        def look() -> None:
            if self.process.awake(begin, self.world.now) < 1.0:
                self.world.after(1.0, look)
                return
            ssh = guardian.workers.get(member.index)
            if ssh is not None and ssh.status is None and self.process.alive:
                raise Violation(f"the ssh to {member.name}, which was lost, does not end")

        self.world.after(1.1, look)

    def reset(self, member: AgentHandle) -> None:
        """A channel has ended. If its node was off, and the runner has missed no answer since, it cannot know when."""
        node = self.nodes[member.name]
        for cause in self.truth.causes:
            awake = self.process.awake(cause.when, self.world.now)
            if cause.how == "power" and cause.node == node.name and awake <= self.heartbeat / 4 + NEWS + node.trip:
                cause.certain = False

    def overdue(self) -> None:
        """Every agent has noticed by now that it has not heard the runner for long."""
        for node in self.nodes.values():
            agent = node.agent
            if agent is None or not agent.runs:
                continue
            remote = agent.remote
            if remote is None or remote._cut or remote.suspended:  # type: ignore[attr-defined]
                continue
            awake, _, longest = self._silence(agent)
            if awake > longest:
                raise Violation(f"{agent.name} has not heard the runner for {awake:.3f} s, and waits")

    def _silence(self, agent: AgentProcess) -> tuple[float, float, float]:
        """How long an agent has not heard its runner; how long it waits, at least and at most."""
        now, remote = self.world.now, agent.remote
        awake, halts = agent.awake(agent.told, now), agent.halts(agent.told, now)
        patience = _PATIENCE if remote is None or remote._state == "new" else self.heartbeat
        return awake, patience * (1 - halts / 16) - 1e-3, patience * (1 + (1 + halts) / 16) + _SLACK

    def no_answer(self, member: AgentHandle) -> None:
        """The runner no longer waits for a node to answer."""
        since, now = self.asked[member.name], self.world.now
        awake, halts = self.process.awake(since, now), self.process.halts(since, now)
        if awake < 30.0 - 7.5 * halts - 0.1:
            raise Violation(f"{member.name} had {awake:.3f} s to answer")

    def hears(self, agent: AgentProcess) -> None:
        """An agent that watches its runner hears of it again."""
        awake, _, longest = self._silence(agent)
        if awake > longest and not self.truth.vague:
            raise Violation(f"{agent.name} noticed the silence of the runner only after {awake:.3f} s")

    def silent_runner(self, agent: AgentProcess) -> None:
        """An agent has given up its runner as silent."""
        now = self.world.now
        awake, least, _ = self._silence(agent)
        if awake < least:
            raise Violation(f"{agent.name} gave up the runner, but had heard it {awake:.3f} s before")
        well = all(end < agent.told or begin > now for begin, end in agent.node.disturbed)
        if (
            well
            and not agent.halts(agent.told, now)
            and self.process.alive
            and not self.process.halts(agent.told - self.heartbeat, now)
        ):
            raise Violation(f"{agent.name} gave up the runner, which did not ask it, although it could")
