"""A line of waiting things, against a sorted list."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.tune import wait_queue
from bireme.tune.wait_queue import WaitQueue

ranks = st.integers(0, 30).map(lambda number: (number,))


@pytest.fixture(scope="module", autouse=True)
def short_pieces():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wait_queue, "_LONGEST_PIECE", 3)
        yield


@given(st.lists(st.tuples(st.booleans(), ranks, st.integers(1, 9)), max_size=60), st.integers(0, 10))
def test_as_a_sorted_list(happens, by):
    waiting, expected = WaitQueue(), {}
    for add, rank, seconds in happens:
        if add and rank not in expected:
            expected[rank] = seconds
            waiting.add((rank, seconds, f"of {rank}"))
        elif not add and rank in expected:
            del expected[rank]
            waiting.remove(rank)
        elif not add:
            with pytest.raises(KeyError):
                waiting.remove(rank)
        entries = [(rank, seconds, f"of {rank}") for rank, seconds in sorted(expected.items())]
        assert list(waiting) == entries
        assert bool(waiting) == bool(entries)
        assert not entries or waiting.first == entries[0]
        short = [entry for entry in entries if 3 + entry[1] <= 3 + by]
        assert waiting.first_ending(3, 3 + by) == (short[0] if short else None)


def test_nobody_waits():
    with pytest.raises(IndexError):
        _ = WaitQueue().first
