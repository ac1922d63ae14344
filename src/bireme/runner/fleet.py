"""The agents of many nodes as one crew: connect, check, plan, start, watch, stop, release."""

from __future__ import annotations

import os
import signal
import time

from bireme.control.channel import Channel
from bireme.control.frames import Output
from bireme.logs.rankfiles import RankFiles
from bireme.runner import preflight
from bireme.runner.blame import blame_the_lost
from bireme.runner.departure import departure
from bireme.runner.engine import Engine
from bireme.runner.heartbeat import Heartbeat
from bireme.runner.intake import WINDOW, Intake
from bireme.runner.member import Member, find_member
from bireme.runner.muster import AT_ONCE, Muster
from bireme.supervise.outcome import RankEnd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from bireme.agent.session import Session
    from bireme.control.frames import Message
    from bireme.runner.dial import Dial
    from bireme.runner.gathering import Gathering
    from bireme.runner.pidfile import PidFile
    from bireme.runner.voyage import Voyage
    from bireme.supervise.outcome import Cause

_MESSAGES = (
    *("hello", "arrived", "joined", "probed", "up", "down", "rested", "eof", "say", "unfit"),
    *("guardian_lost", "signalled", "over", "pong"),
)
"""What an agent says."""
_NEWS = 0.25
"""Seconds by which the end of an agent may reach us later than the failures that it, or what ends it, causes."""
_ENGINE_WAIT = 5.0
"""Seconds that an engine may take to end after its agents were released."""


