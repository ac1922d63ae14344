"""The order of the tests: all run, the longest first, short ones between them, and few workers need Slurm."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from tests.kit import order
from tests.kit.order import share_out, stretches

TESTS = st.lists(st.tuples(st.sampled_from([0.0, 0.0, 1.0, 2.5, 30.0]), st.sampled_from("|ab")), max_size=60)


@given(TESTS, st.integers(1, 9))
def test_every_test_is_run_once_and_the_longest_first(tests: list[tuple[float, str]], workers: int) -> None:
    seconds, groups = [length for length, _ in tests], [group.strip("|") for _, group in tests]
    listed = share_out(seconds, groups, workers)
    assert sorted(listed) == list(range(len(tests)))
    begin = 0
    for size in stretches(len(tests), workers):
        mine = listed[begin : begin + size]
        lengths = [seconds[place] for place in mine]
        shared = [bool(groups[place]) for place in mine if seconds[place]]
        assert shared == sorted(shared, reverse=True), "what is costly to start is done where nobody takes it away"
        first = [length for place, length in zip(mine, lengths, strict=True) if bool(groups[place]) == any(shared)]
        assert max(first, default=0.0) == next(iter(lengths), 0.0)
        known = [position for position, length in enumerate(lengths) if length]
        between = [after - before - 1 for before, after in itertools.pairwise(known)]
        assert max(between, default=0) - min(between, default=0) <= 1
        if known:
            assert len(lengths) - 1 - known[-1] >= (1 - order.BETWEEN) * lengths.count(0.0)
        begin += size


@given(st.lists(st.floats(1, 30), min_size=8, max_size=40))
def test_no_worker_has_more_than_the_longest_test_more_than_another(lengths: list[float]) -> None:
    """With room in all stretches: as many tests that take no time."""
    seconds = [*lengths, *[0.0] * len(lengths) * 8]
    listed = share_out(seconds, [""] * len(seconds), 8)
    size = len(seconds) // 8
    loads = [sum(seconds[place] for place in listed[number * size : (number + 1) * size]) for number in range(8)]
    assert max(loads) - min(loads) <= max(lengths) + 1e-6


def test_what_shares_something_costly_goes_to_few_workers() -> None:
    seconds = [1.0] * 80 + [0.0] * 80
    groups = [{0: "slurm", 1: "browser"}.get(number % 8, "") for number in range(160)]
    listed = share_out(seconds, groups, 8)
    for group in ("slurm", "browser"):
        places = [position // 20 for position, place in enumerate(listed) if groups[place] == group and seconds[place]]
        assert len(places) == 10 and len(set(places)) == 1


def test_the_table_can_be_read() -> None:
    assert min(order.read().values()) >= order.LEAST
