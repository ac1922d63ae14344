"""One run of a simulated elastic job: epoch after epoch, with nodes that are lost, come back, and are drained."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from bireme.cluster.connections import NodeConnections
from bireme.job import JobSpec
from bireme.launching import elastic
from bireme.launching.elastic import ElasticJob
from bireme.loop import Loop
from bireme.result.outcome import Outcome
from tests.simulation.descriptors import End, Pipe
from tests.simulation.nodes import Node
from tests.simulation.run import ENVIRON, Run
from tests.simulation.truth import Violation


class ElasticRun(Run):
    """An elastic job."""

    elastic = True
    preload: tuple[str, ...] = ()

    def __init__(self, seed: int, *, keep_log: bool = False) -> None:
        super().__init__(seed, keep_log=keep_log)
        random = self.world.random
        self.machine.make_helper = lambda: SimulatedHelper(self)
        self.careless = random.random() < 0.3
        """Whether a probe finds a node fit on which ranks of an earlier epoch still live, so that an epoch meets it."""
        self.restarts = random.choice((0, 1, 3))
        self.timeout = random.choice((20.0, 60.0))
        self.min_nodes = random.randrange(1, len(self.nodes) + 1)
        self.max_nodes = random.choice((None, None, max(self.min_nodes, len(self.nodes) - 1)))
        self.job: ElasticJob | None = None
        self.lost: set[str] = set()
        """The nodes that were lost and not found again."""
        self.truth.elastic = True
        self.faults.kinds = (*self.faults.kinds, (self.drain, 3), (self.make_unfit, 1), (self.faults.power_lost, 4))
        if random.random() < 0.4:
            self.training.planned = {
                number: (random.uniform(0.0, self.work), random.randrange(8), 1 + random.randrange(90))
                for number in range(random.randrange(1, 4))
            }

    def spec(self) -> JobSpec:
        return (
            super()
            .spec()
            .replace(
                elastic=True,
                force_multi=False,
                hosts=",".join(f"{name}:{node.slots}" for name, node in self.nodes.items()),
                restarts=self.restarts,
                elastic_timeout=self.timeout,
                elastic_interval=self.world.random.choice((2.0, 10.0)),
                min_nodes=self.min_nodes,
                max_nodes=self.max_nodes,
                preload=self.preload,
            )
        )

    def _go(self) -> str:
        random = self.world.random
        self.faults.plan(random.choice((0, 1, 2, 3, 4, 6)), 2 * self.work + 10.0)
        self.world.at(self._bound() + 10 * self.work + 20 * self.timeout, self._too_long)
        outcome = elastic.run(self.spec(), ENVIRON, self.changed, self.machine)
        self._check(outcome)
        if outcome.cause == "unfit" and outcome.hosts and self.job is not None and self.job._epoch > 1:
            raise Violation(f"{outcome.hosts} are unfit in epoch {self.job._epoch}, and the job does not go on without")
        return f"{outcome.cause} {outcome.exit_code} after {len(outcome.history)} changes: {outcome.note}"

    def changed(self, outcome: Outcome, why: str) -> None:
        """Another epoch follows."""
        self.world.note(f"another epoch, since {why}")
        if outcome.cause == "agent lost":
            self.lost.update(outcome.hosts)
        self._check(outcome)

    def begins(self, nodes: NodeConnections) -> None:
        super().begins(nodes)
        for name in sorted(self.lost.intersection(member.name for member in nodes.members)):
            raise Violation(f"the runner connects to {name}, which was lost and not found again")

    def _check(self, outcome: Outcome) -> None:
        super()._check(outcome)
        if outcome.cause == "ok" and self.job is not None:
            working = self.job._roster.invited()
            if len(working) < self.min_nodes:
                raise Violation(f"the job has ended with {len(working)} nodes of at least {self.min_nodes}")

    # -- faults of elastic jobs -----------------------------------------------------------------------

    def drain(self) -> None:
        loop, job = self.process.loop, self.job
        if loop is None or job is None or not loop.running:
            return
        random = self.world.random
        name = random.choice(list(self.nodes))
        request: dict[str, Any] = {"node": name}
        if random.random() < 0.5:
            request["back"] = True
        self.world.note(f"request: {request}")
        self.disturbed_before = True
        loop.after(0.0, lambda: self._ask(job, request))
        self.process.wake_at(self.world.now)

    def _ask(self, job: ElasticJob, request: dict[str, Any]) -> None:
        self.world.note(f"answer: {job._monitor._asked(request)}")

    def make_unfit(self) -> None:
        node = self.world.random.choice(list(self.nodes.values()))
        self.world.note(f"{node.name} is unfit from now on")
        node.unfit = ("its disk is full",)
        self.disturbed_before = True
        if self.world.random.random() < 0.7:
            self.world.after(self.world.random.uniform(1.0, 20.0), lambda: setattr(node, "unfit", ()))


class WarmRun(ElasticRun):
    """An elastic job whose agents wait between two epochs, with templates."""

    preload = ("torch",)


class SimulatedHelper:
    """A node probe; stands in for `bireme.one_node.machine.Helper` with `bireme.elastic.node_probe`."""

    def __init__(self, run: ElasticRun) -> None:
        self._run, self._process = run, run.process
        self._pipe = Pipe()
        self._fd = self._process.add(End(self._pipe, reads=True))
        self._writer = End(self._pipe, reads=False)
        self._loop: Loop | None = None

    def tell(self, **request: Any) -> None:
        node = self._run.nodes[request["pool"]["entries"][0]["name"]]
        random = self._run.world.random
        if node.reachable:
            self._later(random.uniform(0.2, 1.0) + 5 * node.latency + node.preflight, lambda: self._look(node))
        else:
            self._later(2.0, lambda: self._answer({"why": "Connection timed out"}))

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        self._run.host.after(seconds, lambda: call() if not self._writer.closed else None)

    def _look(self, node: Node) -> None:
        mark = f"{self._run.job._spec.run_id}" if self._run.job is not None else ""
        earlier = sum(mark in rank.start.env.get("BIREME_ELASTIC", "") for rank in node.live_ranks())
        if not node.reachable:
            self._later(28.0, lambda: self._answer({"why": "no answer within 30 s"}))
        elif node.unfit:
            self._answer({"why": node.unfit[0]})
        elif earlier and not self._run.careless:
            self._answer({"why": f"{earlier} processes of an earlier epoch are still running there"})
        else:
            self._run.lost.discard(node.name)
            self._answer({"there": True})

    def _answer(self, answer: dict[str, object]) -> None:
        self._run.world.note(f"probe: {answer}")
        self._pipe.put(json.dumps(answer).encode())

    def when_answered(self, loop: Loop, on_answer: Callable[[dict[str, Any]], None]) -> None:
        self._loop = loop
        loop.watch(self._fd, lambda: self._read(on_answer))

    def _read(self, on_answer: Callable[[dict[str, Any]], None]) -> None:
        assert self._loop is not None
        self._loop.unwatch(self._fd)
        self._loop = None
        on_answer(json.loads(self._pipe.take()))

    def close(self) -> None:
        if self._loop is not None:
            self._loop.unwatch(self._fd)
            self._loop = None
        self._writer.close()
        end = self._process.ends.pop(self._fd, None)
        if end is not None:
            end.close()


class ObservedJob(ElasticJob):
    """The real elastic job, known to the run."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        if isinstance(Run.current, ElasticRun):
            Run.current.job = self


def observe() -> None:
    """Have the real code run with what observes it."""
    elastic.ElasticJob = ObservedJob  # type: ignore[misc]
