"""Decides when a node counts as lost, when that was, and which node is at fault.

A node is lost when its agent is silent for longer than the heartbeat, when its channel ends, when it breaks the
protocol, or when its launcher process ends.

**When that was.** The earliest cause of a job's end is blamed, so a loss must be dated before the failures that it
causes on other nodes, though these may be reported first. Whoever sees an agent end sees it up to `NEWS` later than the
ranks of other nodes feel it. Therefore:

- a silent node was lost at its last sign of life;
- a channel that ends was lost `NEWS` before that is read. If the node has missed a ping by then, it has lost its power,
  and its kernel has ended the connection when it was up again: it was lost at its last sign of life too;
- an agent that was told to stop by a signal was lost `NEWS` before: whoever ends a node also signals its ranks, in any
  order, and they are not at fault;
- a launcher that was killed was lost `2 * NEWS` before that is read: the ends of all its channels, which are dated
  `NEWS` back, follow from it and may be read first.
"""

from __future__ import annotations

import time

from bireme.cluster.agent_handle import addresses_of
from bireme.control.messages import Ping
from bireme.control.silence import BEATS
from bireme.resources.addresses import reachable
from bireme.result.outcome import signal_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bireme.cluster.agent_handle import AgentHandle
    from bireme.cluster.cluster_job import ClusterJob
    from bireme.cluster.launcher_process import LauncherProcess
    from bireme.cluster.node_answers import NodeAnswers
    from bireme.control.messages import Signalled
    from bireme.control.silence import Silence
    from bireme.loop import Timer
    from bireme.result.outcome import Cause
    from bireme.runner.session import Session

NEWS = 0.25
"""Seconds by which the end of an agent may be reported later than the failures that it causes."""
_LOOKS, _PAUSE = 3, 0.4
"""How often nodes are tried, and the seconds between: one that is just dying may still answer."""


def end_of_channel(silence: Silence, now: float, heartbeat: float) -> float:
    """When an agent was lost whose channel has ended now."""
    missed_a_ping = silence.lasted(now) > heartbeat / BEATS + NEWS
    return silence.since if missed_a_ping else now - NEWS


def end_by_signal(when: float) -> float:
    """When a node was lost whose agent got a signal at ``when``."""
    return when - NEWS


def end_of_launcher(now: float) -> float:
    """When a launcher was lost that was found killed now."""
    return now - 2 * NEWS


