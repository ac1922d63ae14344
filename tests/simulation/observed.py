"""The real code, observed: it tells the run of its decisions, which are compared with what really happened."""

from __future__ import annotations

from typing import Any

from bireme.agent import remote
from bireme.cluster import cluster_crew, connections
from bireme.cluster.agent_handle import AgentHandle
from bireme.cluster.cluster_crew import ClusterCrew
from bireme.cluster.connections import NodeConnections
from bireme.cluster.node_answers import NodeAnswers
from bireme.cluster.node_loss import NodeLoss
from bireme.control.messages import Down, GuardianLost, Message, Output, Piece, Resume, Signalled, Suspend
from bireme.launching import elastic, many_nodes
from tests.simulation import nodes
from tests.simulation.nodes import AgentProcess
from tests.simulation.run import Run
from tests.simulation.truth import Violation


class ObservedConnections(NodeConnections):
    """What the connections tell the run of what happens."""

    def start(self) -> None:
        run = Run.current
        if run is not None:
            run.begins(self)
        super().start()

    def _on_frame(self, member: AgentHandle, frame: Message | Output | Piece) -> None:
        run = Run.current
        if run is not None and isinstance(frame, Down):
            run.truth.learned(run.nodes[member.name], frame.end.rank, "")
        elif run is not None and isinstance(frame, (GuardianLost, Signalled)):
            how = ("guardian",) if isinstance(frame, GuardianLost) else ("signal", "shutdown")
            run.truth.learned(run.nodes[member.name], -1, *how)
        super()._on_frame(member, frame)


class ObservedLoss(NodeLoss):
    """What is decided about lost nodes."""

    def lose(self, member: AgentHandle, reason: str, when: float) -> None:
        run = Run.current
        if run is not None:
            run.world.note(f"the runner loses {member.name}: {reason}, {when - run.host.offset:.4f}")
            if reason.startswith("no sign of life"):
                run.silent(member)
            else:
                run.reset(member)
            if reason.startswith("it was stopped") and run.started_at is not None:
                raise Violation(f"{member.name} is given up, although it reports how its ranks end")
            run.nodes[member.name].given_up = True
            run.is_lost(member)
        super().lose(member, reason, when)


class ObservedCrew(ClusterCrew):
    """The real crew, observed."""

    def _start_ranks(self, *arguments: Any) -> None:
        run = Run.current
        if run is not None:
            run.starts(self)
        super()._start_ranks(*arguments)


class ObservedAnswers(NodeAnswers):
    """What is decided about answers; tells the run when it gives up a node that does not answer."""

    def begin(self, member: AgentHandle) -> None:
        run = Run.current
        if run is not None:
            run.asked[member.name] = run.world.now
        super().begin(member)

    def fail(self, member: AgentHandle, problems: list[str]) -> None:
        run = Run.current
        if run is not None and problems and problems[0].startswith("no answer within"):
            run.no_answer(member)
        super().fail(member, problems)


class ObservedAgent(remote.RemoteAgent):
    """The real agent; tells the run when it gives up its runner."""

    suspended = False

    def _on_suspend(self, message: Suspend) -> None:
        self.suspended = True
        super()._on_suspend(message)

    def _on_resume(self, message: Resume) -> None:
        self.suspended = False
        super()._on_resume(message)

    def _cut_off(self) -> None:
        run, process = Run.current, self._machine.process  # type: ignore[attr-defined]
        if run is not None:
            run.world.note(f"{process.name} gives up the runner")
        super()._cut_off()

    def _beat(self) -> None:
        well = not (self._cut or self._channel.is_ending)
        super()._beat()
        if self._cut and well and Run.current:
            Run.current.silent_runner(self._machine.process)  # type: ignore[attr-defined]


def _hears(process: AgentProcess) -> None:
    agent = process.remote
    if Run.current is None or agent is None or not process.alive or agent._watchdog is None:
        return
    if not (agent._cut or (agent._part is not None and agent._part.gone)):
        Run.current.hears(process)


def observe() -> None:
    """Have the real code run with what observes it."""
    many_nodes.ClusterCrew = ObservedCrew  # type: ignore[misc]
    elastic.ClusterCrew = ObservedCrew  # type: ignore[misc]
    cluster_crew.NodeConnections = ObservedConnections  # type: ignore[misc]
    connections.NodeAnswers = ObservedAnswers  # type: ignore[misc]
    connections.NodeLoss = ObservedLoss  # type: ignore[misc]
    nodes.RemoteAgent = ObservedAgent  # type: ignore[misc]
    nodes.AgentProcess.before_news = staticmethod(_hears)
