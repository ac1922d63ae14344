"""The search for the memory limit, which runs out of memory at most once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bireme.tune.deepspeed.limits import GroupMemory, LimitSearch, MicroBatchLimit, tuning_sizes


def explore(search: LimitSearch, stage: int, limit: int, count: int = 1) -> list[int]:
    """Tries what is proposed, against a limit above which nothing fits, until nothing more is."""
    tried: list[int] = []
    while proposed := search.propose(stage, count):
        for micro in proposed:
            assert micro not in tried
            assert not search.ruled_out(stage, micro)
            assert search.least <= micro <= search.most
        for micro in proposed:
            tried.append(micro)
            search.tell(stage, micro, micro <= limit)
    return tried


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(0, 3000), st.integers(0, 3000), st.integers(1, 5))
def test_the_limit_is_found(least, extra, limit, count):
    search = LimitSearch({0: GroupMemory()}, least, least + extra)
    tried = explore(search, 0, limit, count)
    assert not search.propose(0)
    found, real = search.limit(0).fits, min(limit, search.most)
    if real < least:
        assert found == 0 and tried.count(least) == 1
    else:
        assert found <= real <= found + max(1, 0.1 * found)
    assert len(tried) <= count * 24


def test_by_doubling_and_then_by_halving():
    search = LimitSearch({0: GroupMemory()}, 1, 1024)
    assert explore(search, 0, 21) == [1, 2, 4, 8, 16, 32, 24, 20, 22]
    assert search.limit(0) == MicroBatchLimit(20, 22)


def test_several_at_once():
    search = LimitSearch({0: GroupMemory()}, 1, 1024)
    assert search.propose(0, 3) == (1, 2, 4)
    assert search.propose(0, 2, pending=(1, 2)) == (4, 8)
    search.tell(0, 4, True)
    search.tell(0, 16, False)
    three = search.propose(0, 3)
    assert len(set(three)) == 3 and all(4 < micro < 16 for micro in three)
    first = search.propose(0)
    assert not set(search.propose(0, 1, pending=first)) & set(first)


def test_what_breaks_rules_out_all_above():
    search = LimitSearch({0: GroupMemory()}, 1, 100)
    search.tell(0, 20, False)
    assert "20 ran out of memory in group 0" in search.ruled_out(0, 20)
    assert search.ruled_out(0, 50)
    assert search.ruled_out(0, 19) == ""
    assert "not between" in search.ruled_out(0, 101)
    assert "not between" in search.ruled_out(0, 0)


def test_one_stages_wall_rules_out_in_another_that_needs_more():
    search = LimitSearch({0: GroupMemory(1000), 1: GroupMemory(600, buffers=100), 2: GroupMemory(550)}, 1, 100)
    search.tell(1, 20, False)
    assert "group 1" in search.ruled_out(0, 20)
    assert search.ruled_out(2, 20) == ""
    search.tell(2, 15, False)
    assert "15 ran out of memory in group 2" in search.ruled_out(0, 15)
    assert "15 ran out of memory in group 2" in search.ruled_out(1, 15)


def test_buffers_may_outweigh_what_a_stage_saves():
    """A small model in stage 2 can need more than in stage 0: its buckets do not shrink with it."""
    search = LimitSearch({0: GroupMemory(1000), 2: GroupMemory(400, buffers=700)}, 1, 100)
    search.tell(2, 20, False)
    assert search.ruled_out(0, 20) == ""


def test_without_a_model_no_stage_tells_of_another():
    search = LimitSearch({0: GroupMemory(), 1: GroupMemory()}, 1, 100)
    search.tell(1, 20, False)
    assert search.ruled_out(0, 20) == ""


def test_what_a_stage_shows_itself_outweighs_what_others_tell():
    search = LimitSearch({0: GroupMemory(1000), 1: GroupMemory(600)}, 1, 100)
    search.tell(1, 20, False)
    search.tell(0, 30, True)
    assert search.ruled_out(0, 30) == search.ruled_out(0, 40) == ""
    assert search.limit(0) == MicroBatchLimit(30, None)


def test_states_that_fill_the_memory():
    search = LimitSearch({0: GroupMemory(1000), 3: GroupMemory(100)}, 1, 100, capacity=1000)
    assert "alone fill the memory" in search.ruled_out(0, 1)
    assert search.propose(0) == ()
    assert search.propose(3) == (1,)


def test_the_estimate_is_tried_first():
    search = LimitSearch({0: GroupMemory(200)}, 1, 1024, capacity=1000, activation=10)
    assert explore(search, 0, 80) == [80, 88]
    assert search.limit(0) == MicroBatchLimit(80, 88)


@pytest.mark.parametrize("limit", [1, 3, 500, 1024])
def test_a_wrong_estimate_does_no_harm(limit):
    search = LimitSearch({0: GroupMemory(200)}, 1, 1024, capacity=1000, activation=10)
    explore(search, 0, limit)
    assert search.limit(0).fits <= limit <= search.limit(0).fits * 1.1 + 1


def test_the_next_stage_is_cheaper():
    """One stage's limit tells where another's is: at (C - S') / (C - S) of it."""
    known = {0: GroupMemory(600), 1: GroupMemory(200)}
    taught = LimitSearch(known, 1, 1024, capacity=1000)
    explore(taught, 0, 40)
    first = taught.propose(1)
    assert 72 <= first[0] <= 80
    tried = explore(taught, 1, 80)
    untaught = explore(LimitSearch(known, 1, 1024, capacity=1000), 1, 80)
    assert len(tried) < len(untaught) / 2


def test_an_upper_limit_that_fits():
    search = LimitSearch({0: GroupMemory()}, 1, 20)
    assert explore(search, 0, 1000) == [1, 2, 4, 8, 16, 20]
    assert search.limit(0) == MicroBatchLimit(20, None)


@pytest.mark.parametrize(
    ("measured", "largest", "count", "sizes"),
    [
        ([1, 2, 4, 8, 16, 20], 20, 3, (13, 16, 20)),
        ([], 20, 3, (15, 17, 20)),
        ([10, 12, 14, 16, 18], 20, 3, (16, 18, 20)),
        ([], 1, 3, (1,)),
        ([], 0, 3, ()),
        ([5], 5, 1, (5,)),
    ],
)
def test_tuning_sizes(measured, largest, count, sizes):
    assert tuning_sizes(measured, largest, count) == sizes
