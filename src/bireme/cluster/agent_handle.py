"""The runner's view of one agent: its state, hello, channel and clock; and which node an agent belongs to."""

from __future__ import annotations

from bireme.cluster.agent_protocol import AgentProtocol
from bireme.control.silence import Silence
from bireme.resources.addresses import look_up

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bireme.backends.base import HostLaunch
    from bireme.cluster.agent_protocol import State
    from bireme.control.channel import Channel
    from bireme.control.messages import Hello, Message

_DOUBT = 0.001
"""Seconds by which two measurements may contradict each other: the drift of some minutes."""


class PeerClock:
    """The clock of another machine. All times are seconds.

    Attributes:
        offset: its clock minus ours; 0.0 until something was measured.
    """

    def __init__(self) -> None:
        self.offset = 0.0
        self._trip = float("inf")

    def measure(self, asked: float, theirs: float, answered: float) -> None:
        """Take one round trip into account: the shortest one measures best.

        The error of a measurement is at most half the round trip. Two measurements that contradict each other by more
        mean that a clock has stepped (a virtual machine was moved or resumed) or that the clocks have drifted apart
        over days. Then the earlier measurement is discarded.
        """
        trip, offset = answered - asked, theirs - (asked + answered) / 2
        if trip < self._trip or abs(offset - self.offset) > (trip + self._trip) / 2 + _DOUBT:
            self._trip, self.offset = trip, offset

    def to_ours(self, theirs: float, now: float) -> float:
        """Convert a time on the other clock to ours; never later than ``now``, even if the offset is unknown."""
        return min(theirs - self.offset, now)


class AgentHandle:
    """One node's agent: its protocol state, its hello, when it was last heard, and its clock's offset from ours.

    Args:
        index: the node's place in the pool, and that of its launcher process where each node has its own.
        slots: those that the pool declares; ``None``: the node is asked.
    """

    def __init__(self, index: int, host: HostLaunch, slots: tuple[str, ...] | None, now: Callable[[], float]) -> None:
        self.index, self.host, self.slots, self._now = index, host, slots, now
        self.protocol = AgentProtocol()
        self.channel: Channel | None = None
        self._hello: Hello | None = None
        self.reachable: set[str] = set()
        self.problems: list[str] = []
        self.hint = ""
        """Why it ended, where the node itself is not at fault."""
        self.silence = Silence(now())
        self.peer_clock = PeerClock()
        self.ungranted = 0
        """Bytes of its output that were taken but not yet granted again (see `OutputCredit`)."""

    @property
    def name(self) -> str:
        """The node's name in the pool."""
        return self.host.name

    @property
    def state(self) -> State:
        """The agent's state (see `AgentProtocol`)."""
        return self.protocol.state

    @property
    def has_answered(self) -> bool:
        """Whether the agent has said hello."""
        return self._hello is not None

    @property
    def hello(self) -> Hello:
        """The agent's hello. Only for an agent that has answered."""
        assert self._hello is not None
        return self._hello

    @hello.setter
    def hello(self, hello: Hello) -> None:
        self._hello = hello

    @property
    def alive(self) -> bool:
        """Whether the agent was started and has neither ended nor been lost."""
        return self.state in ("connecting", "shipping", "ready", "probed", "running", "fetching")

    def send(self, message: Message) -> None:
        """Send the agent a message, if it is connected."""
        if self.channel is not None:
            self.channel.send(message)

    def clock(self, sent: float, theirs: float) -> None:
        """Measure the agent's clock by a ping sent at ``sent`` (our clock) and answered at ``theirs`` (its clock)."""
        self.peer_clock.measure(sent, theirs, self._now())

    def our_time(self, theirs: float) -> float:
        """Convert a time on the agent's clock to ours."""
        return self.peer_clock.to_ours(theirs, self._now())


def find_agent(members: Sequence[AgentHandle], who: Mapping[str, str]) -> AgentHandle | None:
    """Find which agent has connected, by its name, its addresses, or its rank in the launcher's job."""
    names = [name for name in (who.get("name"), who.get("slurm"), who.get("hostname")) if name]
    for name in names:
        for member in members:
            if name == member.name:
                return member
    addresses = set(who.get("addresses", "").split(","))
    # Hosts of different domains may share a short name: addresses decide, where the name has any.
    short = {name.partition(".")[0] for name in names}
    alike = [member for member in members if member.name.partition(".")[0] in short]
    for member in (*alike, *members):
        if addresses & set(addresses_of(member.name)):
            return member
    for member in alike:
        if not addresses_of(member.name):
            return member
    place = who.get("place", "")
    return members[int(place)] if place.isdecimal() and len(place) < 10 and int(place) < len(members) else None


def allocation_of(who: Mapping[str, str]) -> str:
    """The number of the allocation in which an agent says that it runs; "" if that is not a number.

    It becomes an argument of the command that gives the allocation back, to which other words would be options.
    """
    number = who.get("allocation", "")
    return number if number.isascii() and number.isdecimal() else ""


_ADDRESSES: dict[str, list[str]] = {}


def addresses_of(name: str) -> list[str]:
    """Resolve a name, once, to numeric addresses; none when it cannot be resolved."""
    if name not in _ADDRESSES:
        try:
            found = look_up(name)
        except OSError:
            found = []
        _ADDRESSES[name] = [str(it[4][0]) for it in found]
    return _ADDRESSES[name]
