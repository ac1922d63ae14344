"""All messages between runner and agent, as typed, immutable classes; and their JSON form.

A message is sent as a JSON object: its fields, and the name of its class as ``"type"``. It is validated against the
annotations of its class when it is received; anything else is a `ProtocolError`. Which message may come in which state
is decided by `bireme.cluster.agent_protocol` for the runner and `bireme.agent.remote` for the agent.
"""

from __future__ import annotations

import _socket

from bireme import jsontext
from bireme import signal_numbers as signal
from bireme.errors import ProtocolError
from bireme.job import ACCELERATORS, JobSpec
from bireme.planning.environment import NodeFacts
from bireme.planning.start import NodePlan
from bireme.result.outcome import RankEnd
from bireme.result.rank_use import RankUses
from bireme.result.stacks import RankStack
from bireme.validate import ShapeError, build
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, TypeAlias

    Frame: TypeAlias = "Message | Output | Piece"

_LONGEST_NAME = 255
"""Characters of a node's name, or a device's."""
_MOST_SLOTS = 1 << 14
"""The most slots that one node may report."""

_VALID: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "signum": (lambda signum: signum in signal.valid_signals(), "the invalid signal {}"),
    "port": (lambda port: 0 < port < 65536, "the invalid port {}"),
    "size": (lambda size: size > 0, "a size that is not positive"),
    "heartbeat": (lambda seconds: seconds > 0, "a heartbeat that is not positive"),
    "level": (lambda level: level in ("debug", "info", "warning", "error"), "an unknown log level"),
    "killed": (lambda number: number >= 0, "{} ranks killed"),
}
"""Which values a field may have, in all messages that have it, and what the others are called."""


class Message(Value):
    """Base of all messages."""

    of_tree = False  # a message of `bireme.ship.conversation`: it needs a `TreeOffer`
    of_fetch = False  # a message of `bireme.ship.conversation`: it answers a `Fetch`

    def check(self) -> str:
        """What is wrong with the values of the fields, beyond their types; "" if they are valid."""
        for name, (is_valid, wrong) in _VALID.items():
            if name in self._fields and not is_valid(getattr(self, name)):
                return wrong.format(getattr(self, name))
        return ""


class Output(Value):
    """A chunk of a rank's stdout (``number`` 1), stderr (2) or answers (0). It is sent as raw bytes, not as JSON.

    To an agent: a chunk of stdin (``number`` 0) for all of its ranks that read it, empty at the end.
    """

    rank: int
    number: int
    data: bytes


class Piece(Value):
    """A piece of a tree's manifest or files (`TreeOffer`). It is sent as raw bytes, not as JSON."""

    data: bytes


# -- to the agent --------------------------------------------------------------------------------


class TreeOffer(Value):
    """A tree of files, of which the ranks run in a copy. An agent that has no copy asks for it
    (`bireme.ship.conversation`).

    Attributes:
        digest: the SHA-256 of its manifest.
        roots: the paths of its folder on the runner.
        cache: the value of XDG_CACHE_HOME to use; "": that of the agent.
        job: the id of a job that is started several times, each time in the same copy if it can; "": it is not.
    """

    digest: str
    length: int
    roots: tuple[str, ...]
    cache: str
    job: str = ""


class Ask(Message):
    """Run the preflight for this job, and answer with `Hello`.

    Attributes:
        first: whether this node may be the first, and so has to lease a port for the rendezvous.
        slots: those that the pool declares; None: all that it has.
        tasks: where slots is None: their number if it shows no device; 0: its own default.
        exports: variables to add to the ranks' environment.
        unset: prefixes of variables to remove from it.
        tree: of whose copy to run the ranks in; None: they run in the working directory as it is.
    """

    spec: JobSpec
    cwd: str
    heartbeat: float
    first: bool
    name: str
    slots: tuple[str, ...] | None
    tasks: int
    exports: Mapping[str, str]
    unset: tuple[str, ...]
    tree: TreeOffer | None = None

    def check(self) -> str:
        """Also refuse a tree without a folder."""
        return "a tree without a folder" if self.tree is not None and not self.tree.roots else super().check()


class Probe(Message):
    """Find out which of these addresses you can reach at this port, and answer with `Probed`."""

    addresses: tuple[str, ...]
    port: int


