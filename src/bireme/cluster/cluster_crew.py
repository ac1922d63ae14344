"""The crew of a job on many nodes: its agents, from bootstrap to release."""

from __future__ import annotations

import signal

from bireme.cluster import preflight_report
from bireme.cluster.agent_connector import AgentConnector
from bireme.cluster.agent_handle import AgentHandle
from bireme.cluster.bootstrap import AT_ONCE, Bootstrap
from bireme.cluster.fault_attribution import attribute_losses
from bireme.cluster.heartbeat import Heartbeat
from bireme.cluster.launcher_process import LauncherProcess
from bireme.cluster.node_plans import node_plans
from bireme.cluster.output_credit import WINDOW, OutputCredit
from bireme.cluster.rendezvous_address import RendezvousAddress
from bireme.control.messages import (
    Down,
    Eof,
    GuardianLost,
    Hello,
    Output,
    Over,
    Pong,
    Probed,
    ProtocolError,
    Release,
    Rested,
    Resume,
    Say,
    Signalled,
    SignalRanks,
    Start,
    Stop,
    Suspend,
    Unfit,
    Up,
    Urge,
)
from bireme.control.silence import BEATS
from bireme.logs.rankfiles import RankFiles

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from bireme.agent.machine import Machine
    from bireme.agent.session import Session
    from bireme.cluster.agent_listener import AgentListener
    from bireme.cluster.cluster_job import ClusterJob
    from bireme.control.messages import Message
    from bireme.process.pid_file import PidFile
    from bireme.result.outcome import Cause

_NEWS = 0.25
"""Seconds by which the news of an agent's end may come later than the news of the failures that it causes."""
_LAUNCHER_WAIT = 5.0
"""Seconds that the launcher may take to end after its agents were released."""


