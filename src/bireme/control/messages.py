"""All that runner and agent say to each other, as typed, immutable messages.

A message travels as a JSON object: its fields, and its class's name as ``"type"``. It is checked against the
annotations of its class before anybody sees it; whatever does not fit is a `ProtocolError`. Which message may come
when is another matter: `bireme.cluster.agent_protocol` knows for the runner, `bireme.agent.remote` for the agent.
"""

from __future__ import annotations

import json
import signal

from bireme.errors import BiremeError
from bireme.job import JobSpec
from bireme.planning.start import NodePlan
from bireme.result.outcome import RankEnd
from bireme.validate import ShapeError, build
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


class ProtocolError(BiremeError):
    """The other side does not speak our protocol."""


class Message(Value):
    """Base of all messages."""

    def check(self) -> str:
        """What is wrong with the values of the fields, beyond their types; "" if nothing is."""
        return ""


class Output(Value):
    """What a rank has written to its stdout (``number`` 1) or stderr (2). It travels as raw bytes, not as JSON."""

    rank: int
    number: int
    data: bytes


# -- to the agent --------------------------------------------------------------------------------


class Ask(Message):
    """Can you carry your part of this job?

    Attributes:
        spec: the job.
        cwd: the working directory of the ranks.
        heartbeat: seconds of silence after which the other side is lost.
        first: whether this node may be the one at which the ranks meet: it holds a port.
        name: this node's name in the pool.
        slots: those that the pool gives it; None: all that it has.
        exports: the variables that travel.
        unset: beginnings of the names of variables that the ranks must not see.
    """

    spec: JobSpec
    cwd: str
    heartbeat: float
    first: bool
    name: str
    slots: tuple[str, ...] | None
    exports: Mapping[str, str]
    unset: tuple[str, ...]

    def check(self) -> str:
        """See `Message.check`."""
        return "" if self.heartbeat > 0 else "a heartbeat of no length"


class Probe(Message):
    """Which of these addresses do you reach, at this port?"""

    addresses: tuple[str, ...]
    port: int

    def check(self) -> str:
        """See `Message.check`."""
        return _check_port(self.port)


class Start(Message):
    """Start your ranks.

    Attributes:
        node: this node's part of the plan.
        accelerator: the kind of device that its slots are.
        grace: seconds between the stop signal and SIGKILL.
        window: bytes of output that may be sent before the runner grants more.
        rest: seconds after which an unfinished line is shown.
    """

    node: NodePlan
    accelerator: str
    grace: float
    window: int
    rest: float


class Stop(Message):
    """End your ranks by the stop ladder, beginning with this signal."""

    signum: int

    def check(self) -> str:
        """See `Message.check`."""
        return _check_signal(self.signum)


class Urge(Message):
    """Do not wait for the grace time."""


class SignalRanks(Message):
    """Send a signal to every rank's own process."""

    signum: int

    def check(self) -> str:
        """See `Message.check`."""
        return _check_signal(self.signum)


class Suspend(Message):
    """Halt every process of the job."""


class Resume(Message):
    """Wake them."""


class Credit(Message):
    """You may send so many more bytes of output."""

    size: int

    def check(self) -> str:
        """See `Message.check`."""
        return "" if self.size > 0 else "a credit of nothing"


class Ping(Message):
    """Are you there? ``sent``: when this was sent, by the runner's monotonic clock."""

    sent: float


class Release(Message):
    """All is over: go."""


# -- from the agent ------------------------------------------------------------------------------


class Hello(Message):
    """What the node is, and what is wrong with it.

    Attributes:
        problems: why it cannot carry its part, in words; without any, all that follows is known.
        hostname: its own short name.
        version, python: of Bireme, and of the agent's Python.
        addresses: at which other nodes may reach it.
        interpreter: the Python that runs the ranks.
        local_rank_flag: the flag by which the script wants its local rank, or "".
        accelerator, slots: its devices.
        cores: how many the ranks may use.
        bound: the cores of each local rank, or nothing.
        omp_threads_set: the user has chosen OMP_NUM_THREADS there.
        temporary: its directory for temporary files.
        port: where the ranks can meet, if it was asked to hold one; else 0.
        earlier: how many processes of an earlier epoch still run there.
    """

    problems: tuple[str, ...]
    hostname: str
    version: str
    python: str
    addresses: tuple[str, ...]
    interpreter: str = ""
    local_rank_flag: str = ""
    accelerator: str = ""
    slots: tuple[str, ...] = ()
    cores: int = 0
    bound: tuple[tuple[int, ...], ...] = ()
    omp_threads_set: bool = False
    temporary: str = ""
    port: int = 0
    earlier: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether all is known that a plan needs."""
        return bool(self.interpreter and self.accelerator and self.cores > 0 and self.temporary)

    def check(self) -> str:
        """See `Message.check`. Names and slots stand before each line of a rank's output, so nothing odd is in them."""
        for text in (self.hostname, self.accelerator, *self.slots):
            if not text.isprintable():
                return "a name with control characters in it"
        if not self.hostname:
            return "a node without a name"
        if not self.problems and not self.is_complete:
            return "neither all that was asked for nor a problem"
        if self.bound and len(self.bound) != len(self.slots):
            return "cores for another number of ranks than there are slots"
        return _check_port(self.port) if self.port else ""


