"""The crew of a job on many nodes: starts and stops ranks through the agents of nodes that a preflight found fit."""

from __future__ import annotations

from bireme.cluster.connections import NodeConnections
from bireme.cluster.node_answers import python_versions
from bireme.cluster.rendezvous_address import RendezvousAddress
from bireme.control import messages
from bireme.control.frames import encode_output
from bireme.errors import BadInputError, ProtocolError
from bireme.job import ANSWERS
from bireme.logs.rankfiles import RankFiles
from bireme.planning.environment import job_facts
from bireme.planning.start import start_plan
from bireme.resources.pool import listed
from bireme.runner.crew import Crew

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bireme.cluster.agent_handle import AgentHandle
    from bireme.cluster.cluster_job import ClusterJob
    from bireme.cluster.stack_tool_sender import StackToolSender
    from bireme.cluster.standby import Standby
    from bireme.job import JobSpec
    from bireme.one_node.machine import Machine
    from bireme.planning.start import NodePlan, StartPlan
    from bireme.process.pid_file import PidFile
    from bireme.result.outcome import Outcome
    from bireme.runner.session import Session
    from bireme.ship.fetch import Fetching

WINDOW = 1024 * 1024
"""Bytes of output that an agent may send before the runner has taken them."""
_CREDIT = 128 * 1024
"""Bytes that the runner takes before it grants the agent as many again."""
_IN_A_PIPE = 1024 * 1024
"""Bytes from one pipe by which an agent may exceed its window: it had read them before it stopped reading."""


class OutputCredit:
    """Takes the output of all agents, and grants each more credit as its output is taken."""

    def __init__(self, session: Session, members: Sequence[AgentHandle]) -> None:
        self._session, self._members = session, members
        self._held = False
        self.files: RankFiles | None = None
        """The log files that output is written to as well, if any."""

    def take(self, member: AgentHandle, frame: messages.Output) -> None:
        """Take a chunk of a rank's output.

        Raises:
            ProtocolError: the agent sent more than it was given credit for.
        """
        if member.ungranted > WINDOW + _IN_A_PIPE * member.protocol.pipes:
            raise ProtocolError("it sent more output than it was given credit for")
        if self.files is not None and frame.number != ANSWERS:
            self.files.write(frame.rank, frame.data)
        self._session.chunk(frame.rank, frame.number, frame.data)
        member.ungranted += len(frame.data)
        self._grant(member)

    def hold(self) -> None:
        """Grant nothing more: the agents hold back their ranks' output."""
        self._held = True

    def release(self) -> None:
        """Grant again what was taken in the meantime."""
        self._held = False
        for member in self._members:
            self._grant(member)

    def close(self) -> None:
        """Close the log files."""
        if self.files is not None:
            self.files.close()

    def _grant(self, member: AgentHandle) -> None:
        if not self._held and member.ungranted >= _CREDIT:
            member.send(messages.Credit(size=member.ungranted))
            member.ungranted = 0


class WholeJob:
    """Which nodes take part in a job that runs on all of them. An elastic job decides otherwise for its epochs.

    Attributes:
        starts: whether ranks are started once all nodes have answered; otherwise they were only asked.
        standby: where agents wait for the next session of the job; None: they do not.
    """

    starts = True

    def __init__(self, spec: JobSpec, is_last: Callable[[Outcome], bool], standby: Standby | None = None) -> None:
        self._spec, self._is_last, self.standby = spec, is_last, standby

    def is_last(self, outcome: Outcome) -> bool:
        """Whether the job ends with this outcome, and is not started again."""
        return self._is_last(outcome)

    def attach(self, session: Session) -> None:
        """The session runs."""

    def unfit(self, nodes: NodeConnections) -> list[AgentHandle]:
        """The nodes that keep the job from starting, now that every node has answered or failed."""
        return nodes.answers.unfit()

    def begun(self, names: tuple[str, ...], plan: StartPlan) -> None:
        """The ranks are being started on these nodes, in rank order."""

    def took_part(self) -> tuple[str, ...]:
        """Nodes that took part in the job before, and may have files of it."""
        return self._spec.avoid


