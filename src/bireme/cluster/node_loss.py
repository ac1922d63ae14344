"""Decides when a node counts as lost, when that was, and which node is at fault."""

from __future__ import annotations

import time

from bireme.cluster.agent_handle import addresses_of
from bireme.control.messages import Ping
from bireme.control.silence import BEATS
from bireme.resources.reach import reachable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bireme.cluster.agent_handle import AgentHandle
    from bireme.cluster.cluster_job import ClusterJob
    from bireme.loop import Loop, Timer
    from bireme.runner.session import Session


class Heartbeat:
    """Pings the agents. Time during which this process was busy or suspended does not count against them.

    Args:
        members: the agents; the list may become shorter later.
        seconds: without a sign of life after which an agent is lost.
        on_lost: called with an agent that is lost, the reason, and when it was heard last.
    """

    def __init__(
        self,
        loop: Loop,
        members: Sequence[AgentHandle],
        seconds: float,
        on_lost: Callable[[AgentHandle, str, float], None],
    ) -> None:
        self._loop, self._members, self._seconds, self._on_lost = loop, members, seconds, on_lost
        self._timer: Timer | None = None

    def watch(self, member: AgentHandle) -> None:
        """Begin to ping an agent that has answered for the first time."""
        if self._timer is None:
            self._plan_beat()
        self._ask(member)

    def resume(self) -> None:
        """Forgive the silence while this process was suspended and sent no pings."""
        now = self._loop.now()
        for member in self._members:
            member.silence.broken(now)

    def stop(self) -> None:
        """Stop pinging."""
        if self._timer is not None:
            self._timer.cancel()

    def _plan_beat(self) -> None:
        self._timer = self._loop.after(self._seconds / BEATS, self._beat)

    def _beat(self) -> None:
        assert self._timer is not None
        now, due = self._loop.now(), self._timer.due
        self._plan_beat()  # first: a lost agent may stop the heartbeat
        for member in tuple(self._members):
            if member.state in ("over", "failed"):
                self._ask(member)  # it waits for its release, and would give us up
            elif not member.alive or member.state == "connecting":
                continue
            elif self._is_silent(member, due, now):
                self._on_lost(member, f"no sign of life for {self._seconds:g} s", member.silence.since)
            else:
                self._ask(member)

    def _is_silent(self, member: AgentHandle, due: float, now: float) -> bool:
        if member.silence.look(due, now) > self._seconds and member.channel is not None:
            member.channel.look()  # it may hold an answer, or an end of file
        return member.alive and member.silence.lasted(now) > self._seconds

    def _ask(self, member: AgentHandle) -> None:
        member.send(Ping(sent=self._loop.now()))


_LOOKS, _PAUSE = 3, 0.4
"""How often nodes are tried, and the seconds between: one that is just dying may still answer."""


def attribute_losses(session: Session, cluster_job: ClusterJob, members: Sequence[AgentHandle]) -> None:
    """Correct the session's verdict, which blames the node whose loss was noticed first."""
    lost = [member for member in members if member.state == "lost"]
    if len(lost) < 2 or session.verdict.cause != "agent lost":
        return
    if cluster_job.one_by_one:
        at_fault = {*session.verdict.hosts, *(member.name for member in lost)}
        session.verdict.hosts = tuple(member.name for member in members if member.name in at_fault)
    else:
        _blame_the_silent(session, lost, cluster_job.spec.ssh_port or 22)


def _blame_the_silent(session: Session, lost: Sequence[AgentHandle], port: int) -> None:
    """Blame the nodes that cannot be reached: a launcher process for all nodes ends every agent when it loses one."""
    for look in range(_LOOKS):
        time.sleep(_PAUSE if look else 0.0)
        dead = tuple(member.name for member in lost if not reachable(addresses_of(member.name), port, seconds=1.0))
        if dead:
            break
    if dead:
        note = f"agent lost on {', '.join(dead)}: the node no longer answers"
        session.trouble("agent lost", note, float("-inf"), dead)
