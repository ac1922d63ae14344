"""The connections to the nodes of a job: opens a channel to each agent, sends code and job, receives messages."""

from __future__ import annotations

import os
import sys

from bireme.agent import sent_code
from bireme.cluster.agent_handle import AgentHandle, allocation_of, find_agent
from bireme.cluster.launcher_process import LauncherProcess, cancel
from bireme.cluster.node_answers import AT_ONCE, NodeAnswers, complaint
from bireme.cluster.node_loss import NodeLoss
from bireme.control import messages
from bireme.control.channel import Channel
from bireme.control.frames import MAX_FROM_AGENT, encode_code
from bireme.control.greeting import python_tag
from bireme.errors import ProtocolError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, TypeAlias

    from bireme.cluster.cluster_job import ClusterJob
    from bireme.cluster.standby import Standby
    from bireme.control.transport import Transport
    from bireme.job import JobSpec
    from bireme.one_node.machine import Machine
    from bireme.process.pid_file import PidFile
    from bireme.runner.session import Session
    from bireme.ship.source import Shipment, SourceTree

    Handlers: TypeAlias = dict[type[messages.Frame], Callable[[AgentHandle, Any], None]]

_LAUNCHER_WAIT = 5.0
"""Seconds that the launcher may take to end after its agents were released."""


