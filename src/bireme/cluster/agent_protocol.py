"""Which messages an agent may send in which state: the runner's state machine of one agent. Pure.

============  =====================  ==================================================================
state         it may send            it leaves the state by
============  =====================  ==================================================================
waiting       nothing                ``begin``: its session is started → connecting
connecting    `Hello`                ``fit`` → ready, ``fail`` → failed, ``ship`` → shipping
shipping      what it needs of a     ``shipped`` → connecting
              tree (`bireme.ship.conversation`)
ready         `Probed`               ``probed`` → probed, ``start`` → running, ``idle`` → over
probed        nothing of its own     ``start`` → running, ``idle`` → over
running       about its ranks        ``over`` → over
over          nothing of its own     ``fetch`` → fetching
fetching      files that the job     ``fetched`` → over
              brings home
              (`bireme.ship.conversation`)
failed        nothing of its own
lost          nothing at all
============  =====================  ==================================================================

``fail`` and ``lose`` lead from every state to failed and lost. In every state but the first and the last, an agent may
also report a signal or a problem, answer a ping, and send a line for the screen. Anything else breaks the protocol.
"""

from __future__ import annotations

from bireme.control import messages
from bireme.errors import ProtocolError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Literal, TypeAlias

    State: TypeAlias = Literal[
        "waiting", "connecting", "shipping", "ready", "probed", "running", "over", "fetching", "failed", "lost"
    ]
    Event: TypeAlias = Literal[
        "begin", "ship", "shipped", "fit", "probed", "start", "idle", "over", "fetch", "fetched", "fail", "lose"
    ]

_ALWAYS = frozenset({messages.Say, messages.Unfit, messages.Signalled, messages.Pong})
_OF_RANKS = frozenset(
    {messages.Output, messages.Up, messages.Down, messages.Rested, messages.Eof, messages.GuardianLost, messages.Over}
    | {messages.Stacks, messages.Measured, messages.NeedTool}
)

MAY_SAY: Mapping[State, frozenset[type[messages.Frame]]] = {
    "waiting": frozenset(),
    "connecting": _ALWAYS | {messages.Hello},
    "shipping": _ALWAYS,
    "ready": _ALWAYS | {messages.Probed},
    "probed": _ALWAYS,
    "running": _ALWAYS | _OF_RANKS | {messages.InputTaken},
    "over": _ALWAYS | {messages.InputTaken},  # it may have crossed a chunk of stdin
    "fetching": _ALWAYS | {messages.Piece, messages.InputTaken},
    "failed": _ALWAYS,
    "lost": frozenset(),
}
"""What an agent may send in which state."""

NEXT: Mapping[State, Mapping[Event, State]] = {
    "waiting": {"begin": "connecting"},
    "connecting": {"fit": "ready", "ship": "shipping"},
    "shipping": {"shipped": "connecting"},
    "ready": {"probed": "probed", "start": "running", "idle": "over"},
    "probed": {"start": "running", "idle": "over"},
    "running": {"over": "over"},
    "over": {"fetch": "fetching"},
    "fetching": {"fetched": "over"},
    "failed": {},
    "lost": {},
}
"""State and event to the next state; ``fail`` and ``lose`` lead from everywhere to failed and lost."""


_MOST_WORDS = 1 << 20
"""Characters of all messages that an agent may send for the screen, such as that a log cannot be written."""


