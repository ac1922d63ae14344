"""Which messages an agent may send in which state."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.cluster.agent_protocol import MAY_SAY, NEXT, AgentProtocol
from bireme.control.messages import (
    FROM_AGENT,
    Down,
    Eof,
    GuardianLost,
    Message,
    Output,
    Over,
    Piece,
    Rested,
    Signalled,
    Stacks,
    Taken,
    Unfit,
    Up,
    from_json,
    to_json,
)
from bireme.errors import ProtocolError
from bireme.result.stacks import RankStack
from bireme.ship import conversation as ship_messages
from bireme.ship.conversation import Need, Shipped
from tests.unit.control import examples

TO_RUNNING = ("begin", "fit")
WAYS = {
    "waiting": (),
    "connecting": ("begin",),
    "shipping": ("begin", "ship"),
    "ready": ("begin", "fit"),
    "probed": ("begin", "fit", "probed"),
    "over": ("begin", "fit", "idle"),
    "fetching": ("begin", "fit", "idle", "fetch"),
    "failed": ("begin", "fail"),
    "lost": ("begin", "fit", "lose"),
}


def running(*ranks: int) -> AgentProtocol:
    protocol = AgentProtocol()
    for event in TO_RUNNING:
        protocol.on(event)
    protocol.start(ranks)
    return protocol


def up(rank: int) -> Up:
    return Up(rank=rank, pid=100 + rank, when=1.0)


def down(rank: int, code: int = 0) -> Down:
    return Down(end=examples.end(rank, code), when=2.0)


OVER = Over(killed=0, stuck=())


@pytest.mark.parametrize("state", WAYS)
@pytest.mark.parametrize("message", [*examples.FROM_AGENT, Output(0, 1, b"x")], ids=lambda it: type(it).__name__)
def test_each_message_in_each_state(state: str, message: Message | Output) -> None:
    protocol = AgentProtocol()
    for event in WAYS[state]:
        protocol.on(event)
    assert protocol.state == state
    if type(message) in MAY_SAY[state]:
        protocol.admit(message)
    else:
        with pytest.raises(ProtocolError, match=f"it sent {type(message).__name__} while it was {state}"):
            protocol.admit(message)


def test_every_message_may_come_somewhere() -> None:
    assert frozenset().union(*MAY_SAY.values()) == {*FROM_AGENT.values(), Output, Piece}
    assert set(MAY_SAY) == set(NEXT)


def test_a_life() -> None:
    protocol = running(2, 3)
    for message in (up(2), up(3), Output(2, 1, b"x"), Rested(rank=3, number=2), down(2, 1), down(3)):
        protocol.admit(message)
    for rank in (2, 3):
        for number in (1, 2):
            protocol.admit(Eof(rank=rank, number=number))
    protocol.admit(OVER)
    protocol.on("over")
    assert protocol.state == "over"


@pytest.mark.parametrize(
    ("before", "message", "wrong"),
    [
        ((), OVER, "Over before it reported the end of rank 0, 1"),
        ((up(0), up(1), down(0)), OVER, "Over before it reported the end of rank 1"),
        ((up(0),), up(0), "the start of rank 0"),
        ((), up(2), "the start of rank 2"),
        ((), down(0), "the end of rank 0, which was not running there"),
        ((up(0), down(0)), down(0), "the end of rank 0"),
        ((up(0), down(0)), up(0), "the start of rank 0"),
        ((), Output(5, 1, b"x"), "Output of rank 5, stream 1, which is not open"),
        ((), Output(0, 3, b"x"), "Output of rank 0, stream 3"),
        ((), Eof(rank=0, number=0), "Eof of rank 0, stream 0"),
        ((), Stacks(stacks=(RankStack(rank=7),)), "Stacks of ranks that it was not told to start"),
        ((Eof(rank=0, number=1),), Eof(rank=0, number=1), "Eof of rank 0, stream 1"),
        ((Eof(rank=0, number=1),), Output(0, 1, b"x"), "Output of rank 0, stream 1"),
    ],
)
def test_out_of_order(before: tuple[Message, ...], message: Message | Output, wrong: str) -> None:
    protocol = running(0, 1)
    for earlier in before:
        protocol.admit(earlier)
    with pytest.raises(ProtocolError, match=wrong):
        protocol.admit(message)


@pytest.mark.parametrize("excuse", [GuardianLost(pid=1, when=2.5), Unfit(problems=("x",))])
def test_over_without_ends_after_a_loss(excuse: Message) -> None:
    protocol = running(0)
    protocol.admit(excuse)
    protocol.admit(OVER)


def test_over_without_ranks_that_have_not_begun() -> None:
    """They waited for a template when the job was stopped."""
    protocol = running(0, 1)
    protocol.admit(up(0))
    protocol.stop()
    with pytest.raises(ProtocolError, match="the end of rank 0"):
        protocol.admit(OVER)
    protocol.admit(down(0))
    protocol.admit(OVER)


def test_over_with_what_cannot_be_killed() -> None:
    running(0).admit(Over(killed=0, stuck=("12 (x, state D)",)))


@pytest.mark.parametrize("message", [Need(), Need(places=(0, 2)), Taken(size=1), Shipped()], ids=repr)
def test_what_an_agent_says_of_a_tree(message: Message) -> None:
    """Only where it was offered one, and once: between the beginning and its hello."""
    unasked = AgentProtocol()
    unasked.on("begin")
    with pytest.raises(ProtocolError, match="while it was connecting"):
        unasked.admit(message)
    offered = AgentProtocol()
    offered.offer()
    with pytest.raises(ProtocolError, match="while it was waiting"):
        offered.admit(message)
    offered.on("begin")
    offered.admit(message)
    assert offered.state == "shipping"
    offered.admit(message)
    offered.on("shipped")
    with pytest.raises(ProtocolError, match="while it was connecting"):
        offered.admit(message)


@pytest.mark.parametrize("places", [(1, 0), (0, 1, 1, 2), (-1, 1)])
def test_places_out_of_order(places: tuple[int, ...]) -> None:
    with pytest.raises(ProtocolError, match="Need with places out of order"):
        from_json(to_json(Need(places=places)), ship_messages.FROM_AGENT)


def test_no_such_event() -> None:
    with pytest.raises(ValueError, match="event start is not allowed in state waiting"):
        AgentProtocol().start([0])


ANY = st.sampled_from([*examples.FROM_AGENT, Output(0, 1, b"x"), up(0), up(1), down(0), down(1), OVER])


@given(st.sampled_from([*sorted(WAYS), "running"]), st.lists(ANY, max_size=12))
def test_whatever_comes(state: str, messages: list[Message | Output]) -> None:
    """Never another exception; and who is over without an excuse has seen every rank's end."""
    protocol = running(0, 1) if state == "running" else AgentProtocol()
    for event in WAYS.get(state, ()):
        protocol.on(event)
    begun, ended = set(), set()
    excused = stopped = False
    for message in messages:
        try:
            protocol.admit(message)
        except ProtocolError:
            return
        begun |= {message.rank} if isinstance(message, Up) else set()
        ended |= {message.end.rank} if isinstance(message, Down) else set()
        stopped |= isinstance(message, Signalled)
        excused |= isinstance(message, (GuardianLost, Unfit)) or (isinstance(message, Over) and bool(message.stuck))
        if isinstance(message, Over) and not excused:
            assert ended == (begun if stopped else {0, 1})


def test_a_rank_ends_as_stopped_only_after_somebody_has_stopped_it() -> None:
    stopped = Down(end=examples.end(0, 143).replace(stopped=True), when=2.0)
    for tell in (
        lambda protocol: protocol.stop(),
        lambda protocol: protocol.admit(Signalled(signum=15, when=1.0)),
        None,
    ):
        protocol = running(0)
        protocol.admit(up(0))
        if tell is not None:
            tell(protocol)
            protocol.admit(stopped)
            continue
        with pytest.raises(ProtocolError, match="was not told to stop it"):
            protocol.admit(stopped)
