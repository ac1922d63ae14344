"""The agent of one node, as the runner knows it."""

from __future__ import annotations

import time
from functools import cache

from bireme.cluster.agent_protocol import AgentProtocol
from bireme.cluster.peer_clock import PeerClock
from bireme.control.liveness import Liveness

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bireme.backends.base import HostLaunch
    from bireme.cluster.agent_protocol import State
    from bireme.control.channel import Channel
    from bireme.control.messages import Hello, Message


class AgentHandle:
    """A node's agent: what it has said, when it was last heard, how its clock stands to ours."""

    def __init__(self, index: int, host: HostLaunch, slots: tuple[str, ...] | None) -> None:
        self.index, self.host, self.slots = index, host, slots
        self.protocol = AgentProtocol()
        self.channel: Channel | None = None
        self._hello: Hello | None = None
        self.reachable: set[str] = set()
        self.problems: list[str] = []
        self.hint = ""
        """What is known of its end where that is not its own fault."""
        self.liveness = Liveness(time.monotonic())
        self.peer_clock = PeerClock()
        self.unpaid = 0
        """Bytes of its output that were taken but not yet credited."""

    @property
    def name(self) -> str:
        """Its name in the pool."""
        return self.host.name

    @property
    def state(self) -> State:
        """Where its agent stands."""
        return self.protocol.state

    @property
    def has_answered(self) -> bool:
        """Whether its agent has said hello."""
        return self._hello is not None

    @property
    def hello(self) -> Hello:
        """What its agent has said about its node; only of one that has answered."""
        assert self._hello is not None
        return self._hello

    @hello.setter
    def hello(self, hello: Hello) -> None:
        self._hello = hello

    @property
    def alive(self) -> bool:
        """Whether its agent is there and has not said that all is over."""
        return self.state in ("connecting", "ready", "probed", "running")

    def send(self, message: Message) -> None:
        """A message to its agent, if there is one."""
        if self.channel is not None:
            self.channel.send(message)

    def clock(self, sent: float, theirs: float) -> None:
        """An answer to a ping that was sent then, and what its clock showed."""
        self.peer_clock.measure(sent, theirs, time.monotonic())

    def our_time(self, theirs: float) -> float:
        """A second of its clock on ours."""
        return self.peer_clock.to_ours(theirs, time.monotonic())


def find_agent(members: Sequence[AgentHandle], who: Mapping[str, str]) -> AgentHandle | None:
    """The member that an agent which has dialled is: by its name, its addresses, or its place among the engine's."""
    names = [name for name in (who.get("name"), who.get("slurm"), who.get("hostname")) if name]
    for name in names:
        for member in members:
            if name == member.name:
                return member
    addresses = set(who.get("addresses", "").split(","))
    # A name that only begins alike may be another host's: its addresses tell, where it has any.
    short = {name.partition(".")[0] for name in names}
    alike = [member for member in members if member.name.partition(".")[0] in short]
    for member in (*alike, *members):
        if addresses & set(addresses_of(member.name)):
            return member
    for member in alike:
        if not addresses_of(member.name):
            return member
    place = who.get("place", "")
    return members[int(place)] if place.isdecimal() and int(place) < len(members) else None


@cache
def addresses_of(name: str) -> list[str]:
    """The numeric addresses that a name stands for; none when it cannot be resolved."""
    import socket

    try:
        return [str(found[4][0]) for found in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]
    except OSError:
        return []