class ClusterCrew:
    """A crew of many nodes: implements :class:`bireme.agent.crew_interface.Crew`.

    Args:
        session: told what happens.
        cluster_job: the job.
        listener: where agents connect; ``None``: over stdin and stdout of their launcher processes.
        pid_file: created when the guardian of the launcher processes starts.
        machine: the machine of the runner.
    """

    def __init__(
        self,
        session: Session,
        cluster_job: ClusterJob,
        listener: AgentListener | None,
        pid_file: PidFile,
        machine: Machine,
    ) -> None:
        self._session, self._cluster_job = session, cluster_job
        pairs = zip(cluster_job.hosts, cluster_job.slots, strict=True)
        self._all = tuple(
            AgentHandle(index, host, slots, session.loop.now) for index, (host, slots) in enumerate(pairs)
        )
        self.members = list(self._all)
        """The agents that take part."""
        self._started = self._leaving = False
        self._allocates = bool(cluster_job.backend.CANCEL) and "SLURM_JOB_ID" not in cluster_job.environ
        """Whether the launcher makes an allocation for this job."""
        self._handlers: Mapping[type[Message], Callable[[AgentHandle, Any], None]] = {
            Hello: self._on_hello,
            Probed: self._on_probed,
            Up: lambda _, up: session.up(up.rank, up.pid),
            Down: self._on_down,
            Rested: lambda _, rested: session.rested(rested.rank, rested.number),
            Eof: lambda _, eof: session.eof(eof.rank, eof.number),
            Say: self._on_say,
            Unfit: self._on_unfit,
            GuardianLost: self._on_guardian_lost,
            Signalled: self._on_signalled,
            Over: self._on_over,
            Pong: lambda member, pong: member.clock(pong.sent, pong.now),
        }
        self._launcher_gone = False
        self._killed = 0
        self._stuck: list[str] = []
        self._connector = AgentConnector(
            session,
            cluster_job,
            self._all,
            listener,
            on_frame=self._on_frame,
            on_end=self._on_end,
            on_violation=self._on_violation,
        )
        self._credit = OutputCredit(session, self.members)
        self._heartbeat = Heartbeat(session.loop, self.members, cluster_job.heartbeat, self._lose)
        self._launcher = LauncherProcess(
            session.loop,
            machine.start_guardian,
            cluster_job.commands,
            cluster_job.environ,
            on_exit=self._launcher_exit,
            on_line=lambda index, line: self._bootstrap.on_launcher_line(index, line),
            on_lost=self._guard_lost,
            on_over=self._launcher_over,
            at_once=AT_ONCE,
            at_start=pid_file.create,
            at_loss=pid_file.remove,
            allocates=self._allocates,
        )
        self._one_by_one = cluster_job.one_by_one
        self._bootstrap = Bootstrap(
            session,
            cluster_job,
            self.members,
            self._launcher,
            on_fit=self._find_address,
            on_checked=self._leave,
        )
        self._address = RendezvousAddress(session, cluster_job, self.members, self._start)

    # -- the crew's interface --------------------------------------------------------------------

    @property
    def killed(self) -> int:
        """How many ranks had to be killed."""
        return self._killed

    @property
    def stuck(self) -> tuple[str, ...]:
        """Processes that even SIGKILL did not end, with their hosts."""
        return tuple(self._stuck)

    @property
    def logs(self) -> tuple[str, ...]:
        """The ranks' log files that were gathered here."""
        return tuple(self._credit.files.paths.values()) if self._credit.files is not None else ()

    def start(self) -> None:
        """Start the launcher, and bootstrap the nodes."""
        ends = self._launcher.start(channels=self._cluster_job.backend.CHANNEL == "stdio")
        self._connector.start(ends)
        self._bootstrap.start()
        if self._cluster_job.epoch is not None:
            self._cluster_job.epoch.attach(self._session)

    def stop(self, signum: int) -> None:
        """End all ranks by each node's stop ladder; before there are any, end the launcher."""
        if not self._started:
            self._leave()
            return
        for member in self.members:
            if member.state == "running":
                member.protocol.stop()
                member.send(Stop(signum=int(signum)))

    def urge(self) -> None:
        """Kill what is left now, without waiting for the grace time."""
        if self._leaving and not self._allocates:  # after SIGKILL nothing would give back the allocation
            self._launcher.kill()
        for member in self.members:
            member.protocol.stop()
            member.send(Urge())

    def signal_ranks(self, signum: int) -> None:
        """Send a signal to every rank."""
        for member in self.members:
            member.send(SignalRanks(signum=int(signum)))

    def suspend(self) -> None:
        """Suspend every process of the job. Agents do not expect a heartbeat in the meantime."""
        for member in self.members:
            member.send(Suspend())

    def resume(self) -> None:
        """Resume them."""
        self._heartbeat.resume()
        for member in self.members:
            member.send(Resume())

    def resize(self) -> None:
        """Do nothing: ranks of other nodes write to pipes."""

    def hold_output(self) -> None:
        """Let the agents send no more output."""
        self._credit.hold()

    def release_output(self) -> None:
        """Let the agents send output again."""
        self._credit.release()

    def close(self) -> None:
        """Leave nothing behind."""
        for member in self._all:
            if member.channel is not None:
                member.channel.close()
        self._launcher.close()
        self._connector.stop()
        self._credit.close()

    # -- connecting ------------------------------------------------------------------------------

    def _on_hello(self, member: AgentHandle, hello: Hello) -> None:
        if member.slots is not None and hello.slots and len(hello.slots) != len(member.slots):
            self._on_violation(member, f"it sent {len(hello.slots)} slots, and has {len(member.slots)}")
            return
        self._heartbeat.watch(member)
        self._bootstrap.hello(member, hello)

    def _on_probed(self, member: AgentHandle, probed: Probed) -> None:
        if not self._leaving:
            self._address.probed(member, probed.reachable)

    def _find_address(self) -> None:
        """Every node is fit: find the address of the rendezvous."""
        if not self._leaving:
            self._address.find()

    def _start(self, master_addr: str) -> None:
        """The address is known: make the plan, and tell each node to start its ranks."""
        self._connector.stop()
        plan, nodes = node_plans(self._cluster_job, self.members, master_addr)
        self._session.planned(plan)
        if self._cluster_job.log_dir is not None:
            ranks = [worker.rank for node in plan.nodes for worker in node.workers]
            say = self._session.console.say
            self._credit.files = RankFiles(self._cluster_job.log_dir, ranks, lambda text: say("error", text))
        self._started = True
        if self._cluster_job.epoch is not None:
            self._cluster_job.epoch.begun(tuple(nodes), plan)
        accelerator, grace = self.members[0].hello.accelerator, self._cluster_job.spec.grace
        for member in self.members:
            node = nodes.get(member.name)
            if node is None:  # the filters leave it no slots
                member.protocol.on("idle")
                continue
            member.protocol.start(worker.rank for worker in node.workers)
            member.send(Start(node=node, accelerator=accelerator, grace=grace, window=WINDOW, rest=self._session.rest))

    # -- running ---------------------------------------------------------------------------------

    def _on_frame(self, member: AgentHandle, frame: Message | Output) -> None:
        member.silence.broken(self._session.loop.now())
        try:
            member.protocol.admit(frame)
        except ProtocolError as error:
            self._on_violation(member, str(error))
            return
        if isinstance(frame, Output):
            self._credit.take(member, frame)
        else:
            self._handlers[type(frame)](member, frame)

    def _on_down(self, member: AgentHandle, down: Down) -> None:
        end = down.end.replace(host=member.hello.hostname, detail="")  # an agent cannot speak for another node
        self._session.down(end, member.our_time(down.when))

    def _on_say(self, member: AgentHandle, say: Say) -> None:
        for line in say.text.splitlines():  # a line without the node's name could pass for one of ours
            self._session.console.say(say.level, f"{member.name}: {line}")

    def _on_unfit(self, member: AgentHandle, unfit: Unfit) -> None:
        if self._session.verdict.stopping:
            return
        member.problems += unfit.problems
        note = preflight_report.complaint([member], len(self.members))
        self._session.trouble("unfit", note, self._session.loop.now(), (member.name,))

    def _on_guardian_lost(self, member: AgentHandle, lost: GuardianLost) -> None:
        note = f"agent lost on {member.name}: its guardian (pid {lost.pid}) was killed"
        self._session.trouble("agent lost", note, member.our_time(lost.when), (member.name,))

    def _on_signalled(self, member: AgentHandle, signalled: Signalled) -> None:
        if self._leaving or not member.alive:
            return  # ours: ending the launcher also signals an agent that runs here without ssh
        reason = f"it was stopped by {signal.Signals(signalled.signum).name}"
        if self._started:
            # A launcher that ends a node also signals its ranks, in any order: they are not at fault.
            note = f"agent lost on {member.name}: {reason}"
            self._session.trouble("agent lost", note, member.our_time(signalled.when) - _NEWS, (member.name,))
        else:
            self._lose(member, reason, self._session.loop.now())

    def _on_over(self, member: AgentHandle, over: Over) -> None:
        member.protocol.on("over")
        self._killed += over.killed
        self._stuck += [f"{member.name}: {' '.join(what.splitlines())}" for what in over.stuck]
        self._maybe_leave()

    # -- losses ----------------------------------------------------------------------------------

    def _lose(self, member: AgentHandle, reason: str, when: float) -> None:
        """A node was lost at ``when`` (our clock): date it before the failures that this causes on other nodes."""
        if member.channel is not None:
            member.channel.close()
        if self._one_by_one:
            # Later: if its launcher process was killed from outside, that is about to be reported.
            self._session.loop.after(_NEWS, lambda: self._launcher.end(member.index))
        if not self._started and not (self._cluster_job.epoch is not None and self._bootstrap.all_fit):
            # A launcher that cannot reach one node ends the agents of all others: they are not at fault.
            member.hint = reason
            self._bootstrap.fail(member, [reason] if self._one_by_one else [])
            return
        self._declare_lost(member, reason, when)

    def _declare_lost(self, member: AgentHandle, reason: str, when: float) -> None:
        member.protocol.on("lose")
        self._session.trouble("agent lost", f"agent lost on {member.name}: {reason}", when, (member.name,))
        self._maybe_leave()

    def _on_violation(self, member: AgentHandle, what: str) -> None:
        """An agent broke the protocol: nothing else it sends can be trusted, so its node counts as lost."""
        if member.channel is not None:
            member.channel.close()
        if self._one_by_one:
            self._launcher.end(member.index)
        if member.alive and not self._leaving:
            self._declare_lost(member, f"it broke the protocol: {what}", self._session.loop.now())

    def _on_end(self, member: AgentHandle, reason: str) -> None:
        """A channel has ended. While connecting, the end of its launcher process tells more."""
        if self._leaving:
            return
        if member.state in ("ready", "probed", "running"):
            reason = f"its channel was {reason}" if reason.startswith("closed") else reason
            self._lose(member, reason, self._last_heard(member))
        elif member.state == "connecting" and not reason.startswith("closed"):
            self._bootstrap.fail(member, [reason])

    def _last_heard(self, member: AgentHandle) -> float:
        """When an agent whose channel has ended was lost: at its last sign of life, if it owed another one since."""
        now, silence = self._session.loop.now(), member.silence
        owed = self._cluster_job.heartbeat / BEATS + _NEWS
        return silence.since if silence.lasted(now) > owed else now - _NEWS

    def _guard_lost(self, pid: int) -> None:
        """The guardian or watcher of the launcher processes was killed, and they end with it."""
        if not self._leaving or self._session.verdict.stopping:  # once the job has ended well, it does not matter
            note = f"the guardian of the launcher {self._cluster_job.backend.NAME} (pid {pid}) was killed"
            self._launcher_killed(note, ())

    def _launcher_killed(self, note: str, hosts: tuple[str, ...]) -> None:
        """The launcher was killed: date that before the lost channels that follow. An elastic job tries again."""
        cause: Cause = "agent lost" if self._cluster_job.epoch is None else "membership"
        self._session.trouble(cause, note, self._session.loop.now() - 2 * _NEWS, hosts)

    def _launcher_exit(self, index: int, code: int, signum: int) -> None:
        if self._leaving:
            return
        affected = [self._all[index]] if self._one_by_one else self.members
        if signum and not self._started and self._cluster_job.epoch is None:
            hosts = tuple(member.name for member in affected) if self._one_by_one else ()
            whose = f" of {hosts[0]}" if hosts else ""
            by = signal.Signals(signum).name
            self._launcher_killed(f"the launcher {self._cluster_job.backend.NAME}{whose} was killed by {by}", hosts)
            return
        for member in affected:
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
        attribute_losses(self._session, self._cluster_job, self.members)
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
            self._give_back_allocation()

    def _give_back_allocation(self) -> None:
        if self._allocates and self._connector.allocation:
            self._launcher.run_aside((*self._cluster_job.backend.CANCEL, self._connector.allocation))

    def _launcher_over(self) -> None:
        """The launcher has ended. Agents that have connected by themselves are lost only when their channels end."""
        self._launcher_gone = True
        if self._leaving:
            self._finish()

    def _finish(self) -> None:
        self._session.gone()
        self._session.over()
