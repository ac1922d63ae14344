"""The agents of many nodes as one crew: connect, check, plan, start, watch, stop, release."""

from __future__ import annotations

import os
import signal
import time

from bireme.cluster import preflight_report
from bireme.cluster.agent_handle import AgentHandle, find_agent
from bireme.cluster.bootstrap import AT_ONCE, Bootstrap
from bireme.cluster.fault_attribution import attribute_losses
from bireme.cluster.flow_control import WINDOW, FlowControl
from bireme.cluster.heartbeat import Heartbeat
from bireme.cluster.launcher_process import LauncherProcess
from bireme.cluster.node_plans import node_plans
from bireme.control.channel import Channel
from bireme.control.messages import (
    FROM_AGENT,
    Ask,
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
from bireme.logs.rankfiles import RankFiles
from bireme.planning.masking import is_secret

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from bireme.agent.session import Session
    from bireme.cluster.agent_listener import AgentListener
    from bireme.cluster.cluster_job import ClusterJob
    from bireme.control.messages import Message
    from bireme.control.transport import Transport
    from bireme.process.pid_file import PidFile
    from bireme.result.outcome import Cause

_NEWS = 0.25
"""Seconds by which the end of an agent may reach us later than the failures that it, or what ends it, causes."""
_ENGINE_WAIT = 5.0
"""Seconds that an engine may take to end after its agents were released."""


class ClusterCrew:
    """A crew of many nodes: see :class:`bireme.agent.session.Crew`."""

    def __init__(
        self, session: Session, cluster_job: ClusterJob, dial: AgentListener | None, pid_file: PidFile
    ) -> None:
        self._session, self._cluster_job, self._dial = session, cluster_job, dial
        pairs = zip(cluster_job.hosts, cluster_job.slots, strict=True)
        self._all = tuple(AgentHandle(index, host, slots) for index, (host, slots) in enumerate(pairs))
        self.members = list(self._all)
        """Those that take part."""
        self._stopping = self._started = self._leaving = False
        self._allocates = bool(cluster_job.backend.CANCEL) and "SLURM_JOB_ID" not in cluster_job.environ
        """Whether the engine makes an allocation for this job."""
        self._allocation = ""
        self._handlers: Mapping[type[Message], Callable[[AgentHandle, Any], None]] = {
            Hello: self._on_hello,
            Probed: self._on_probed,
            Up: self._on_up,
            Down: self._on_down,
            Rested: self._on_rested,
            Eof: self._on_eof,
            Say: self._on_say,
            Unfit: self._on_unfit,
            GuardianLost: self._on_guardian_lost,
            Signalled: self._on_signalled,
            Over: self._on_over,
            Pong: self._on_pong,
        }
        self._engine_gone = False
        self._killed = 0
        self._stuck: list[str] = []
        self._said: set[str] = set()
        """Why channels are not encrypted, as far as it was said."""
        self._flow_control = FlowControl(session, self.members)
        self._heartbeat = Heartbeat(session.loop, self.members, cluster_job.heartbeat, self._silent)
        self._launcher = LauncherProcess(
            session.loop,
            cluster_job.commands,
            cluster_job.environ,
            on_exit=self._engine_exit,
            on_line=lambda index, line: self._bootstrap.engine_says(index, line),
            on_lost=self._engine_lost,
            on_over=self._engine_over,
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
            on_address=self._start,
            on_checked=self._leave,
        )

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
        return tuple(self._flow_control.files.paths.values()) if self._flow_control.files is not None else ()

    def start(self) -> None:
        """Start the engine and talk to whoever answers."""
        ends = self._launcher.start(channels=self._cluster_job.backend.CHANNEL == "stdio")
        for index, (read_fd, write_fd) in enumerate(ends):
            self._attach(self._all[index], read_fd, write_fd)
        if self._dial is not None:
            self._dial.listen(self._session.loop, self._dialled)
        self._bootstrap.start()
        if self._cluster_job.epoch is not None:
            self._cluster_job.epoch.attach(self._session)

    def stop(self, signum: int) -> None:
        """End all ranks, by each node's stop ladder; before there are any, end the engine."""
        self._stopping = True
        if not self._started:
            self._leave()
            return
        for member in self.members:
            if member.state == "running":
                member.send(Stop(signum=int(signum)))

    def urge(self) -> None:
        """Do not wait for the grace time."""
        if self._leaving and not self._allocates:  # SIGKILL would leave the allocation to nobody
            self._launcher.kill()
        for member in self.members:
            member.send(Urge())

    def signal_ranks(self, signum: int) -> None:
        """A signal to every rank."""
        for member in self.members:
            member.send(SignalRanks(signum=int(signum)))

    def suspend(self) -> None:
        """Halt every process of the job; nobody misses our heartbeat meanwhile."""
        for member in self.members:
            member.send(Suspend())

    def resume(self) -> None:
        """Wake them."""
        self._heartbeat.resume()
        for member in self.members:
            member.send(Resume())

    def hold_output(self) -> None:
        """Take no more of what the ranks write."""
        self._flow_control.hold()

    def release_output(self) -> None:
        """There is room again."""
        self._flow_control.release()

    def close(self) -> None:
        """Leave nothing behind."""
        for member in self._all:
            if member.channel is not None:
                member.channel.close()
        self._launcher.close()
        self._close_the_door()
        self._flow_control.close()

    def _close_the_door(self) -> None:
        """Nobody else dials any more."""
        if self._dial is not None:
            self._dial.close()
            self._dial = None

    # -- connecting ------------------------------------------------------------------------------

    def _attach(self, member: AgentHandle, read_fd: int, write_fd: int, transport: Transport | None = None) -> None:
        member.channel = Channel(
            self._session.loop,
            read_fd,
            write_fd,
            FROM_AGENT,
            on_frame=lambda frame: self._on_frame(member, frame),
            on_end=lambda reason: self._on_end(member, reason),
            transport=transport,
            on_violation=lambda what: self._on_violation(member, what),
        )
        member.send(
            Ask(
                spec=self._cluster_job.spec,
                cwd=os.getcwd(),
                heartbeat=self._cluster_job.heartbeat,
                first=member.index == 0 or self._cluster_job.epoch is not None,
                name=member.name,
                slots=member.slots,
                exports=self._exports(member, member.channel.readable),
                unset=self._cluster_job.backend.RANK_VARIABLES,
            )
        )

    def _exports(self, member: AgentHandle, readable: str) -> dict[str, str]:
        """The variables that travel there: without secrets, if others can read them on the way."""
        if not readable:
            return dict(self._cluster_job.exports)
        withheld = sorted(name for name in self._cluster_job.exports if is_secret(name))
        if readable not in self._said:  # not once for each of a thousand nodes
            self._said.add(readable)
            names = f"; exported variables that are withheld as secrets: {', '.join(withheld)}" if withheld else ""
            note = f"the channel to {member.name} (and maybe other nodes) is not encrypted: {readable}{names}"
            self._session.console.say("warning", note)
        return {name: value for name, value in self._cluster_job.exports.items() if name not in withheld}

    def _dialled(self, who: dict[str, str], fd: int, transport: Transport) -> None:
        """An agent has dialled back and proved that it is ours: which node is it?"""
        member = find_agent(self._all, who)
        if member is None:
            os.close(fd)
            note = f"the launcher has started an agent on {who.get('hostname', '?')}, which is no node of the job"
            self._session.trouble("unfit", note, time.monotonic())
        elif member.channel is not None or member.state != "connecting":
            os.close(fd)
        else:
            self._allocation = who.get("allocation", "")
            self._attach(member, fd, fd, transport)

    def _on_hello(self, member: AgentHandle, hello: Hello) -> None:
        self._heartbeat.watch(member)
        self._bootstrap.hello(member, hello)

    def _on_probed(self, member: AgentHandle, probed: Probed) -> None:
        if not self._leaving:
            self._bootstrap.probed(member, probed.reachable)

    def _find_address(self) -> None:
        """Every node is fit, and they are numbered in the order of the pool: find where their ranks can meet."""
        if not self._leaving:
            self._bootstrap.find_address()

    def _start(self, master_addr: str) -> None:
        """The ranks can meet: number them and let them start."""
        self._close_the_door()
        plan, nodes = node_plans(self._cluster_job, self.members, master_addr)
        self._session.planned(plan)
        if self._cluster_job.log_dir is not None:
            ranks = [worker.rank for node in plan.nodes for worker in node.workers]
            say = self._session.console.say
            self._flow_control.files = RankFiles(self._cluster_job.log_dir, ranks, lambda text: say("error", text))
        self._started = True
        if self._cluster_job.epoch is not None:
            self._cluster_job.epoch.begun(tuple(nodes), plan)
        accelerator = self.members[0].hello.accelerator
        for member in self.members:
            node = nodes.get(member.name)
            if node is None:  # the filters left it no slot
                member.protocol.on("idle")
                continue
            member.protocol.start(worker.rank for worker in node.workers)
            member.send(
                Start(
                    node=node,
                    accelerator=accelerator,
                    grace=self._cluster_job.spec.grace,
                    window=WINDOW,
                    rest=self._session.rest,
                )
            )

    # -- running ---------------------------------------------------------------------------------

    def _on_frame(self, member: AgentHandle, frame: Message | Output) -> None:
        member.liveness.broken(time.monotonic())
        try:
            member.protocol.admit(frame)
        except ProtocolError as error:
            self._on_violation(member, str(error))
            return
        if isinstance(frame, Output):
            self._flow_control.take(member, frame)
        else:
            self._handlers[type(frame)](member, frame)

    def _on_up(self, member: AgentHandle, up: Up) -> None:
        self._session.up(up.rank, up.pid)

    def _on_down(self, member: AgentHandle, down: Down) -> None:
        self._session.down(down.end, member.our_time(down.when))

    def _on_rested(self, member: AgentHandle, rested: Rested) -> None:
        self._session.rested(rested.rank, rested.number)

    def _on_eof(self, member: AgentHandle, eof: Eof) -> None:
        self._session.eof(eof.rank, eof.number)

    def _on_say(self, member: AgentHandle, say: Say) -> None:
        self._session.console.say(say.level, f"{member.name}: {say.text}")

    def _on_unfit(self, member: AgentHandle, unfit: Unfit) -> None:
        member.problems += unfit.problems
        note = preflight_report.complaint([member], len(self.members))
        self._session.trouble("unfit", note, time.monotonic(), (member.name,))

    def _on_guardian_lost(self, member: AgentHandle, lost: GuardianLost) -> None:
        note = f"agent lost on {member.name}: its guardian (pid {lost.pid}) was killed"
        self._session.trouble("agent lost", note, time.monotonic(), (member.name,))

    def _on_signalled(self, member: AgentHandle, signalled: Signalled) -> None:
        if self._leaving or not member.alive:
            return  # it is our own: the end of the engine reaches an agent that runs here without ssh
        reason = f"it was stopped by {signal.Signals(signalled.signum).name}"
        if self._started:
            # An engine that ends a node signals its ranks as well, in any order: theirs is not the fault.
            note = f"agent lost on {member.name}: {reason}"
            self._session.trouble("agent lost", note, member.our_time(signalled.when) - _NEWS, (member.name,))
        else:
            self._lose(member, reason, time.monotonic())

    def _on_over(self, member: AgentHandle, over: Over) -> None:
        member.protocol.on("over")
        self._killed += over.killed
        self._stuck += [f"{member.name}: {what}" for what in over.stuck]
        self._maybe_leave()

    def _on_pong(self, member: AgentHandle, pong: Pong) -> None:
        member.clock(pong.sent, pong.now)

    # -- losses ----------------------------------------------------------------------------------

    def _silent(self, member: AgentHandle) -> None:
        self._lose(member, f"no sign of life for {self._cluster_job.heartbeat:g} s", member.liveness.since)

    def _lose(self, member: AgentHandle, reason: str, when: float) -> None:
        """A node is gone, since a second of our clock: whatever that has caused elsewhere comes after it."""
        if member.channel is not None:
            member.channel.close()
        if self._one_by_one:
            # Later: had somebody killed the session, we are about to be told.
            self._session.loop.after(_NEWS, lambda: self._launcher.end(member.index))
        if not self._started and not (self._cluster_job.epoch is not None and self._bootstrap.all_fit):
            # An engine that cannot reach one node ends the agents of the others: theirs is not the fault.
            member.hint = reason
            self._bootstrap.fail(member, [reason] if self._one_by_one else [])
            return
        self._declare_lost(member, reason, when)

    def _declare_lost(self, member: AgentHandle, reason: str, when: float) -> None:
        member.protocol.on("lose")
        self._session.trouble("agent lost", f"agent lost on {member.name}: {reason}", when, (member.name,))
        self._maybe_leave()

    def _on_violation(self, member: AgentHandle, what: str) -> None:
        """An agent has broken the protocol: whatever else it says cannot be trusted, so its node is lost."""
        if member.channel is not None:
            member.channel.close()
        if self._one_by_one:
            self._launcher.end(member.index)
        if member.alive and not self._leaving:
            self._declare_lost(member, f"it broke the protocol: {what}", time.monotonic())

    def _on_end(self, member: AgentHandle, reason: str) -> None:
        """A channel has ended; whose session it was may say why when it ends too."""
        if self._leaving:
            return
        if member.state in ("ready", "probed", "running"):
            reason = f"its channel was {reason}" if reason.startswith("closed") else reason
            self._lose(member, reason, time.monotonic() - _NEWS)
        elif member.state == "connecting" and not reason.startswith("closed"):
            self._bootstrap.fail(member, [reason])

    def _engine_lost(self, pid: int) -> None:
        """What stands between us and the engine was killed; the engine has ended with it, or has to."""
        if not self._leaving or self._session.verdict.stopping:  # when all is well and over, it does not matter
            note = f"the guardian of the launcher {self._cluster_job.backend.NAME} (pid {pid}) was killed"
            self._engine_killed(note, ())

    def _engine_killed(self, note: str, hosts: tuple[str, ...]) -> None:
        """The cause of what the channels say at the same time; the nodes of an elastic job are tried once more."""
        cause: Cause = "agent lost" if self._cluster_job.epoch is None else "membership"
        self._session.trouble(cause, note, time.monotonic() - 2 * _NEWS, hosts)

    def _engine_exit(self, index: int, code: int, signum: int) -> None:
        if self._leaving:
            return
        affected = [self._all[index]] if self._one_by_one else self.members
        if signum and not self._started and self._cluster_job.epoch is None:
            hosts = tuple(member.name for member in affected) if self._one_by_one else ()
            whose = f" of {hosts[0]}" if hosts else ""
            by = signal.Signals(signum).name
            self._engine_killed(f"the launcher {self._cluster_job.backend.NAME}{whose} was killed by {by}", hosts)
            return
        for member in affected:
            if member.state in ("waiting", "connecting"):
                self._bootstrap.fail(member, self._bootstrap.why(member, index, code))

    # -- the end ---------------------------------------------------------------------------------

    def _maybe_leave(self) -> None:
        if not any(member.alive for member in self.members):
            self._leave()

    def _leave(self) -> None:
        """All is over: release the agents, and wait for the engine."""
        if self._leaving:
            return
        self._leaving = True
        attribute_losses(self._session, self._cluster_job, self.members)
        self._bootstrap.stop()
        self._heartbeat.stop()
        for member in self.members:
            member.send(Release())
        if self._engine_gone:  # before its time: it may have been killed
            self._give_back_allocation()
            self._finish()
        elif self._started and all(member.state == "over" for member in self.members):
            self._session.loop.after(_ENGINE_WAIT, self._end_engine)
        else:
            self._end_engine()

    def _end_engine(self) -> None:
        """It has to end now. An allocation that it has made outlives an engine that waits for a dead node."""
        if not self._engine_gone:
            self._launcher.terminate()
            self._give_back_allocation()

    def _give_back_allocation(self) -> None:
        if self._allocates and self._allocation:
            self._launcher.run_aside((*self._cluster_job.backend.CANCEL, self._allocation))

    def _engine_over(self) -> None:
        """The engine has ended. Agents that have dialled are not lost by that: their channels say when they are."""
        self._engine_gone = True
        if self._leaving:
            self._finish()

    def _finish(self) -> None:
        self._session.gone()
        self._session.over()