class Start(Message):
    """Start your ranks.

    Attributes:
        window: bytes of output that may be sent before the runner grants more.
    """

    node: NodePlan
    accelerator: str
    grace: float
    window: int
    rest: float


class Stop(Message):
    """End your ranks by the stop ladder, beginning with this signal."""

    signum: int


class KillNow(Message):
    """Kill the ranks now, without waiting for the grace time."""


class SignalRanks(Message):
    """Send a signal to every rank's own process; ``later``: to one that does not expect it yet once it does."""

    signum: int
    later: bool = False


class TakeStacks(Message):
    """Take the stacks of your ranks, and answer with `Stacks`."""


class Measure(Message):
    """Measure what your ranks use, and answer with `Measured`."""


class Tool(Message):
    """Which py-spy you may have: the answer to `NeedTool`. It is sent as pieces if you ask for that.

    Attributes:
        digest: its SHA-256; "": there is none for your machine.
        size: its bytes.
    """

    digest: str
    size: int

    def check(self) -> str:
        """The digest becomes a part of a path."""
        return "" if not self.digest.strip("0123456789abcdef") and self.size >= 0 else "a digest or size that is none"


class Suspend(Message):
    """Suspend every process of the job."""


class Resume(Message):
    """Resume every process of the job."""


class Credit(Message):
    """You may send ``size`` more bytes of output."""

    size: int


class Ping(Message):
    """Answer with `Pong`. ``sent``: the time on the runner's monotonic clock."""

    sent: float


class Fetch(Message):
    """Find the files below the ranks' working directory that match (`bireme.ship.conversation`).

    Attributes:
        mark: a file in the runner's working directory; "": there is none.
    """

    patterns: tuple[str, ...]
    mark: str


class Want(Message):
    """Send the contents of the files in these places, or their digests."""

    places: tuple[int, ...]
    digests: bool


class Taken(Message):
    """You may send ``size`` more bytes of files. Also from the agent, of a tree."""

    size: int
    of_tree = True


class Release(Message):
    """Exit: the job is over."""


# -- from the agent ------------------------------------------------------------------------------


class Hello(NodeFacts, Message):
    """The result of the examination: facts about the node, and its problems.

    Attributes:
        problems: messages; if there are none, all other fields are known.
        earlier: how many processes of an earlier epoch are still running there.
    """

    problems: tuple[str, ...] = ()
    earlier: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether all facts that a plan needs are known."""
        return bool(self.interpreter and self.accelerator and self.slots and self.cores > 0 and self.temporary)

    def check(self) -> str:
        """Refuse incomplete facts, names that cannot be shown in labels, and invalid addresses, slots or cores."""
        for text in (self.hostname, *self.slots, self.python, self.local_rank_flag):
            if not text.isprintable():
                return "control characters in a name"
            if len(text) > _LONGEST_NAME:
                return f"a name of {len(text)} characters"
        if not self.hostname:
            return "an empty hostname"
        if self.interpreter.splitlines() not in ([], [self.interpreter]):
            return "a line break in a path"
        if self.accelerator and self.accelerator not in ACCELERATORS:
            return f"the unknown accelerator {self.accelerator[:40]!r}"
        if len(self.slots) > _MOST_SLOTS:
            return f"{len(self.slots)} slots"
        for address in (*self.addresses, *filter(None, (self.own_name,))):
            if not _is_address(address):
                return f"the invalid address {address[:40]!r}"
        if not self.problems and not self.is_complete:
            return "neither complete facts nor a problem"
        if self.bound and len(self.bound) != len(self.slots):
            return "core lists for a different number of ranks than slots"
        return super().check() if self.port else ""


class Probed(Message):
    """The addresses that the node can reach."""

    reachable: tuple[str, ...]


class Up(Message):
    """A rank was started; ``when``: the time on the node's monotonic clock."""

    rank: int
    pid: int
    when: float


class Down(Message):
    """A rank has ended; ``when``: the time on the node's monotonic clock."""

    end: RankEnd
    when: float

    def check(self) -> str:
        """Refuse invalid names and an invalid exit code."""
        if not all(name.isprintable() for name in (self.end.host, self.end.device, self.end.memory_limit)):
            return "control characters in a name"
        if len(self.end.device) > _LONGEST_NAME:
            return f"a name of {len(self.end.device)} characters"
        return "" if 0 <= self.end.code <= 255 else f"the invalid exit code {self.end.code}"


