"""What an agent may say, and when: the states of an agent as the runner sees it. Pure.

============  =====================  ==================================================================
state         it may say             it leaves the state by
============  =====================  ==================================================================
waiting       nothing                ``begin``: its session is started → connecting
connecting    `Hello`                ``fit`` → ready, ``fail`` → failed
ready         `Probed`               ``probed`` → probed, ``start`` → running, ``idle`` → over
probed        nothing of its own     ``start`` → running, ``idle`` → over
running       about its ranks        ``over`` → over
over          nothing of its own
failed        nothing of its own
lost          nothing at all
============  =====================  ==================================================================

``fail`` and ``lose`` lead from every state to failed and lost. In every state but the first and the last an agent may
say that it has got a signal, answer a ping, and send a line for the screen. Anything else breaks the protocol.
"""

from __future__ import annotations

from bireme.control.messages import (
    Down,
    Eof,
    GuardianLost,
    Hello,
    Output,
    Over,
    Pong,
    Probed,
    ProtocolError,
    Rested,
    Say,
    Signalled,
    Unfit,
    Up,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Literal, TypeAlias

    from bireme.control.messages import Message

    State: TypeAlias = Literal["waiting", "connecting", "ready", "probed", "running", "over", "failed", "lost"]
    Event: TypeAlias = Literal["begin", "fit", "probed", "start", "idle", "over", "fail", "lose"]

_ALWAYS = frozenset({Say, Unfit, Signalled, Pong})
_OF_RANKS = frozenset({Output, Up, Down, Rested, Eof, GuardianLost, Over})

MAY_SAY: Mapping[State, frozenset[type[Message | Output]]] = {
    "waiting": frozenset(),
    "connecting": _ALWAYS | {Hello},
    "ready": _ALWAYS | {Probed},
    "probed": _ALWAYS,
    "running": _ALWAYS | _OF_RANKS,
    "over": _ALWAYS,
    "failed": _ALWAYS,
    "lost": frozenset(),
}
"""What an agent may say in which state."""

NEXT: Mapping[State, Mapping[Event, State]] = {
    "waiting": {"begin": "connecting"},
    "connecting": {"fit": "ready"},
    "ready": {"probed": "probed", "start": "running", "idle": "over"},
    "probed": {"start": "running", "idle": "over"},
    "running": {"over": "over"},
    "over": {},
    "failed": {},
    "lost": {},
}
"""State and event to the next state; ``fail`` and ``lose`` lead from everywhere to failed and lost."""


class AgentProtocol:
    """The state of one agent, and what is known of its ranks.

    Attributes:
        state: see the table above.
    """

    def __init__(self) -> None:
        self.state: State = "waiting"
        self._planned: set[int] = set()
        self._running: set[int] = set()
        self._unseen: set[int] = set()
        self._streams: set[tuple[int, int]] = set()
        self._excused = False

    def on(self, event: Event) -> None:
        """Go to the next state.

        Raises:
            ValueError: there is no such event in this state.
        """
        if event in ("fail", "lose"):
            self.state = "failed" if event == "fail" else "lost"
        elif event in NEXT[self.state]:
            self.state = NEXT[self.state][event]
        else:
            raise ValueError(f"no {event} in the state {self.state}")

    def start(self, ranks: Iterable[int]) -> None:
        """It is told to start these ranks."""
        self.on("start")
        self._planned = set(ranks)
        self._unseen = set(self._planned)
        self._streams = {(rank, number) for rank in self._planned for number in (1, 2)}

    def admit(self, message: Message | Output) -> None:
        """Take a message into account, if it may come now.

        Raises:
            ProtocolError: it may not; in words that follow the node's name.
        """
        name = type(message).__name__
        if type(message) not in MAY_SAY[self.state]:
            raise ProtocolError(f"it sent {name} while it was {self.state}")
        if isinstance(message, (Output, Rested, Eof)):
            self._admit_stream(message)
        elif isinstance(message, Up):
            if message.rank not in self._planned:
                raise ProtocolError(f"it sent the start of rank {message.rank}, which was not due there")
            self._planned.discard(message.rank)
            self._running.add(message.rank)
        elif isinstance(message, Down):
            if message.end.rank not in self._running:
                raise ProtocolError(f"it sent the end of rank {message.end.rank}, which does not run there")
            self._running.discard(message.end.rank)
            self._unseen.discard(message.end.rank)
        elif isinstance(message, (GuardianLost, Unfit)):
            self._excused = True
        elif isinstance(message, Over):
            self._admit_over(message)

    def _admit_stream(self, message: Output | Rested | Eof) -> None:
        stream = message.rank, message.number
        if stream not in self._streams:
            name = type(message).__name__
            raise ProtocolError(f"it sent {name} of rank {message.rank}, stream {message.number}, which is not open")
        if isinstance(message, Eof):
            self._streams.discard(stream)

    def _admit_over(self, message: Over) -> None:
        """Ranks may be missing only where it has said that its guardian was lost, or that it could not start them."""
        if self._unseen and not self._excused and not message.stuck:
            ranks = ", ".join(map(str, sorted(self._unseen)))
            raise ProtocolError(f"it sent Over before the end of rank {ranks}")