class AgentProtocol:
    """The state of one agent, and which of its ranks and streams are open."""

    def __init__(self) -> None:
        self.state: State = "waiting"
        self.pipes = 0
        self._planned: set[int] = set()
        self._ranks: frozenset[int] = frozenset()
        self._running: set[int] = set()
        self._unseen: set[int] = set()
        self._streams: set[tuple[int, int]] = set()
        self._excused = self._stopped = self._needs = False
        self._words = 0

    def on(self, event: Event) -> None:
        """Go to the next state.

        Raises:
            ValueError: the event is not allowed in this state.
        """
        if event in ("fail", "lose"):
            self.state = "failed" if event == "fail" else "lost"
        elif event in NEXT[self.state]:
            self.state = NEXT[self.state][event]
        else:
            raise ValueError(f"event {event} is not allowed in state {self.state}")

    def offer(self) -> None:
        """Note that the agent is offered a tree: it may say what it needs of it, once."""
        self._needs = True

    def start(self, ranks: Iterable[int], streams: Sequence[int] = (1, 2)) -> None:
        """Enter the state running: the agent is told to start these ranks, each with these streams."""
        self.on("start")
        self._planned = set(ranks)
        self._ranks = frozenset(self._planned)
        self._unseen = set(self._planned)
        self._streams = {(rank, number) for rank in self._planned for number in streams}
        self.pipes = len(self._streams)

    def stop(self) -> None:
        """Note that the agent is told to stop its ranks: from now on, it may report them as stopped."""
        self._stopped = True

    def admit(self, message: messages.Frame) -> None:
        """Check that a message may come now, and update the state by it.

        Raises:
            ProtocolError: it may not come now; the text is a sentence about the agent ("it sent …").
        """
        name = type(message).__name__
        if isinstance(message, messages.Message) and message.of_tree:
            if self.state == "connecting" and self._needs:
                self._needs = False
                self.on("ship")
            elif self.state != "shipping":
                raise ProtocolError(f"it sent {name} while it was {self.state}")
        elif isinstance(message, messages.Message) and message.of_fetch and self.state == "fetching":
            return
        elif type(message) not in MAY_SAY[self.state]:
            raise ProtocolError(f"it sent {name} while it was {self.state}")
        if isinstance(message, messages.Say):
            self._words += 1 + len(message.text)
            if self._words > _MOST_WORDS:
                raise ProtocolError(f"it sent messages of more than {_MOST_WORDS:,} characters for the screen")
        elif isinstance(message, (messages.Output, messages.Rested, messages.Eof)):
            self._admit_stream(message)
        elif isinstance(message, messages.Up):
            if message.rank not in self._planned:
                raise ProtocolError(f"it reported the start of rank {message.rank}, which it was not told to start")
            self._planned.discard(message.rank)
            self._running.add(message.rank)
        elif isinstance(message, messages.Down):
            if message.end.rank not in self._running:
                raise ProtocolError(f"it reported the end of rank {message.end.rank}, which was not running there")
            if message.end.stopped and not self._stopped:
                raise ProtocolError(f"it reported rank {message.end.rank} as stopped, but was not told to stop it")
            self._running.discard(message.end.rank)
            self._unseen.discard(message.end.rank)
        elif isinstance(message, messages.Signalled):
            self._stopped = True  # it stops its ranks by itself
        elif isinstance(message, (messages.GuardianLost, messages.Unfit)):
            self._excused = True
        elif isinstance(message, messages.Over):
            self._admit_over(message)
        elif isinstance(message, (messages.Stacks, messages.Measured)):
            told = (
                [each.rank for each in message.stacks] if isinstance(message, messages.Stacks) else message.uses.ranks
            )
            if not self._ranks.issuperset(told):
                raise ProtocolError(f"it sent {name} of ranks that it was not told to start")

    def _admit_stream(self, message: messages.Output | messages.Rested | messages.Eof) -> None:
        stream = message.rank, message.number
        if stream not in self._streams:
            name = type(message).__name__
            raise ProtocolError(f"it sent {name} of rank {message.rank}, stream {message.number}, which is not open")
        if isinstance(message, messages.Eof):
            self._streams.discard(stream)

    def _admit_over(self, message: messages.Over) -> None:
        """Allow ranks without a reported end only after a lost guardian or a failed start, or with stuck processes.

        Ranks that were stopped while they waited for a template have not begun.
        """
        unseen = self._unseen - self._planned if self._stopped else self._unseen
        if unseen and not self._excused and not message.stuck:
            ranks = ", ".join(map(str, sorted(unseen)))
            raise ProtocolError(f"it sent Over before it reported the end of rank {ranks}")