class ClusterCrew(Crew):
    """A crew of many nodes."""

    killed = 0
    stuck: tuple[str, ...] = ()

    def __init__(
        self, session: Session, job: ClusterJob, pid_file: PidFile, machine: Machine, policy: WholeJob
    ) -> None:
        self._session, self._job, self._policy = session, job, policy
        self.nodes = nodes = NodeConnections(
            *(session, job, pid_file, machine),
            answered=self._answered,
            lost=self._lost,
            none_alive=self._none_alive,
            standby=policy.standby,
        )
        self.members = nodes.members
        self._all_fit = False
        self._fetching: Fetching | None = None
        self._tool: StackToolSender | None = None
        self._killed = False
        self._credit = OutputCredit(session, self.members)
        self._readers: tuple[AgentHandle, ...] = ()  # with ranks that read our stdin
        self._eating: set[AgentHandle] = set()  # of these, those whose ranks have not taken the last chunk
        self._address = RendezvousAddress(session, job, self.members, self._start_ranks)
        nodes.handlers |= {
            messages.Probed: self._on_probed,
            messages.Up: lambda _, up: session.up(up.rank, up.pid),
            messages.Down: self._on_down,
            messages.InputTaken: self._on_input_taken,
            messages.Rested: lambda _, rested: session.rested(rested.rank, rested.number),
            messages.Eof: lambda _, eof: session.eof(eof.rank, eof.number),
            messages.Output: self._credit.take,
            messages.Stacks: self._on_stacks,
            messages.NeedTool: self._on_need_tool,
            messages.Measured: lambda _, measured: session.measured(measured.uses),
            messages.GuardianLost: self._on_guardian_lost,
            messages.Over: self._on_over,
        }

    # -- the crew's interface --------------------------------------------------------------------

    @property
    def logs(self) -> tuple[str, ...]:
        """The ranks' log files that were collected here."""
        return tuple(self._credit.files.paths.values()) if self._credit.files is not None else ()

    def start(self) -> None:
        """Start the launcher, and wait for the nodes' answers."""
        self.nodes.start()
        self._policy.attach(self._session)

    def stop(self, signum: int) -> None:
        """End all ranks by each node's stop ladder; before there are any, end the launcher."""
        if not self.nodes.loss.started:
            self.nodes.leave()
            return
        for member in self.members:
            if member.state == "running":
                member.protocol.stop()
                member.send(messages.Stop(signum=int(signum)))

    def kill_now(self) -> None:
        """Kill what is left now, without waiting for the grace time."""
        self.nodes.kill_now()
        self._killed = True
        if self._fetching is not None:
            self._fetching.stop()
        for member in self.members:
            member.protocol.stop()
            member.send(messages.KillNow())

    def signal_ranks(self, signum: int, *, later: bool = False) -> None:
        """Send a signal to every rank."""
        for member in self.members:
            member.send(messages.SignalRanks(signum=int(signum), later=later))

    def take_stacks(self) -> int:
        """Have the stacks of all ranks taken."""
        asked = [member for member in self.members if member.state == "running"]
        for member in asked:
            member.send(messages.TakeStacks())
        return len(asked)

    def measure(self) -> int:
        """Have it measured what all ranks use."""
        asked = [member for member in self.members if member.state == "running"]
        for member in asked:
            member.send(messages.Measure())
        return len(asked)

    def suspend(self) -> None:
        """Suspend every process of the job."""
        self.nodes.suspend()

    def resume(self) -> None:
        """Resume them."""
        self.nodes.resume()

    def hold_output(self) -> None:
        """Let the agents send no more output."""
        self._credit.hold()

    def release_output(self) -> None:
        """Let the agents send output again."""
        self._credit.release()

    def close(self) -> None:
        """Leave nothing behind."""
        self.nodes.close()
        self._credit.close()
        if self._fetching is not None:
            self._fetching.close()

    # -- starting --------------------------------------------------------------------------------

    def _answered(self) -> None:
        """Find the rendezvous address if all are fit."""
        if bad := self._policy.unfit(self.nodes):
            self.nodes.complain(bad, len(self.nodes.agents))
        elif not self._policy.starts:
            self.nodes.leave()
        elif not self._all_fit:
            self._all_fit = True
            if len(versions := python_versions(self.members)) > 1:
                note = f"the version of the ranks' Python differs between nodes: {'; '.join(versions)}"
                self._session.console.say("warning", note)
            if not self.nodes.loss.ended:
                self._address.find()

    def _on_probed(self, member: AgentHandle, probed: messages.Probed) -> None:
        if not self.nodes.loss.ended:
            self._address.probed(member, probed.reachable)

    def _start_ranks(self, master_addr: str) -> None:
        """Make the plan with this address, and tell each node to start its ranks."""
        self.nodes.accept_no_more()
        plan, nodes = node_plans(self._job, self.members, master_addr)
        lost = [f"{member.name} ({member.hello.own_name})" for member in self.members if member.hello.own_name]
        if lost and len(nodes) > 1:
            note = f"nodes whose own name is a loopback address: {', '.join(lost[:3])}{', …' * (len(lost) > 3)}"
            self._session.console.say("debug", f"{note}; Gloo and TensorPipe are told the interface to use there")
        columns = self._session.planned(plan).columns_beside_labels()
        if self._job.log_dir is not None:
            ranks = [worker.rank for node in plan.nodes for worker in node.workers]
            say, name = self._session.console.say, self._job.spec.job_name
            self._credit.files = RankFiles(self._job.log_dir, ranks, lambda text: say("error", text), name)
        self.nodes.loss.admitted = self.nodes.loss.started = True
        self._policy.begun(tuple(nodes), plan)
        accelerator, grace = self.members[0].hello.accelerator, self._job.spec.grace
        screen = {"COLUMNS": str(columns)} if columns else {}
        for member in self.members:
            node = nodes.get(member.name)
            if node is None:  # the filters leave it no slots
                member.protocol.on("idle")
                continue
            streams = (ANSWERS, 1, 2) if self._job.spec.answers else (1, 2)
            member.protocol.start((worker.rank for worker in node.workers), streams)
            node = node.replace(env={**node.env, **screen})
            member.send(
                messages.Start(node=node, accelerator=accelerator, grace=grace, window=WINDOW, rest=self._session.rest)
            )
            if any(self._session.gets_stdin(worker.rank) for worker in node.workers):
                self._readers += (member,)
        if self._readers:
            self._read_stdin()

    def _read_stdin(self) -> None:
        from bireme.runner.stdin import StdinReader

        self._stdin = StdinReader(self._session, self._on_stdin)
        if self._session.terminal.stdin_for_ranks(-1) == 0:
            self._stdin.read_on()
        else:
            self._on_stdin(b"")

    def _on_stdin(self, data: bytes) -> None:
        """Send a chunk of our stdin to the nodes whose ranks read it; b"": it has ended."""
        self._eating = {member for member in self._readers if member.state == "running"} if data else set()
        for member in self._readers:
            if member.state == "running" and member.channel is not None:
                member.channel.send_raw(encode_output(0, 0, data))

    def _on_input_taken(self, member: AgentHandle, _: messages.InputTaken) -> None:
        """Read the next chunk once all nodes have taken the last one."""
        if member in self._eating:
            self._eating.remove(member)
            if not self._eating:
                self._stdin.read_on()

    # -- running ---------------------------------------------------------------------------------

    def _on_down(self, member: AgentHandle, down: messages.Down) -> None:
        end = down.end.replace(host=member.hello.hostname, detail="")  # an agent cannot speak for another node
        self._session.down(end, member.our_time(down.when))

    def _on_stacks(self, _: AgentHandle, taken: messages.Stacks) -> None:
        self._session.stacks(taken.stacks)

    def _on_need_tool(self, member: AgentHandle, need: messages.NeedTool) -> None:
        if self._tool is None:
            from bireme.cluster.stack_tool_sender import StackToolSender

            self._tool = StackToolSender()
        self._tool.answer(member, need)

    def _on_guardian_lost(self, member: AgentHandle, lost: messages.GuardianLost) -> None:
        note = f"agent lost on {member.name}: its guardian (pid {lost.pid}) was killed"
        self._session.trouble("agent lost", note, member.our_time(lost.when), (member.name,))

    def _on_over(self, member: AgentHandle, over: messages.Over) -> None:
        member.protocol.on("over")
        self.killed += over.killed
        self.stuck += tuple(f"{member.name}: {' '.join(what.splitlines())}" for what in over.stuck)
        self.nodes.maybe_end()

    # -- files that come home --------------------------------------------------------------------

    def _none_alive(self) -> None:
        """Once no rank is left, bring the files home that the job is to fetch; then end."""
        ran = self.nodes.loss.started and self._fetching is None and not self._killed
        asks = ran and (self._job.spec.fetch or self._policy.standby is not None)
        is_last = asks and self._policy.is_last(self._session.outcome())
        if is_last and self._job.spec.fetch:
            self._fetch()
        else:
            self.nodes.leave(another=asks and not is_last)

    def _fetch(self) -> None:
        from bireme.ship.conversation import Digests, Found, Skipped
        from bireme.ship.fetch import Fetching

        self._session.settle()
        there = [member for member in self.members if member.state == "over"]
        names = {member.name for member in there}
        missing = {member.name: "it was lost" for member in self.members if member.name not in names}
        if earlier := [name for name in self._policy.took_part() if name not in names and name not in missing]:
            note = f"nodes that left the job may have files that were not fetched: {listed(earlier)}"
            self._session.console.say("warning", note)

        def ended(problem: str) -> None:
            if problem:
                self._session.verdict.blame("not fetched", self._session.loop.now(), note=problem)
            self.nodes.leave()

        self._fetching = fetching = Fetching(
            *(self._job.spec.fetch, there, self._job.tree is not None, missing, self._session.console.say),
            lambda name: next(member for member in there if member.name == name).protocol.on("fetched"),
            ended,
        )
        self.nodes.handlers |= {Found: fetching.found, Digests: fetching.digests}
        self.nodes.handlers |= {messages.Piece: fetching.piece, Skipped: fetching.skipped}
        for member in there:
            member.protocol.on("fetch")
        fetching.start()

    def _lost(self, member: AgentHandle, reason: str, when: float) -> None:
        """A node that is lost ends the job; while its files come home, it takes only these along."""
        if self._fetching is not None:
            self._fetching.lost(member, reason)
        else:
            note = f"agent lost on {member.name}: {reason}"
            self._session.trouble("agent lost", note, when, (member.name,))
            self.nodes.maybe_end()


def node_plans(
    cluster_job: ClusterJob, members: Sequence[AgentHandle], master_addr: str
) -> tuple[StartPlan, dict[str, NodePlan]]:
    """Make the start plan, and look up the plan of each node.

    Returns:
        The plan, and the plan of each node that has slots, by its name in the pool.
    """
    spec, first = cluster_job.spec, members[0]
    active = cluster_job.active({member.name: member.hello.slots for member in members})
    if first.name not in active:  # it holds the port, at an address of its own
        what = f"the filters leave no slots on {first.name}, the first node"
        raise BadInputError(what, hint=f"exclude the whole node: --exclude {first.name}", where="--exclude")
    declared = None not in cluster_job.nodes.slots.values()
    job = job_facts(spec, first.hello, master_addr, declared=declared)
    plan = start_plan(spec, active, job, {member.name: member.hello for member in members})
    return plan, dict(zip(active, plan.nodes, strict=True))
