"""Connects agents to their crew: opens a channel to each, and sends it its code and the job with its variables."""

from __future__ import annotations

import os
import sys

from bireme.agent import sent_code
from bireme.cluster.agent_handle import allocation_of, find_agent
from bireme.control.channel import Channel
from bireme.control.frames import MAX_FROM_AGENT, encode_code
from bireme.control.greeting import python_tag
from bireme.control.messages import FROM_AGENT, Ask, TreeOffer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bireme.cluster.agent_handle import AgentHandle
    from bireme.cluster.cluster_job import ClusterJob
    from bireme.control.messages import Message, Output, Piece
    from bireme.control.transport import Transport
    from bireme.job import JobSpec
    from bireme.runner.session import Session


class AgentConnector:
    """Opens the channels to the agents of one job.

    Args:
        session: told about an agent on a foreign node, and shows warnings.
        agents: the agents that are expected, in the order of the pool.
        on_frame: called with each frame of an agent.
        on_end: called with the reason when a channel has ended.
        on_violation: called with what an agent did when it breaks the protocol.

    Attributes:
        allocation: the scheduler's id of the allocation that the launcher made, as an agent reports it; "": unknown.
    """

    def __init__(
        self,
        session: Session,
        cluster_job: ClusterJob,
        agents: Sequence[AgentHandle],
        *,
        on_frame: Callable[[AgentHandle, Message | Output | Piece], None],
        on_end: Callable[[AgentHandle, str], None],
        on_violation: Callable[[AgentHandle, str], None],
    ) -> None:
        self._session, self._cluster_job, self._agents = session, cluster_job, agents
        self._listener = cluster_job.launch.listener
        self._on_frame, self._on_end, self._on_violation = on_frame, on_end, on_violation
        self._warned: set[str] = set()
        """The reasons for unencrypted channels that were reported."""
        self.allocation = ""

    def start(self, ends: Sequence[tuple[int, int]]) -> None:
        """Attach channels to the launcher processes, and accept connections.

        Args:
            ends: (descriptor to read from, descriptor to write to) of each launcher process; empty with a listener.
        """
        for agent, (read_fd, write_fd) in zip(self._agents, ends, strict=False):
            self._attach(agent, read_fd, write_fd)
        if self._listener is not None:
            self._listener.listen(self._session.loop, self._connected)
        self._session.loop.after(0, self._pack)

    def _pack(self) -> None:
        """Pack the agent's code while the launcher connects; most agents run on a Python like ours."""
        self._packed(python_tag())

    def _packed(self, tag: str) -> bytes:
        job = self._cluster_job
        return sent_code.pack(tag, tree=job.tree is not None, fetch=bool(job.spec.fetch))

    def stop(self) -> None:
        """Accept no more connections."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def _attach(self, agent: AgentHandle, read_fd: int, write_fd: int, transport: Transport | None = None) -> None:
        agent.channel = channel = Channel(
            self._session.loop,
            read_fd,
            write_fd,
            self._vocabulary(),
            on_frame=lambda frame: self._on_frame(agent, frame),
            on_end=lambda reason: self._on_end(agent, reason),
            on_greeting=lambda tag: self._greeted(agent, channel, tag),
            transport=transport,
            on_violation=lambda what: self._on_violation(agent, what),
            longest=MAX_FROM_AGENT,
        )

    def _greeted(self, agent: AgentHandle, channel: Channel, tag: str) -> None:
        """An agent was started: send its code, and what it is to examine."""
        channel.send_raw(encode_code(self._packed(tag)))
        spec = self._cluster_job.spec
        channel.send(
            Ask(
                spec=with_python(spec, agent.name),
                cwd=os.getcwd(),
                heartbeat=spec.heartbeat,
                first=agent.index == 0 or spec.elastic,
                name=agent.name,
                slots=agent.slots,
                tasks=agent.host.tasks,
                exports=self._exports(agent, channel.readable),
                unset=self._cluster_job.launch.backend.rank_variables,
                tree=self._offer(agent),
            )
        )

    def _vocabulary(self) -> Mapping[str, type[Message]]:
        """The messages that an agent may send."""
        if self._cluster_job.tree is None and not self._cluster_job.spec.fetch:
            return FROM_AGENT
        from bireme.ship import messages

        return {**FROM_AGENT, **messages.FROM_AGENT}

    def _offer(self, agent: AgentHandle) -> TreeOffer | None:
        tree = self._cluster_job.tree
        if tree is None:
            return None
        agent.protocol.offer()
        made, cache = tree.manifest, self._cluster_job.exports.get("XDG_CACHE_HOME", "")
        return TreeOffer(digest=made.digest, length=len(made.text), roots=tree.roots, cache=cache, job=tree.job)

    def _exports(self, agent: AgentHandle, readable: str) -> dict[str, str]:
        """The variables to export to the agent: without secrets if others can read the channel."""
        if not readable:
            return dict(self._cluster_job.exports)
        from bireme.planning.masking import is_secret

        withheld = sorted(name for name in self._cluster_job.exports if is_secret(name))
        if readable not in self._warned:  # not once for each of a thousand nodes
            self._warned.add(readable)
            names = f"; exported variables withheld as secrets: {', '.join(withheld)}" if withheld else ""
            note = f"the channel to {agent.name} (and maybe other nodes) is not encrypted: {readable}{names}"
            self._session.console.say("warning", note)
        return {name: value for name, value in self._cluster_job.exports.items() if name not in withheld}

    def _connected(self, who: dict[str, str], fd: int, transport: Transport) -> None:
        """An agent has connected and proved that it belongs to this job: find out which one it is."""
        agent = find_agent(self._agents, who)
        if agent is None:
            os.close(fd)
            where = ascii(who.get("hostname", "?")[:80])[1:-1]
            note = f"the launcher started an agent on {where}, which is not a node of this job"
            self._session.trouble("unfit", note, self._session.loop.now())
        elif agent.channel is not None or agent.state != "connecting":
            os.close(fd)
        else:
            self.allocation = allocation_of(who)
            self._attach(agent, fd, fd, transport)


def with_python(spec: JobSpec, host: str) -> JobSpec:
    """The job with the Python of the ranks on a node.

    It stays ``None`` where that is the one that ``--venv_script`` selects there, or the agent's own.
    """
    if spec.python is None and spec.venv_script is None and not spec.in_containers:
        return spec.replace(python=sys.executable, python_from="the Python of the command")
    return spec.on_node(host)