class Fleet:
    """A crew of many nodes: see :class:`bireme.agent.session.Crew`."""

    def __init__(self, session: Session, voyage: Voyage, dial: Dial | None, pid_file: PidFile) -> None:
        self._session, self._voyage, self._dial = session, voyage, dial
        pairs = zip(voyage.hosts, voyage.slots, strict=True)
        self._all = tuple(Member(index, host, slots) for index, (host, slots) in enumerate(pairs))
        self.members = list(self._all)
        """Those that take part."""
        self._stopping = self._started = self._leaving = False
        self._allocates = bool(voyage.backend.CANCEL) and "SLURM_JOB_ID" not in voyage.environ
        """Whether the engine makes an allocation for this job."""
        self._allocation = ""
        self._engine_gone = False
        self._killed = 0
        self._stuck: list[str] = []
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
            on_fit=self._gather,
            on_address=self._start,
            on_checked=self._leave,
        )
        self._gathering: Gathering | None = None
        if voyage.epoch is not None and voyage.epoch.store is not None:
            from bireme.runner.gathering import Gathering

            self._gathering = Gathering(session, voyage.epoch, voyage.spec.run_id, self._gathered)

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
            member.send("stop", signum=int(signum))

    def urge(self) -> None:
        """Do not wait for the grace time."""
        if self._leaving and not self._allocates:  # SIGKILL would leave the allocation to nobody
            self._engine.kill()
        for member in self.members:
            member.send("urge")

    def signal_ranks(self, signum: int) -> None:
        """A signal to every rank."""
        for member in self.members:
            member.send("signal_ranks", signum=int(signum))

    def suspend(self) -> None:
        """Halt every process of the job; nobody misses our heartbeat meanwhile."""
        for member in self.members:
            member.send("suspend")

    def resume(self) -> None:
        """Wake them."""
        self._heartbeat.resume()
        for member in self.members:
            member.send("resume")

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

    def _attach(self, member: Member, read_fd: int, write_fd: int) -> None:
        member.channel = Channel(
            self._session.loop,
            read_fd,
            write_fd,
            on_frame=lambda frame: self._on_frame(member, frame),
            on_end=lambda reason: self._on_end(member, reason),
        )
        spec = self._voyage.spec
        slots = None if member.slots is None else list(member.slots)
        member.send(
            "ask",
            spec=spec.as_dict(),
            cwd=os.getcwd(),
            heartbeat=self._voyage.heartbeat,
            first=member.index == 0 or self._voyage.epoch is not None,
            name=member.name,
            slots=slots,
            exports=dict(self._voyage.exports),
            unset=list(self._voyage.backend.RANK_VARIABLES),
        )

    def _dialled(self, who: dict[str, str], fd: int) -> None:
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
            self._attach(member, fd, fd)

    def _on_hello(self, member: Member, problems: list[str], **hello: Any) -> None:
        self._heartbeat.watch(member)
        self._muster.hello(member, problems, **hello)

    def _on_probed(self, member: Member, reachable: list[str]) -> None:
        if not self._leaving:
            self._muster.probed(member, reachable)

    def _gather(self) -> None:
        """Every node is fit: those of an elastic job meet first, and are numbered by that."""
        if self._leaving:
            return
        if self._gathering is None:
            self._muster.find_address()
            return
        self._gathering.begin(self.members)

    def _on_arrived(self, member: Member) -> None:
        if self._gathering is not None and member in self.members and not self._leaving:
            self._gathering.arrived(member)

    def _on_joined(self, member: Member, answer: dict[str, Any]) -> None:
        if self._gathering is not None and member in self.members and not self._leaving:
            self._gathering.joined(member, answer)

    def _gathered(self, present: list[Member]) -> None:
        """All have come, in this order."""
        self.members[:] = present
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
        accelerator = self.members[0].hello["accelerator"]
        for member in self.members:
            node = nodes.get(member.name)
            if node is None:  # the filters left it no slot
                member.state = "over"
                continue
            member.state = "running"
            member.send(
                "start",
                node=node.as_dict(),
                accelerator=accelerator,
                grace=self._voyage.spec.grace,
                window=WINDOW,
                rest=self._session.rest,
            )

    # -- running ---------------------------------------------------------------------------------

    def _on_frame(self, member: Member, frame: Message | Output) -> None:
        member.silence.broken(time.monotonic())
        if isinstance(frame, Output):
            self._intake.take(member, frame)
            return
        handler = getattr(self, f"_on_{frame.type}", None) if frame.type in _MESSAGES else None
        if handler is None:
            self._on_end(member, f"its agent has sent a message that we do not know: {frame.type}")
        else:
            handler(member, **frame.body)

    def _on_up(self, member: Member, rank: int, pid: int, when: float) -> None:
        self._session.up(rank, pid)

    def _on_down(self, member: Member, end: dict[str, Any], when: float) -> None:
        self._session.down(RankEnd(**end), member.our_time(when))

    def _on_rested(self, member: Member, rank: int, number: int) -> None:
        self._session.rested(rank, number)

    def _on_eof(self, member: Member, rank: int, number: int) -> None:
        self._session.eof(rank, number)

    def _on_say(self, member: Member, level: str, text: str) -> None:
        self._session.console.say(level, f"{member.name}: {text}")

    def _on_unfit(self, member: Member, problems: list[str]) -> None:
        member.problems += problems
        note = preflight.complaint([member], len(self.members))
        self._session.trouble("unfit", note, time.monotonic(), (member.name,))

    def _on_guardian_lost(self, member: Member, pid: int) -> None:
        note = f"agent lost on {member.name}: its guardian (pid {pid}) was killed"
        self._session.trouble("agent lost", note, time.monotonic(), (member.name,))

    def _on_signalled(self, member: Member, signum: int, when: float) -> None:
        reason = f"it was stopped by {signal.Signals(signum).name}"
        if self._started:
            # An engine that ends a node signals its ranks as well, in any order: theirs is not the fault.
            note = f"agent lost on {member.name}: {reason}"
            self._session.trouble("agent lost", note, member.our_time(when) - _NEWS, (member.name,))
        else:
            self._lose(member, reason, time.monotonic())

    def _on_over(self, member: Member, killed: int, stuck: list[str]) -> None:
        member.state = "over"
        self._killed += killed
        self._stuck += [f"{member.name}: {what}" for what in stuck]
        self._maybe_leave()

    # -- losses ----------------------------------------------------------------------------------

    def _on_pong(self, member: Member, sent: float, now: float) -> None:
        member.clock(sent, now)

    def _silent(self, member: Member) -> None:
        self._lose(member, f"no sign of life for {self._voyage.heartbeat:g} s", member.silence.since)

    def _lose(self, member: Member, reason: str, when: float) -> None:
        """A node is gone, since a second of our clock: whatever that has caused elsewhere comes after it."""
        if member.channel is not None:
            member.channel.close()
        if self._one_by_one:
            # Later: had somebody killed the session, we are about to be told.
            self._session.loop.after(_NEWS, lambda: self._engine.end(member.index))
        if not self._started and not (self._gathering is not None and self._gathering.begun):
            # An engine that cannot reach one node ends the agents of the others: theirs is not the fault.
            member.hint = reason
            self._muster.fail(member, [reason] if self._one_by_one else [])
            return
        member.state = "lost"
        self._session.trouble("agent lost", f"agent lost on {member.name}: {reason}", when, (member.name,))
        self._maybe_leave()

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
            member.send("release")
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
