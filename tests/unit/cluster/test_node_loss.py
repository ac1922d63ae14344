"""When a node was lost: before the failures that its loss causes on other nodes, in whatever order all are reported."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from bireme.cluster.node_loss import NEWS, end_by_signal, end_of_channel, end_of_launcher
from bireme.control.silence import BEATS, Silence
from bireme.result.outcome import RankEnd
from bireme.result.verdict import Verdict

HEARTBEAT = 10.0
LATE = st.floats(0.0, NEWS * 0.98)
"""How much later than the failures that it causes the end of an agent is reported."""


def failed(rank: int) -> RankEnd:
    return RankEnd(
        rank=rank, host=f"node{rank}", device="cpu", pid=1, code=1, by_signal=False, seconds=1.0, stopped=False
    )


def channel_end(node: str, since: float, now: float) -> tuple[str, float, tuple[str, ...]]:
    return "agent lost", end_of_channel(Silence(since), now, HEARTBEAT), (node,)


@given(st.floats(100.0, 1e6), LATE, LATE)
def test_a_lost_node_is_blamed_and_not_the_ranks_that_miss_it(when: float, failure: float, late: float) -> None:
    """Its end is read up to NEWS after ranks elsewhere have failed because of it."""
    lost = channel_end("node1", when, when + failure / 2 + late)
    for order in permutations(("lost", "rank")):
        verdict = Verdict()
        verdict.planned((0, 1))
        for what in order:
            if what == "lost":
                verdict.blame("agent lost", lost[1], note="node1 is lost", hosts=lost[2])
            else:
                verdict.end(failed(0), when + failure / 2 + 1e-3)
        assert verdict.cause == "agent lost" and verdict.hosts == ("node1",)


def test_a_rank_that_failed_long_before_is_the_cause() -> None:
    verdict = Verdict()
    verdict.planned((0, 1))
    verdict.blame("agent lost", end_of_channel(Silence(99.0), 100.0, HEARTBEAT), hosts=("node1",))
    verdict.end(failed(0), 100.0 - 2 * NEWS)
    assert verdict.cause == "rank failed"


@given(st.floats(100.0, 1e6), LATE)
def test_a_killed_launcher_comes_before_the_channels_that_end_with_it(when: float, late: float) -> None:
    """Whichever is read first: its end is read no later than NEWS after the first of these."""
    assert end_of_launcher(when + late) < end_of_channel(Silence(when), when, HEARTBEAT)
    assert end_of_launcher(when) < end_of_channel(Silence(when), when + late, HEARTBEAT)


def test_ranks_that_are_ended_with_their_agent_are_not_at_fault() -> None:
    """A launcher that ends a node signals all its processes, in any order."""
    assert end_by_signal(100.0) < 100.0 - NEWS / 2


def test_a_node_that_lost_its_power_was_lost_at_its_last_sign_of_life() -> None:
    """Its kernel ends the connection when it is up again: a ping was missed by then."""
    missed = HEARTBEAT / BEATS + NEWS
    assert end_of_channel(Silence(100.0), 100.0 + missed + 0.01, HEARTBEAT) == 100.0
    assert end_of_channel(Silence(100.0), 100.0 + missed - 0.01, HEARTBEAT) == 100.0 + missed - 0.01 - NEWS
