"""The agents of a job: handles their messages, and decides when a node counts as lost, by silence or otherwise."""

from __future__ import annotations

from bireme.cluster.agent_connector import AgentConnector
from bireme.cluster.agent_handle import AgentHandle
from bireme.cluster.launcher_process import LauncherProcess, cancel
from bireme.cluster.node_answers import AT_ONCE, Bootstrap, complaint
from bireme.cluster.node_loss import Heartbeat, attribute_losses
from bireme.control.messages import Hello, Pong, Release, Resume, Say, Signalled, Suspend, Unfit
from bireme.control.silence import BEATS
from bireme.errors import ProtocolError
from bireme.result.wait_status import signal_name
from bireme.runner.crew import Crew

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from bireme.cluster.cluster_job import ClusterJob
    from bireme.control.messages import Message, Output, Piece
    from bireme.node.machine import Machine
    from bireme.process.pid_file import PidFile
    from bireme.result.outcome import Cause
    from bireme.runner.session import Session
    from bireme.ship.source import Shipment, SourceTree

_NEWS = 0.25
"""Seconds by which the end of an agent may be reported later than the failures that it causes."""
_LAUNCHER_WAIT = 5.0
"""Seconds that the launcher may take to end after its agents were released."""


class AgentCrew(Crew):
    """The agents of nodes, from their start to their release.

    It releases the agents once all have answered. The crew of a job is a subclass, which starts the ranks instead.

    Args:
        job: the job that the nodes must be fit for.
        pid_file: created when the guardian of the launcher processes starts.

    Attributes:
        agents: one for each node, in the pool's order.
        members: those that take part.
    """

    def __init__(self, session: Session, job: ClusterJob, pid_file: PidFile, machine: Machine) -> None:
        self._session, self._job = session, job
        slots = job.nodes.slots
        self.agents = tuple(
            AgentHandle(index, host, slots[host.name], session.loop.now) for index, host in enumerate(job.launch.hosts)
        )
        self.members = list(self.agents)
        self._admitted = self._started = self._leaving = False
        self._allocates = bool(job.launch.allocation)
        """Whether the launcher makes an allocation for this job."""
        self._handlers: dict[type[Message | Output | Piece], Callable[[AgentHandle, Any], None]] = {
            Hello: self._on_hello,
            Say: self._on_say,
            Unfit: self._on_unfit,
            Signalled: self._on_signalled,
            Pong: lambda member, pong: member.clock(pong.sent, pong.now),
        }
        self._shipment: Shipment | None = None
        if job.tree is not None:
            self._prepare_shipment(job.tree)
        self._launcher_gone = False
        self._connector = AgentConnector(
            session,
            job,
            self.agents,
            on_frame=self._on_frame,
            on_end=self._on_end,
            on_violation=self._on_violation,
        )
        self._heartbeat = Heartbeat(session.loop, self.members, job.spec.heartbeat, self._lose)
        self._launcher = LauncherProcess(
            session.loop,
            machine.start_guardian,
            job.launch.commands,
            job.launch.environ,
            on_exit=self._launcher_exit,
            on_line=lambda index, line: self._bootstrap.on_launcher_line(index, line),
            on_lost=self._guard_lost,
            on_over=self._launcher_over,
            at_once=AT_ONCE,
            at_start=pid_file.create,
            at_loss=lambda: self._at_loss(pid_file),
            allocates=self._allocates,
        )
        self._one_by_one = job.one_by_one
        self._bootstrap = Bootstrap(session, job, self.members, self._launcher, on_answers=self._answered)

    # -- the crew's interface --------------------------------------------------------------------

    def start(self) -> None:
        """Start the launcher, and wait for the nodes' answers."""
        ends = self._launcher.start(channels=self._job.launch.backend.CHANNEL == "stdio")
        self._connector.start(ends)
        self._bootstrap.start()

    def stop(self, signum: int) -> None:
        """End the launcher and the agents."""
        self._leave()

    def kill_now(self) -> None:
        """Kill what is left now, without waiting for the grace time."""
        if self._leaving and not self._allocates:  # after SIGKILL nothing would give back the allocation
            self._launcher.kill()

    def suspend(self) -> None:
        """Suspend every process of the job. Agents do not expect a heartbeat in the meantime."""
        for member in self.members:
            member.send(Suspend())

    def resume(self) -> None:
        """Resume them."""
        self._heartbeat.resume()
        for member in self.members:
            member.send(Resume())

    def close(self) -> None:
        """Leave nothing behind."""
        for member in self.agents:
            if member.channel is not None:
                member.channel.close()
        self._launcher.close()
        self._connector.stop()

    # -- the answers -----------------------------------------------------------------------------

    def _answered(self) -> None:
        """Called when every node has answered or failed: release the agents, and report the unfit nodes."""
        if self._job.spec.elastic:
            self._bootstrap.judge_by_filters()
        if bad := self._bootstrap.unfit():
            self._complain(bad, len(self.agents))
        else:
            self._leave()

    def _complain(self, bad: Sequence[AgentHandle], total: int) -> None:
        note = complaint(bad, total, self.agents)
        self._session.trouble("unfit", note, self._session.loop.now(), tuple(member.name for member in bad))

    # -- what agents send ------------------------------------------------------------------------

    def _on_frame(self, member: AgentHandle, frame: Message | Output | Piece) -> None:
        member.silence.broken(self._session.loop.now())
        try:
            member.protocol.admit(frame)
        except ProtocolError as error:
            self._on_violation(member, str(error))
            return
        handler = self._handlers.get(type(frame))
        if handler is None:
            self._on_violation(member, f"it sent {type(frame).__name__} during the preflight")
        else:
            handler(member, frame)

    def _on_hello(self, member: AgentHandle, hello: Hello) -> None:
        if member.slots is not None and hello.slots and len(hello.slots) != len(member.slots):
            self._on_violation(member, f"it reported {len(hello.slots)} slots instead of {len(member.slots)}")
            return
        self._heartbeat.watch(member)
        self._bootstrap.hello(member, hello)

    def _prepare_shipment(self, tree: SourceTree) -> None:
        from bireme.control.messages import Taken
        from bireme.ship.messages import Need, Shipped, Wrong
        from bireme.ship.source import Shipment

        self._shipment = shipment = Shipment(
            tree,
            self._session.console.say,
            lambda why: self._session.trouble("unfit", why, self._session.loop.now()),
        )

        def on_need(member: AgentHandle, need: Need) -> None:
            self._heartbeat.watch(member)
            shipment.send(member, need)

        def on_shipped(member: AgentHandle, _: Shipped) -> None:
            shipment.forget(member)
            member.protocol.on("shipped")
            self._bootstrap.await_answer(member)

        self._handlers |= {Need: on_need, Taken: shipment.taken, Wrong: shipment.wrong, Shipped: on_shipped}

    @property
    def tree_changed(self) -> bool:
        """Whether the job ends because a file of the tree was changed after its digest was made."""
        return self._shipment is not None and self._shipment.changed

    def _on_say(self, member: AgentHandle, say: Say) -> None:
        for line in say.text.splitlines():  # a line without the node's name could pass for one of ours
            self._session.console.say(say.level, f"{member.name}: {line}")

    def _on_unfit(self, member: AgentHandle, unfit: Unfit) -> None:
        if self._session.verdict.stopping:
            return
        if member.state == "connecting":
            self._bootstrap.fail(member, list(unfit.problems))
            return
        member.problems += unfit.problems
        self._complain([member], len(self.members))

    def _on_signalled(self, member: AgentHandle, signalled: Signalled) -> None:
        if self._leaving or not member.alive or member.state == "fetching":
            return  # ours: ending the launcher also signals an agent that runs here without ssh
        reason = f"it was stopped by {signal_name(signalled.signum)}"
        if self._started:
            # A launcher that ends a node also signals its ranks, in any order: they are not at fault.
            note = f"agent lost on {member.name}: {reason}"
            self._session.trouble("agent lost", note, member.our_time(signalled.when) - _NEWS, (member.name,))
        else:
            self._lose(member, reason, self._session.loop.now())

    # -- losses ----------------------------------------------------------------------------------

    def _lose(self, member: AgentHandle, reason: str, when: float) -> None:
        """A node was lost at ``when`` (our clock): date it before the failures that this causes on other nodes."""
        self._close(member)
        if self._one_by_one:
            # Later: if its launcher process was killed from outside, that is about to be reported.
            self._session.loop.after(_NEWS, lambda: self._launcher.end(member.index))
        if not self._admitted:
            # A launcher that cannot reach one node ends the agents of all others: they are not at fault.
            member.hint = reason
            self._bootstrap.fail(member, [reason] if self._one_by_one else [])
            return
        self._declare_lost(member, reason, when)

    def _close(self, member: AgentHandle) -> None:
        """Neither hear nor tell an agent anything more."""
        if member.channel is not None:
            member.channel.close()
        if self._shipment is not None:
            self._shipment.forget(member)

    def _declare_lost(self, member: AgentHandle, reason: str, when: float) -> None:
        member.protocol.on("lose")
        self._session.trouble("agent lost", f"agent lost on {member.name}: {reason}", when, (member.name,))
        self._maybe_leave()

    def _on_violation(self, member: AgentHandle, what: str) -> None:
        """An agent broke the protocol: nothing else it sends can be trusted, so its node counts as lost."""
        self._close(member)
        if self._one_by_one:
            self._launcher.end(member.index)
        if member.alive and not self._leaving:
            self._declare_lost(member, f"it broke the protocol: {what}", self._session.loop.now())

    def _on_end(self, member: AgentHandle, reason: str) -> None:
        """A channel has ended. While connecting, the end of its launcher process tells more."""
        if self._leaving:
            return
        if member.state in ("shipping", "ready", "probed", "running", "fetching"):
            reason = f"its channel was {reason}" if reason.startswith("closed") else reason
            self._lose(member, reason, self._last_heard(member))
        elif member.state == "connecting" and not self._one_by_one:
            self._bootstrap.agent_gone(member)
        elif member.state == "connecting" and not reason.startswith("closed"):
            self._bootstrap.fail(member, [f"its channel {reason}"])

    def _last_heard(self, member: AgentHandle) -> float:
        """When an agent was lost whose channel has ended: at its last sign of life if it has missed a ping since."""
        now, silence = self._session.loop.now(), member.silence
        owed = self._job.spec.heartbeat / BEATS + _NEWS
        return silence.since if silence.lasted(now) > owed else now - _NEWS

    def _guard_lost(self, pid: int) -> None:
        """The guardian or watcher of the launcher processes was killed, and they end with it."""
        if not self._leaving or self._session.verdict.stopping:  # once the job has ended well, it does not matter
            note = f"the guardian of the launcher {self._job.launch.backend.NAME} (pid {pid}) was killed"
            self._launcher_killed(note, ())

    def _launcher_killed(self, note: str, hosts: tuple[str, ...]) -> None:
        """Report that the launcher was killed, dated before the loss of the channels. An elastic job tries again."""
        cause: Cause = "agent lost" if not self._job.spec.elastic else "membership"
        self._session.trouble(cause, note, self._session.loop.now() - 2 * _NEWS, hosts)

    def _launcher_exit(self, index: int, code: int, signum: int) -> None:
        if self._leaving:
            return
        affected = [self.agents[index]] if self._one_by_one else self.members
        if signum and not self._started and not self._job.spec.elastic:
            hosts = tuple(member.name for member in affected) if self._one_by_one else ()
            whose = f" of {hosts[0]}" if hosts else ""
            by = signal_name(signum)
            self._launcher_killed(f"the launcher {self._job.launch.backend.NAME}{whose} was killed by {by}", hosts)
            return
        for member in affected:
            if member.state == "connecting" and member.channel is not None:
                member.channel.look()  # a login shell may have said on stdout why it runs nothing
            if member.state in ("waiting", "connecting"):
                self._bootstrap.fail(member, self._bootstrap.why(member, index, code))

    # -- the end ---------------------------------------------------------------------------------

    def _maybe_leave(self) -> None:
        if not any(member.alive for member in self.members):
            self._leave()

    def _leave(self) -> None:
        """Release the agents, and wait for the launcher to end."""
        if self._leaving:
            return
        self._leaving = True
        attribute_losses(self._session, self._job, self.members)
        self._bootstrap.stop()
        self._heartbeat.stop()
        for member in self.members:
            member.send(Release())
        if self._launcher_gone:  # too early: it may have been killed
            self._give_back_allocation()
            self._finish()
        elif self._started and all(member.state == "over" for member in self.members):
            self._session.loop.after(_LAUNCHER_WAIT, self._end_launcher)
        else:
            self._end_launcher()

    def _end_launcher(self) -> None:
        """End the launcher now, and cancel its allocation, which it would keep while it waits for a dead node."""
        if not self._launcher_gone:
            self._launcher.terminate()
            if self._connector.allocation:
                self._give_back_allocation()

    def _give_back_allocation(self) -> None:
        if self._connector.allocation and self._allocates:
            self._launcher.run_aside((*self._job.launch.backend.CANCEL, self._connector.allocation))
        elif self._allocates:
            self._launcher.run_aside(self._cancel_named())

    def _cancel_named(self) -> tuple[str, ...]:
        return (*self._job.launch.backend.CANCEL_NAMED, self._job.launch.allocation)

    def _at_loss(self, pid_file: PidFile) -> None:
        """Called in guardian or watcher: remove what is ours, also an allocation that the launcher left."""
        pid_file.remove()
        if self._allocates:
            cancel(self._cancel_named())

    def _launcher_over(self) -> None:
        """The launcher has ended. Agents that have connected by themselves are lost only when their channels end."""
        self._launcher_gone = True
        if self._leaving:
            if not self._connector.allocation:  # it may have ended between its request and the scheduler's answer
                self._give_back_allocation()
            self._finish()

    def _finish(self) -> None:
        self._session.gone()
        self._session.over()
