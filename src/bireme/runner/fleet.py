"""The agents of many nodes as one crew: connect, check, plan, start, watch, stop, release."""

from __future__ import annotations

import os
import signal
import time

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
from bireme.runner import preflight
from bireme.runner.blame import blame_the_lost
from bireme.runner.departure import departure
from bireme.runner.engine import Engine
from bireme.runner.heartbeat import Heartbeat
from bireme.runner.intake import WINDOW, Intake
from bireme.runner.member import Member, find_member
from bireme.runner.muster import AT_ONCE, Muster

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from bireme.agent.session import Session
    from bireme.control.messages import Message
    from bireme.control.transport import Transport
    from bireme.runner.agent_listener import AgentListener
    from bireme.runner.pidfile import PidFile
    from bireme.runner.voyage import Voyage
    from bireme.supervise.outcome import Cause

_NEWS = 0.25
"""Seconds by which the end of an agent may reach us later than the failures that it, or what ends it, causes."""
_ENGINE_WAIT = 5.0
"""Seconds that an engine may take to end after its agents were released."""


class Fleet:
    """A crew of many nodes: see :class:`bireme.agent.session.Crew`."""

    def __init__(self, session: Session, voyage: Voyage, dial: AgentListener | None, pid_file: PidFile) -> None:
        self._session, self._voyage, self._dial = session, voyage, dial
        pairs = zip(voyage.hosts, voyage.slots, strict=True)
        self._all = tuple(Member(index, host, slots) for index, (host, slots) in enumerate(pairs))
        self.members = list(self._all)
        """Those that take part."""
        self._stopping = self._started = self._leaving = False
        self._allocates = bool(voyage.backend.CANCEL) and "SLURM_JOB_ID" not in voyage.environ
        """Whether the engine makes an allocation for this job."""
        self._allocation = ""
        self._handlers: Mapping[type[Message], Callable[[Member, Any], None]] = {
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
        self._intake = Intake(session, self.members)
        self._heartbeat = Heartbeat(session.loop, self.members, voyage.heartbeat, self._silent)
        self._engine = Engine(
            session.loop,
            voyage.commands,
            voyage.environ,
            on_exit=self._engine_exit,
            on_line=lambda index, line: self._muster.engine_says(index, line),
            on_lost=self._engine_lost,
            on_over=self._engine_over,
            at_once=AT_ONCE,
            at_start=pid_file.create,
            at_loss=pid_file.remove,
            allocates=self._allocates,
        )
        self._one_by_one = voyage.one_by_one
        self._muster = Muster(
            session,
            voyage,
            self.members,
            self._engine,
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
        return tuple(self._intake.files.paths.values()) if self._intake.files is not None else ()

    def start(self) -> None:
        """Start the engine and talk to whoever answers."""
        ends = self._engine.start(channels=self._voyage.backend.CHANNEL == "stdio")
        for index, (read_fd, write_fd) in enumerate(ends):
            self._attach(self._all[index], read_fd, write_fd)
        if self._dial is not None:
            self._dial.listen(self._session.loop, self._dialled)
        self._muster.start()
        if self._voyage.epoch is not None:
            self._voyage.epoch.attach(self._session)

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
            self._engine.kill()
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
        self._intake.hold()

    def release_output(self) -> None:
        """There is room again."""
        self._intake.release()

    def close(self) -> None:
        """Leave nothing behind."""
        for member in self._all:
            if member.channel is not None:
                member.channel.close()
        self._engine.close()
        self._close_the_door()
        self._intake.close()

    def _close_the_door(self) -> None:
        """Nobody else dials any more."""
        if self._dial is not None:
            self._dial.close()
            self._dial = None

    # -- connecting ------------------------------------------------------------------------------

    def _attach(self, member: Member, read_fd: int, write_fd: int, transport: Transport | None = None) -> None:
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
                spec=self._voyage.spec,
                cwd=os.getcwd(),
                heartbeat=self._voyage.heartbeat,
                first=member.index == 0 or self._voyage.epoch is not None,
                name=member.name,
                slots=member.slots,
                exports=self._exports(member, member.channel.readable),
                unset=self._voyage.backend.RANK_VARIABLES,
            )
        )

    def _exports(self, member: Member, readable: str) -> dict[str, str]:
        """The variables that travel there: without secrets, if others can read them on the way."""
        if not readable:
            return dict(self._voyage.exports)
        withheld = sorted(name for name in self._voyage.exports if is_secret(name))
        if readable not in self._said:  # not once for each of a thousand nodes
            self._said.add(readable)
            names = f"; exported variables that are withheld as secrets: {', '.join(withheld)}" if withheld else ""
            note = f"the channel to {member.name} (and maybe other nodes) is not encrypted: {readable}{names}"
            self._session.console.say("warning", note)
        return {name: value for name, value in self._voyage.exports.items() if name not in withheld}

    def _dialled(self, who: dict[str, str], fd: int, transport: Transport) -> None:
        """An agent has dialled back and proved that it is ours: which node is it?"""
        member = find_member(self._all, who)
        if member is None:
            os.close(fd)
            note = f"the launcher has started an agent on {who.get('hostname', '?')}, which is no node of the job"
            self._session.trouble("unfit", note, time.monotonic())
        elif member.channel is not None or member.state != "connecting":
            os.close(fd)
        else:
            self._allocation = who.get("allocation", "")
            self._attach(member, fd, fd, transport)

    def _on_hello(self, member: Member, hello: Hello) -> None:
        self._heartbeat.watch(member)
        self._muster.hello(member, hello)

    def _on_probed(self, member: Member, probed: Probed) -> None:
        if not self._leaving:
            self._muster.probed(member, probed.reachable)

    def _find_address(self) -> None:
        """Every node is fit, and they are numbered in the order of the pool: find where their ranks can meet."""
        if not self._leaving:
            self._muster.find_address()

    def _start(self, master_addr: str) -> None:
        """The ranks can meet: number them and let them start."""
        self._close_the_door()
        plan, nodes = departure(self._voyage, self.members, master_addr)
        self._session.planned(plan)
        if self._voyage.log_dir is not None:
            ranks = [worker.rank for node in plan.nodes for worker in node.workers]
            say = self._session.console.say
            self._intake.files = RankFiles(self._voyage.log_dir, ranks, lambda text: say("error", text))
        self._started = True
        if self._voyage.epoch is not None:
            self._voyage.epoch.begun(tuple(nodes), plan)
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
                    grace=self._voyage.spec.grace,
                    window=WINDOW,
                    rest=self._session.rest,
                )
            )

    # -- running ---------------------------------------------------------------------------------

    def _on_frame(self, member: Member, frame: Message | Output) -> None:
        member.silence.broken(time.monotonic())
        try:
            member.protocol.admit(frame)
        except ProtocolError as error:
            self._on_violation(member, str(error))
            return
        if isinstance(frame, Output):
            self._intake.take(member, frame)
        else:
            self._handlers[type(frame)](member, frame)

    def _on_up(self, member: Member, up: Up) -> None:
        self._session.up(up.rank, up.pid)

    def _on_down(self, member: Member, down: Down) -> None:
        self._session.down(down.end, member.our_time(down.when))

    def _on_rested(self, member: Member, rested: Rested) -> None:
        self._session.rested(rested.rank, rested.number)

    def _on_eof(self, member: Member, eof: Eof) -> None:
        self._session.eof(eof.rank, eof.number)

    def _on_say(self, member: Member, say: Say) -> None:
        self._session.console.say(say.level, f"{member.name}: {say.text}")

    def _on_unfit(self, member: Member, unfit: Unfit) -> None:
        member.problems += unfit.problems
        note = preflight.complaint([member], len(self.members))
        self._session.trouble("unfit", note, time.monotonic(), (member.name,))

    def _on_guardian_lost(self, member: Member, lost: GuardianLost) -> None:
        note = f"agent lost on {member.name}: its guardian (pid {lost.pid}) was killed"
        self._session.trouble("agent lost", note, time.monotonic(), (member.name,))

    def _on_signalled(self, member: Member, signalled: Signalled) -> None:
        if self._leaving or not member.alive:
            return  # it is our own: the end of the engine reaches an agent that runs here without ssh
        reason = f"it was stopped by {signal.Signals(signalled.signum).name}"
        if self._started:
            # An engine that ends a node signals its ranks as well, in any order: theirs is not the fault.
            note = f"agent lost on {member.name}: {reason}"
            self._session.trouble("agent lost", note, member.our_time(signalled.when) - _NEWS, (member.name,))
        else:
            self._lose(member, reason, time.monotonic())

    def _on_over(self, member: Member, over: Over) -> None:
        member.protocol.on("over")
        self._killed += over.killed
        self._stuck += [f"{member.name}: {what}" for what in over.stuck]
        self._maybe_leave()

    def _on_pong(self, member: Member, pong: Pong) -> None:
        member.clock(pong.sent, pong.now)

    # -- losses ----------------------------------------------------------------------------------

    def _silent(self, member: Member) -> None:
        self._lose(member, f"no sign of life for {self._voyage.heartbeat:g} s", member.silence.since)

    def _lose(self, member: Member, reason: str, when: float) -> None:
        """A node is gone, since a second of our clock: whatever that has caused elsewhere comes after it."""
        if member.channel is not None:
            member.channel.close()
        if self._one_by_one:
            # Later: had somebody killed the session, we are about to be told.
            self._session.loop.after(_NEWS, lambda: self._engine.end(member.index))
        if not self._started and not (self._voyage.epoch is not None and self._muster.all_fit):
            # An engine that cannot reach one node ends the agents of the others: theirs is not the fault.
            member.hint = reason
            self._muster.fail(member, [reason] if self._one_by_one else [])
            return
        self._declare_lost(member, reason, when)

    def _declare_lost(self, member: Member, reason: str, when: float) -> None:
        member.protocol.on("lose")
        self._session.trouble("agent lost", f"agent lost on {member.name}: {reason}", when, (member.name,))
        self._maybe_leave()

    def _on_violation(self, member: Member, what: str) -> None:
        """An agent has broken the protocol: whatever else it says cannot be trusted, so its node is lost."""
        if member.channel is not None:
            member.channel.close()
        if self._one_by_one:
            self._engine.end(member.index)
        if member.alive and not self._leaving:
            self._declare_lost(member, f"it broke the protocol: {what}", time.monotonic())

    def _on_end(self, member: Member, reason: str) -> None:
        """A channel has ended; whose session it was may say why when it ends too."""
        if self._leaving:
            return
        if member.state in ("ready", "probed", "running"):
            reason = f"its channel was {reason}" if reason.startswith("closed") else reason
            self._lose(member, reason, time.monotonic() - _NEWS)
        elif member.state == "connecting" and not reason.startswith("closed"):
            self._muster.fail(member, [reason])

    def _engine_lost(self, pid: int) -> None:
        """What stands between us and the engine was killed; the engine has ended with it, or has to."""
        if not self._leaving or self._session.verdict.stopping:  # when all is well and over, it does not matter
            note = f"the guardian of the launcher {self._voyage.backend.NAME} (pid {pid}) was killed"
            self._engine_killed(note, ())

    def _engine_killed(self, note: str, hosts: tuple[str, ...]) -> None:
        """The cause of what the channels say at the same time; the nodes of an elastic job are tried once more."""
        cause: Cause = "agent lost" if self._voyage.epoch is None else "membership"
        self._session.trouble(cause, note, time.monotonic() - 2 * _NEWS, hosts)

    def _engine_exit(self, index: int, code: int, signum: int) -> None:
        if self._leaving:
            return
        affected = [self._all[index]] if self._one_by_one else self.members
        if signum and not self._started and self._voyage.epoch is None:
            hosts = tuple(member.name for member in affected) if self._one_by_one else ()
            whose = f" of {hosts[0]}" if hosts else ""
            by = signal.Signals(signum).name
            self._engine_killed(f"the launcher {self._voyage.backend.NAME}{whose} was killed by {by}", hosts)
            return
        for member in affected:
            if member.state in ("waiting", "connecting"):
                self._muster.fail(member, self._muster.why(member, index, code))

    # -- the end ---------------------------------------------------------------------------------

    def _maybe_leave(self) -> None:
        if not any(member.alive for member in self.members):
            self._leave()

    def _leave(self) -> None:
        """All is over: release the agents, and wait for the engine."""
        if self._leaving:
            return
        self._leaving = True
        blame_the_lost(self._session, self._voyage, self.members)
        self._muster.stop()
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
            self._engine.terminate()
            self._give_back_allocation()

    def _give_back_allocation(self) -> None:
        if self._allocates and self._allocation:
            self._engine.run_aside((*self._voyage.backend.CANCEL, self._allocation))

    def _engine_over(self) -> None:
        """The engine has ended. Agents that have dialled are not lost by that: their channels say when they are."""
        self._engine_gone = True
        if self._leaving:
            self._finish()

    def _finish(self) -> None:
        self._session.gone()
        self._session.over()