class Probed(Message):
    """The addresses that the node reaches."""

    reachable: tuple[str, ...]


class Up(Message):
    """A rank was started; ``when``: a second of the node's monotonic clock."""

    rank: int
    pid: int
    when: float


class Down(Message):
    """A rank has ended; ``when``: a second of the node's monotonic clock."""

    end: RankEnd
    when: float

    def check(self) -> str:
        """See `Message.check`."""
        return "" if 0 <= self.end.code <= 255 else f"an exit code of {self.end.code}"


class Rested(Message):
    """A rank has begun a line on a stream (1: stdout, 2: stderr) and does not go on."""

    rank: int
    number: int


class Eof(Message):
    """A stream of a rank (1: stdout, 2: stderr) is at its end."""

    rank: int
    number: int


class Say(Message):
    """A line for the screen."""

    level: str
    text: str

    def check(self) -> str:
        """See `Message.check`."""
        return "" if self.level in ("debug", "info", "warning", "error") else "a line of no known level"


class Unfit(Message):
    """The node cannot carry its part after all."""

    problems: tuple[str, ...]


class GuardianLost(Message):
    """The node's guardian was killed."""

    pid: int


class Signalled(Message):
    """The agent itself got a signal; ``when``: a second of the node's monotonic clock."""

    signum: int
    when: float

    def check(self) -> str:
        """See `Message.check`."""
        return _check_signal(self.signum)


class Over(Message):
    """Nothing is left on the node.

    Attributes:
        killed: how many ranks SIGKILL had to end.
        stuck: processes that even SIGKILL did not end, as ``pid (name, state)``.
    """

    killed: int
    stuck: tuple[str, ...]


class Pong(Message):
    """The answer to `Ping`; ``now``: a second of the node's monotonic clock."""

    sent: float
    now: float


def _check_port(port: int) -> str:
    return "" if 0 < port < 65536 else f"port {port}, which there is not"


def _check_signal(signum: int) -> str:
    return "" if signum in signal.valid_signals() else f"signal {signum}, which there is not"


def _by_name(*classes: type[Message]) -> Mapping[str, type[Message]]:
    return {cls.__name__: cls for cls in classes}


TO_AGENT = _by_name(Ask, Probe, Start, Stop, Urge, SignalRanks, Suspend, Resume, Credit, Ping, Release)
"""What an agent understands."""
FROM_AGENT = _by_name(Hello, Probed, Up, Down, Rested, Eof, Say, Unfit, GuardianLost, Signalled, Over, Pong)
"""What a runner understands."""


def to_json(message: Message) -> bytes:
    """A message as it travels."""
    plain = {"type": type(message).__name__, **message.as_dict()}
    return json.dumps(plain, separators=(",", ":"), ensure_ascii=True).encode()


def from_json(text: bytes, vocabulary: Mapping[str, type[Message]]) -> Message:
    """The message that has travelled.

    Args:
        text: one JSON object.
        vocabulary: the messages that are understood, by name.

    Raises:
        ProtocolError: it is none of them, or not well formed.
    """
    try:
        plain = json.loads(text)
    except (ValueError, RecursionError):
        raise ProtocolError("it sent a message that is not JSON") from None
    if not isinstance(plain, dict):
        raise ProtocolError("it sent a message that is not a JSON object")
    name = plain.pop("type", None)
    cls = vocabulary.get(name) if isinstance(name, str) else None
    if cls is None:
        raise ProtocolError(f"it sent an unknown message: {str(name)[:40]!r}")
    try:
        message = build(cls, plain)
    except ShapeError as error:
        raise ProtocolError(f"it sent a malformed message: {error}") from None
    wrong = message.check()
    if wrong:
        raise ProtocolError(f"it sent a malformed message: {cls.__name__} with {wrong}")
    return message