class NodeLoss:
    """Judges all signs that a node is lost.

    Args:
        on_lost: called with an agent that was admitted and is lost, a note, and when that was.

    Attributes:
        admitted: whether the nodes are known that take part: from now on, a node that is lost ends the job.
        ended: whether agents and launcher may end now.
    """

    def __init__(
        self,
        session: Session,
        job: ClusterJob,
        members: Sequence[AgentHandle],
        launcher: LauncherProcess,
        answers: NodeAnswers,
        close: Callable[[AgentHandle], None],
        on_lost: Callable[[AgentHandle, str, float], None],
    ) -> None:
        self._session, self._job, self._members, self._launcher = session, job, members, launcher
        self._answers, self._close, self._on_lost = answers, close, on_lost
        self._heartbeat = job.spec.heartbeat
        self._timer: Timer | None = None
        self.admitted = self.started = self.ended = False

    def lose(self, member: AgentHandle, reason: str, when: float) -> None:
        """A node was lost at ``when`` (our clock)."""
        self._close(member)
        if self._job.one_by_one:
            # Later: if its launcher process was killed from outside, that is about to be reported.
            self._session.loop.after(NEWS, lambda: self._launcher.end(member.index))
        if not self.admitted:
            # A launcher that cannot reach one node ends the agents of all others: they are not at fault.
            member.hint = reason
            self._answers.fail(member, [reason] if self._job.one_by_one else [])
            return
        self._declare(member, reason, when)

    def _declare(self, member: AgentHandle, reason: str, when: float) -> None:
        member.protocol.on("lose")
        self._session.note("lost", host=member.name, reason=reason)
        self._on_lost(member, reason, when)

    def violated(self, member: AgentHandle, what: str) -> None:
        """An agent broke the protocol: nothing else it sends can be trusted, so its node counts as lost."""
        self._close(member)
        if self._job.one_by_one:
            self._launcher.end(member.index)
        if member.alive and not self.ended:
            self._declare(member, f"it broke the protocol: {what}", self._session.loop.now())

    def channel_ended(self, member: AgentHandle, reason: str) -> None:
        """A channel has ended. While connecting, the end of its launcher process tells more."""
        one_by_one = self._job.one_by_one
        if self.ended:
            return
        if member.state in ("shipping", "ready", "probed", "running", "fetching"):
            reason = f"its channel was {reason}" if reason.startswith("closed") else reason
            when = end_of_channel(member.silence, self._session.loop.now(), self._heartbeat)
            self.lose(member, reason, when)
        elif member.state == "connecting" and not one_by_one:
            self._answers.agent_gone(member)
        elif member.state == "connecting" and not reason.startswith("closed"):
            self._answers.fail(member, [f"its channel {reason}"])

    def agent_signalled(self, member: AgentHandle, signalled: Signalled) -> None:
        """An agent was told by a signal to stop: its ranks end, and it reports how."""
        if self.ended or not member.alive or member.state == "fetching":
            return  # ours: ending the launcher also signals an agent that runs here without ssh
        if self.started and self._session.preempted(
            signalled.signum, f"{signal_name(signalled.signum)} on {member.name}"
        ):
            return
        reason = f"it was stopped by {signal_name(signalled.signum)}"
        if self.started:
            note = f"agent lost on {member.name}: {reason}"
            self._session.trouble("agent lost", note, end_by_signal(member.our_time(signalled.when)), (member.name,))
        else:
            self.lose(member, reason, self._session.loop.now())

    def guardian_killed(self, pid: int) -> None:
        """The guardian or watcher of the launcher processes was killed, and they end with it."""
        if not self.ended or self._session.verdict.stopping:  # once the job has ended well, it does not matter
            note = f"the guardian of the launcher {self._job.backend.NAME} (pid {pid}) was killed"
            self._launcher_killed(note, ())

    def _launcher_killed(self, note: str, hosts: tuple[str, ...]) -> None:
        """The launcher was killed. An elastic job tries again."""
        cause: Cause = "agent lost" if not self._job.spec.elastic else "membership"
        self._session.trouble(cause, note, end_of_launcher(self._session.loop.now()), hosts)

    def launcher_ended(self, index: int, code: int, signum: int) -> None:
        """A launcher process has ended, with this exit code, or killed by somebody else's signal."""
        if self.ended:
            return
        job = self._job
        affected = [member for member in self._members if member.index == index] if job.one_by_one else self._members
        if signum and not self.started and not job.spec.elastic:
            hosts = tuple(member.name for member in affected) if job.one_by_one else ()
            whose = f" of {hosts[0]}" if hosts else ""
            self._launcher_killed(f"the launcher {job.backend.NAME}{whose} was killed by {signal_name(signum)}", hosts)
            return
        for member in affected:
            if member.state == "connecting" and member.channel is not None:
                member.channel.look()  # a login shell may have said on stdout why it runs nothing
            if member.state in ("waiting", "connecting"):
                self._answers.fail(member, self._answers.why(member, index, code))

    # -- silence. Time during which this process was busy or suspended does not count against an agent. ----------

    def watch(self, member: AgentHandle) -> None:
        """Begin to ping an agent that has answered for the first time."""
        if self._timer is None:
            self._plan_beat()
        self._ask(member)

    def resume(self) -> None:
        """Forgive the silence while this process was suspended and sent no pings."""
        now = self._session.loop.now()
        for member in self._members:
            member.silence.broken(now)

    def rest(self) -> None:
        """Stop pinging."""
        if self._timer is not None:
            self._timer.cancel()

    def _plan_beat(self) -> None:
        self._timer = self._session.loop.after(self._heartbeat / BEATS, self._beat)

    def _beat(self) -> None:
        assert self._timer is not None
        now, due = self._session.loop.now(), self._timer.due
        self._plan_beat()  # first: a lost agent may stop the heartbeat
        for member in tuple(self._members):
            if member.state in ("over", "failed"):
                self._ask(member)  # it waits for its release, and would give us up
            elif not member.alive or member.state == "connecting":
                continue
            elif self._is_silent(member, due, now):
                self.lose(member, f"no sign of life for {self._heartbeat:g} s", member.silence.since)
            else:
                self._ask(member)

    def _is_silent(self, member: AgentHandle, due: float, now: float) -> bool:
        if member.silence.look(due, now) > self._heartbeat and member.channel is not None:
            member.channel.look()  # it may hold an answer, or an end of file
        return member.alive and member.silence.lasted(now) > self._heartbeat

    def _ask(self, member: AgentHandle) -> None:
        member.send(Ping(sent=self._session.loop.now()))

    # -- at the end ------------------------------------------------------------------------------

    def attribute(self) -> None:
        """Correct the session's verdict, which blames the node whose loss was noticed first."""
        session = self._session
        lost = [member for member in self._members if member.state == "lost"]
        if len(lost) < 2 or session.verdict.cause != "agent lost":
            return
        if self._job.one_by_one:
            at_fault = {*session.verdict.hosts, *(member.name for member in lost)}
            session.verdict.hosts = tuple(member.name for member in self._members if member.name in at_fault)
        elif dead := unreachable(lost, self._job.spec.ssh_port or 22):
            # A launcher process for all nodes ends every agent when it loses one.
            note = f"agent lost on {', '.join(dead)}: the node no longer answers"
            session.trouble("agent lost", note, float("-inf"), dead)


def unreachable(lost: Sequence[AgentHandle], port: int) -> tuple[str, ...]:
    """The nodes among those lost that cannot be reached."""
    for look in range(_LOOKS):
        time.sleep(_PAUSE if look else 0.0)
        dead = tuple(member.name for member in lost if not reachable(addresses_of(member.name), port, seconds=1.0))
        if dead:
            return dead
    return ()