class NodeConnections:
    """The agents of nodes, from their start to their release.

    Args:
        answered: called when every node has answered or failed, and again for each that fails afterwards.
        lost: called when a node was lost that takes part: with its agent, the reason, and when that was.
        none_alive: called when all agents have ended, or were lost.
        standby: where agents may wait for this session, and after it for the next; None: they do not.
    """

    def __init__(
        self,
        session: Session,
        job: ClusterJob,
        pid_file: PidFile,
        machine: Machine,
        *,
        answered: Callable[[], None],
        lost: Callable[[AgentHandle, str, float], None],
        none_alive: Callable[[], None],
        standby: Standby | None = None,
    ) -> None:
        self._session, self._job, self._none_alive = session, job, none_alive
        slots = job.nodes.slots
        self._standby, taken = standby, standby and standby.take(job.nodes.names)
        self._waiting = [channel for _, channel in taken[1]] if taken else []
        """The channels to agents that have waited for this session."""
        places = [index for index, _ in taken[1]] if taken else range(len(job.hosts))
        self.agents = tuple(
            AgentHandle(index, host, slots[host.name], session.loop.now)
            for index, host in zip(places, job.hosts, strict=True)
        )
        self.members = list(self.agents)
        self._listener = job.listener
        self._warned: set[str] = set()
        """The reasons for unencrypted channels that were reported."""
        self._allocates = bool(job.allocation)
        """Whether the launcher makes an allocation for this job."""
        self._allocation = ""
        """The scheduler's id of it, as an agent reports it; "": unknown."""
        self._launcher_gone = self._stays = False
        self.answers: NodeAnswers
        self.loss: NodeLoss
        events: dict[str, Any] = {
            "on_exit": lambda index, code, signum: self.loss.launcher_ended(index, code, signum),
            "on_line": lambda index, line: self.answers.on_launcher_line(index, line),
            "on_lost": lambda pid: self.loss.guardian_killed(pid),
            "on_over": self._launcher_over,
        }
        if taken:
            self._launcher = taken[0]
            self._launcher.move(session.loop, **events)
        else:
            self._launcher = LauncherProcess(
                *(session.loop, machine.start_guardian, job.commands, job.environ),
                **events,
                at_once=AT_ONCE,
                at_start=pid_file.create,
                at_loss=lambda: self._at_loss(pid_file),
                allocates=self._allocates,
            )
        self.answers = NodeAnswers(session, job, self.members, self._launcher, on_answers=answered)
        self.loss = NodeLoss(session, job, self.members, self._launcher, self.answers, self._close, lost)
        self.handlers: Handlers = {
            messages.Hello: self._on_hello,
            messages.Say: self._on_say,
            messages.Unfit: self._on_unfit,
            messages.Signalled: self.loss.agent_signalled,
            messages.Pong: lambda member, pong: member.clock(pong.sent, pong.now),
        }
        self._shipment: Shipment | None = None
        if job.tree is not None:
            self._prepare_shipment(job.tree)

    def start(self) -> None:
        """Start the launcher, and wait for the nodes' answers."""
        if self._waiting:
            self._ask_again()
            return
        ends = self._launcher.start(channels=self._job.backend.CHANNEL == "stdio")
        for agent, (read_fd, write_fd) in zip(self.agents, ends, strict=False):
            self._attach(agent, read_fd, write_fd)
        if self._listener is not None:
            self._listener.listen(self._session.loop, self._connected)
        # While the launcher connects; most agents run on a Python like ours.
        self._session.loop.after(0, self._pack_ahead)
        self.answers.start()

    def _ask_again(self) -> None:
        """Ask agents that have waited for this session."""
        self.accept_no_more()
        for agent, channel in zip(self.agents, self._waiting, strict=True):
            agent.channel = channel
            channel.move(self._session.loop, **self._reports(agent))
            self.answers.begin(agent)
            self._ask(agent, channel)

    def kill_now(self) -> None:
        """Kill the launcher, if it has nothing left to do but to end."""
        if self.loss.ended and not self._allocates:  # after SIGKILL nothing would give back the allocation
            self._launcher.kill()

    def suspend(self) -> None:
        """Suspend every process of the job. Agents do not expect a heartbeat in the meantime."""
        for member in self.members:
            member.send(messages.Suspend())

    def resume(self) -> None:
        """Resume them."""
        self.loss.resume()
        for member in self.members:
            member.send(messages.Resume())

    def accept_no_more(self) -> None:
        """Accept no more connections."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def close(self) -> None:
        """Leave nothing behind."""
        for member in self.agents:
            if member.channel is not None and not (self._stays and member.state == "over"):
                member.channel.close()
        if not self._stays:
            self._launcher.close()
        self.accept_no_more()

    def complain(self, bad: Sequence[AgentHandle], total: int) -> None:
        """End the job, since these nodes are unfit."""
        note = complaint(bad, total, self.agents)
        self._session.trouble("unfit", note, self._session.loop.now(), tuple(member.name for member in bad))

    def leave_out(self, member: AgentHandle) -> None:
        """Go on without a node."""
        self.members.remove(member)
        if member.channel is not None:
            member.channel.close()
        self._launcher.end(member.index)

    @property
    def tree_changed(self) -> bool:
        """Whether the job ends because a file of the tree was changed after its digest was made."""
        return self._shipment is not None and self._shipment.changed

    # -- channels --------------------------------------------------------------------------------

    def _pack_ahead(self) -> None:
        self._packed(python_tag())

    def _packed(self, tag: str) -> bytes:
        spec = self._job.spec
        tree = self._job.tree is not None
        return sent_code.pack(tag, tree=tree, fetch=bool(spec.fetch), preload=bool(spec.preload))

    def _attach(self, agent: AgentHandle, read_fd: int, write_fd: int, transport: Transport | None = None) -> None:
        agent.channel = channel = Channel(
            self._session.loop,
            read_fd,
            write_fd,
            self._vocabulary(),
            **self._reports(agent),
            on_greeting=lambda tag: self._greeted(agent, channel, tag),
            transport=transport,
            longest=MAX_FROM_AGENT,
        )

    def _reports(self, agent: AgentHandle) -> dict[str, Any]:
        """What the channel to an agent calls."""
        return {
            "on_frame": lambda frame: self._on_frame(agent, frame),
            "on_end": lambda reason: self.loss.channel_ended(agent, reason),
            "on_violation": lambda what: self.loss.violated(agent, what),
        }

    def _vocabulary(self) -> Mapping[str, type[messages.Message]]:
        """The messages that an agent may send."""
        if self._job.tree is None and not self._job.spec.fetch:
            return messages.FROM_AGENT
        from bireme.ship.conversation import FROM_AGENT

        return {**messages.FROM_AGENT, **FROM_AGENT}

    def _greeted(self, agent: AgentHandle, channel: Channel, tag: str) -> None:
        """An agent was started: send its code, and what it is to examine."""
        channel.send_raw(encode_code(self._packed(tag)))
        self._ask(agent, channel)

    def _ask(self, agent: AgentHandle, channel: Channel) -> None:
        spec = self._job.spec
        channel.send(
            messages.Ask(
                spec=with_python(spec, agent.name),
                cwd=os.getcwd(),
                heartbeat=spec.heartbeat,
                first=agent is self.agents[0] or spec.elastic,
                name=agent.name,
                slots=agent.slots,
                tasks=agent.host.tasks,
                exports=self._exports(agent, channel.readable),
                unset=self._job.backend.rank_variables,
                tree=self._offer(agent),
            )
        )

    def _offer(self, agent: AgentHandle) -> messages.TreeOffer | None:
        tree = self._job.tree
        if tree is None:
            return None
        agent.protocol.offer()
        made, cache = tree.manifest, self._job.exports.get("XDG_CACHE_HOME", "")
        return messages.TreeOffer(
            digest=made.digest, length=len(made.text), roots=tree.roots, cache=cache, job=tree.job
        )

    def _exports(self, agent: AgentHandle, readable: str) -> dict[str, str]:
        """The variables to export to the agent: without secrets if others can read the channel."""
        if not readable:
            return dict(self._job.exports)
        from bireme.planning.masking import is_secret

        withheld = sorted(name for name in self._job.exports if is_secret(name))
        if readable not in self._warned:  # not once for each of a thousand nodes
            self._warned.add(readable)
            names = f"; exported variables withheld as secrets: {', '.join(withheld)}" if withheld else ""
            note = f"the channel to {agent.name} (and maybe other nodes) is not encrypted: {readable}{names}"
            self._session.console.say("warning", note)
        return {name: value for name, value in self._job.exports.items() if name not in withheld}

    def _connected(self, who: dict[str, str], fd: int, transport: Transport) -> None:
        """An agent has connected and proved that it belongs to this job: find out which one it is."""
        agent = find_agent(self.agents, who)
        if agent is None:
            os.close(fd)
            where = ascii(who.get("hostname", "?")[:80])[1:-1]
            note = f"the launcher started an agent on {where}, which is not a node of this job"
            self._session.trouble("unfit", note, self._session.loop.now())
        elif agent.channel is not None or agent.state != "connecting":
            os.close(fd)
        else:
            self._allocation = allocation_of(who)
            self._attach(agent, fd, fd, transport)

    def _close(self, member: AgentHandle) -> None:
        """Neither hear nor tell an agent anything more."""
        if member.channel is not None:
            member.channel.close()
        if self._shipment is not None:
            self._shipment.forget(member)

    # -- what agents send ------------------------------------------------------------------------

    def _on_frame(self, member: AgentHandle, frame: messages.Frame) -> None:
        member.silence.broken(self._session.loop.now())
        try:
            member.protocol.admit(frame)
        except ProtocolError as error:
            self.loss.violated(member, str(error))
            return
        self.handlers[type(frame)](member, frame)

    def _on_hello(self, member: AgentHandle, hello: messages.Hello) -> None:
        if member.slots is not None and hello.slots and len(hello.slots) != len(member.slots):
            self.loss.violated(member, f"it reported {len(hello.slots)} slots instead of {len(member.slots)}")
            return
        self.loss.watch(member)
        self._session.note("connected", host=member.name)
        self.answers.hello(member, hello)

    def _prepare_shipment(self, tree: SourceTree) -> None:
        from bireme.ship.conversation import Need, Shipped
        from bireme.ship.source import Shipment

        self._shipment = shipment = Shipment(
            tree,
            self._session.console.say,
            lambda why: self._session.trouble("unfit", why, self._session.loop.now()),
        )

        def on_need(member: AgentHandle, need: Need) -> None:
            self.loss.watch(member)
            shipment.send(member, need)

        def on_shipped(member: AgentHandle, shipped: Shipped) -> None:
            if shipped.wrong is not None:
                shipment.wrong(shipped.wrong)
            shipment.forget(member)
            member.protocol.on("shipped")
            self.answers.await_answer(member)

        self.handlers |= {Need: on_need, messages.Taken: shipment.taken, Shipped: on_shipped}

    def _on_say(self, member: AgentHandle, say: messages.Say) -> None:
        for line in say.text.splitlines():  # a line without the node's name could pass for one of ours
            self._session.console.say(say.level, f"{member.name}: {line}")

    def _on_unfit(self, member: AgentHandle, unfit: messages.Unfit) -> None:
        if self._session.verdict.stopping:
            return
        if member.state == "connecting":
            self.answers.fail(member, list(unfit.problems))
            return
        member.problems += unfit.problems
        self.complain([member], len(self.members))

    # -- the end ---------------------------------------------------------------------------------

    def maybe_end(self) -> None:
        """Go on if no agent is alive any more."""
        if not any(member.alive for member in self.members):
            self._none_alive()

    def leave(self, *, another: bool = False) -> None:
        """Release the agents, and wait for the launcher to end.

        Args:
            another: whether another session may follow, for which the agents wait if they can.
        """
        if self.loss.ended:
            return
        self.loss.ended = True
        self.loss.attribute()
        self.answers.stop()
        self.loss.rest()
        self._stays = another and self._standby is not None and not (self._launcher_gone or self._allocates)
        if self._standby is not None and self._stays:
            self._stay(self._standby)
            return
        for member in self.members:
            member.send(messages.Release())
        if self._launcher_gone:  # too early: it may have been killed
            self._give_back_allocation()
            self._finish()
        elif self.loss.started and all(member.state == "over" for member in self.members):
            self._session.loop.after(_LAUNCHER_WAIT, self._end_launcher)
        else:
            self._end_launcher()

    def _stay(self, standby: Standby) -> None:
        """Leave the agents that are well to the next session."""
        agents = {}
        for member in self.agents:
            if member.state == "over" and member.channel is not None:
                agents[member.name] = member.index, member.channel
            else:
                self._launcher.end(member.index)
        standby.keep(self._launcher, agents)
        self._finish()

    def _end_launcher(self) -> None:
        """End the launcher now, and cancel its allocation, which it would keep while it waits for a dead node."""
        if not self._launcher_gone:
            self._launcher.terminate()
            if self._allocation:
                self._give_back_allocation()

    def _give_back_allocation(self) -> None:
        if self._allocation and self._allocates:
            self._launcher.run_aside((*self._job.backend.CANCEL, self._allocation))
        elif self._allocates:
            self._launcher.run_aside(self._cancel_named())

    def _cancel_named(self) -> tuple[str, ...]:
        return (*self._job.backend.CANCEL_NAMED, self._job.allocation)

    def _at_loss(self, pid_file: PidFile) -> None:
        """Called in guardian or watcher: remove what is ours, also an allocation that the launcher left."""
        pid_file.remove()
        if self._allocates:
            cancel(self._cancel_named())

    def _launcher_over(self) -> None:
        """The launcher has ended. Agents that have connected by themselves are lost only when their channels end."""
        self._launcher_gone = True
        if self.loss.ended and not self._stays:
            if not self._allocation:  # it may have ended between its request and the scheduler's answer
                self._give_back_allocation()
            self._finish()

    def _finish(self) -> None:
        self._session.gone()
        self._session.over()


def with_python(spec: JobSpec, host: str) -> JobSpec:
    """The job with the Python of the ranks on a node.

    It stays ``None`` where that is the one that ``--venv_script`` selects there, or the agent's own.
    """
    if spec.python is None and spec.venv_script is None and not spec.in_containers:
        return spec.replace(python=sys.executable, python_from="the Python of the command")
    return spec.on_node(host)