class InputTaken(Message):
    """The ranks have taken the last chunk of stdin: send another."""


class Rested(Message):
    """A rank has paused in an unfinished line on a stream (1: stdout, 2: stderr)."""

    rank: int
    number: int


class Eof(Message):
    """A stream of a rank (1: stdout, 2: stderr) has reached its end."""

    rank: int
    number: int


class Stacks(Message):
    """What your ranks were doing: the answer to `TakeStacks`, or what they did before they had to be killed."""

    stacks: tuple[RankStack, ...]


class Measured(Message):
    """What your ranks use: the answer to `Measure`."""

    uses: RankUses

    def check(self) -> str:
        """Each column tells of each rank."""
        uses = self.uses
        return "" if len({len(getattr(uses, name)) for name in uses._fields}) == 1 else "columns that differ"


class NeedTool(Message):
    """There is no py-spy on this node. ``machine``: its kind; ``send``: send the one that `Tool` has told of."""

    machine: str
    send: bool = False


class Say(Message):
    """A line for the screen."""

    level: str
    text: str


class Unfit(Message):
    """The node turned out to be unfit after the preflight."""

    problems: tuple[str, ...]


class GuardianLost(Message):
    """The node's guardian was killed; ``when``: the time on the node's monotonic clock at which that was seen."""

    pid: int
    when: float


class Signalled(Message):
    """The agent itself received a signal; ``when``: the time on the node's monotonic clock."""

    signum: int
    when: float


class Over(Message):
    """No process of the job is left on the node.

    Attributes:
        stuck: processes that even SIGKILL did not end, as ``pid (name, state)``.
    """

    killed: int
    stuck: tuple[str, ...]


class Pong(Message):
    """The answer to `Ping`; ``now``: the time on the node's monotonic clock."""

    sent: float
    now: float


def _is_address(text: str) -> bool:
    """Whether this is a numeric address."""
    try:
        _socket.inet_pton(_socket.AF_INET6 if ":" in text else _socket.AF_INET, text)
    except (OSError, ValueError):
        return False
    return True


def _by_name(*classes: type[Message]) -> Mapping[str, type[Message]]:
    return {cls.__name__: cls for cls in classes}


TO_AGENT = _by_name(
    *(Ask, Probe, Start, Stop, KillNow, SignalRanks, Suspend, Resume, Credit, Ping, Fetch, Want, Taken),
    *(TakeStacks, Measure, Tool, Release),
)
"""The messages that an agent accepts, by name."""
FROM_AGENT = _by_name(
    *(
        Hello,
        Probed,
        Up,
        Down,
        InputTaken,
        Rested,
        Eof,
        Stacks,
        Measured,
        NeedTool,
        Say,
        Unfit,
        GuardianLost,
        Signalled,
        Over,
        Pong,
    )
)
"""The messages that a runner accepts, by name."""


def to_json(message: Message) -> bytes:
    """Encode a message as JSON."""
    plain = {"type": type(message).__name__, **message.as_dict()}
    return jsontext.dumps(plain).encode()


def from_json(text: bytes, vocabulary: Mapping[str, type[Message]]) -> Message:
    """Decode and validate a message.

    Raises:
        ProtocolError: it is not one of them, or malformed; the text is a sentence about the sender ("it sent …").
    """
    try:
        plain = jsontext.parse(text.decode())
    except (ValueError, RecursionError):
        raise ProtocolError("it sent a message that is not JSON") from None
    if not isinstance(plain, dict):
        raise ProtocolError("it sent a message that is not a JSON object")
    name = plain.pop("type", None)
    cls = vocabulary.get(name) if isinstance(name, str) else None
    if cls is None:
        what = repr(name[:40]) if isinstance(name, str) else "its type is not a string"
        raise ProtocolError(f"it sent an unknown message: {what}")
    try:
        message = build(cls, plain)
    except ShapeError as error:
        raise ProtocolError(f"it sent a malformed message: {error}") from None
    wrong = message.check()
    if wrong:
        raise ProtocolError(f"it sent a malformed message: {cls.__name__} with {wrong}")
    return message
