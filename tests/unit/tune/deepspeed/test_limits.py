"""Which micro-batches fit, which stages can still win, and which micro-batch is tried next."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bireme.tune.deepspeed.limits import GroupLimit, Limits, cannot_win, flat, tuning_sizes
from bireme.tune.deepspeed.results import ModelInfo
from tests.unit.tune.deepspeed.machine import MICRO, STAGE, Machine, Tuning, names, play

# -- what follows from a trial -------------------------------------------------------------------------


def known(*groups: GroupLimit, **more: int) -> Limits:
    return Limits(groups or (GroupLimit(),), 1, 100, **more)


def test_what_breaks_rules_out_all_above():
    limits = known()
    (group,) = limits.groups
    group.breaks.append(20)
    assert limits.ruled_out(group, 20) and limits.ruled_out(group, 50)
    assert not limits.ruled_out(group, 19)
    assert limits.ruled_out(group, 101) and limits.ruled_out(group, 0)


def test_one_stages_wall_rules_out_in_another_that_needs_more():
    limits = known(GroupLimit(1000), GroupLimit(600, buffers=100), GroupLimit(550))
    first, second, third = limits.groups
    second.breaks.append(20)
    assert limits.ruled_out(first, 20) and not limits.ruled_out(first, 19)
    assert not limits.ruled_out(third, 20)
    third.breaks.append(15)
    assert limits.ruled_out(first, 15) and limits.ruled_out(second, 15)


@pytest.mark.parametrize(
    "groups",
    [
        # A small model in stage 2 can need more than in stage 0: its buckets do not shrink with it.
        ((1000, 0), (400, 700)),
        # Without a model no stage tells of another.
        ((None, 0), (None, 0)),
    ],
)
def test_of_what_may_need_less_a_wall_tells_nothing(groups):
    limits = known(*(GroupLimit(*each) for each in groups))
    limits.groups[1].breaks.append(20)
    assert not limits.ruled_out(limits.groups[0], 20)


def test_what_a_stage_shows_itself_outweighs_what_others_tell():
    limits = known(GroupLimit(1000), GroupLimit(600))
    first, second = limits.groups
    second.breaks.append(20)
    first.fits.append(30)
    assert not limits.ruled_out(first, 30) and not limits.ruled_out(first, 40)
    assert (first.largest, limits.too_large(first)) == (30, None)


def test_states_that_fill_the_memory():
    limits = known(GroupLimit(1000), GroupLimit(100), capacity=1000)
    first, second = limits.groups
    assert limits.ruled_out(first, 1) and not limits.ruled_out(second, 1)
    first.fits.append(1)
    assert not limits.ruled_out(first, 1) and limits.ruled_out(first, 2)


def test_what_is_likely():
    """By the estimate; of another group when its limit is known: at (C - S') / (C - S) of it."""
    limits = known(GroupLimit(600), GroupLimit(200), capacity=1000, activation=10)
    first, second = limits.groups
    assert limits.guess(second) == (80, 88)
    first.fits.append(30)
    first.breaks.append(33)
    assert limits.guess(second) == (60, 66)


def test_what_is_open_is_divided_by_what_runs():
    limits = known()
    (group,) = limits.groups
    assert limits.between(group) is None
    group.fits.append(4)
    group.breaks.append(16)
    first = limits.between(group)
    second = limits.between(group, (first,))
    assert len({first, second}) == 2 and all(4 < micro < 16 for micro in (first, second))
    group.fits.append(15)
    assert limits.between(group) is None


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


# -- whether a stage can still win ---------------------------------------------------------------------

FLAT = {8: 100.0, 16: 101.0}
RISING = {8: 100.0, 16: 150.0}


@pytest.mark.parametrize(
    ("speeds", "largest", "lost"),
    [
        ({}, {}, False),
        ({0: {}}, {}, False),
        ({0: FLAT}, {}, False),  # stage 1 was not tried yet: sharing out the optimizer may well pay
        ({0: FLAT, 1: {8: 90.0, 16: 91.0}}, {}, True),
        ({0: FLAT, 1: {8: 98.0, 16: 99.0}}, {}, False),
        ({0: FLAT, 1: {8: 90.0, 16: 120.0}}, {}, False),
        ({0: RISING, 1: {8: 90.0, 16: 91.0}}, {}, False),
        ({0: FLAT, 1: {32: 50.0}}, {}, False),  # nothing to compare
        ({0: RISING}, {2: 15}, True),
        ({0: RISING}, {2: 16}, False),
        ({3: FLAT}, {2: 1}, False),  # only lower stages tell
    ],
)
def test_cannot_win(speeds, largest, lost):
    assert bool(cannot_win(2, speeds, largest)) == lost


@pytest.mark.parametrize(
    ("speeds", "is_flat"),
    [
        ({}, False),
        ({8: 100.0}, False),
        (FLAT, True),
        (RISING, False),
        ({16: 100.0, 20: 101.0}, False),  # too near each other to tell
        ({8: 99.0, 16: 100.0, 20: 101.0}, True),
        ({8: 100.0, 16: 90.0}, True),
    ],
)
def test_flat(speeds, is_flat):
    assert flat(speeds) == is_flat


# -- which micro-batches a study tries -----------------------------------------------------------------

INFO = ModelInfo(10**6, 10**6, 50 << 20)


@pytest.fixture
def tried(space):
    """The micro-batches that a study tries on a machine in each stage, in order."""

    def tried(machine, capacity=None, args=(), world=2, **data):
        past = play(Tuning(space(world, args, **data), world, capacity=capacity), machine)
        points = [each.trial.point for each in past if each.trial.phase != "profile"]
        return {stage: [point[MICRO] for point in points if point[STAGE] == stage] for stage in range(4)}

    return tried


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 40), st.integers(0, 3000), st.integers(0, 3000))
def test_the_limit_is_found(tried, least, extra, limit):
    """Where larger ones always help: within a tenth, in a few runs, of which none is below the least."""
    between = {"min_train_micro_batch_size_per_gpu": least, "max_train_micro_batch_size_per_gpu": least + extra}
    machine = Machine(half=1e9, limits=(limit,) * 4)
    sizes = tried(machine, zero_optimization={"stage": 0}, autotuning={**between, "num_tuning_micro_batch_sizes": 1})[0]
    found, real = max((size for size in sizes if size <= limit), default=0), min(limit, least + extra)
    if real < least:
        assert found == 0 and sizes == [least]
    else:
        assert found <= real <= found + max(1, 0.1 * found)
    assert len(sizes) == len(set(sizes)) <= 24 and all(least <= size <= least + extra for size in sizes)


def test_by_doubling_and_then_by_halving(tried):
    sizes = tried(Machine(half=1e9, limits=(21,) * 4), zero_optimization={"stage": 0})[0]
    assert sizes[:9] == [1, 2, 4, 8, 16, 32, 24, 20, 22]


def test_the_sizes_that_make_up_a_train_batch_size(tried):
    """As `train_batch_size` without micro-batches says: larger and larger ones, not all 46 divisors."""
    sizes = tried(Machine(half=20, limits=(100,) * 4), train_batch_size=5040)[0]
    assert all(2520 % size == 0 for size in sizes)
    assert 90 in sizes and len(sizes) <= 12
    assert len([size for size in sizes if size > 100]) <= 2


def test_a_train_batch_size_of_two_primes(tried):
    assert tried(Machine(half=20), train_batch_size=2 * 509)[0] == [1, 509]


def test_limits_of_the_whole_batch_that_few_sizes_keep(tried):
    """1, 2, 5, 10, 25 and 50 samples: nothing between 2 and 5 makes up 100."""
    limits = {"min_train_batch_size": 100, "max_train_batch_size": 100}
    sizes = tried(Machine(half=20), autotuning=limits)[0]
    assert sizes[:2] == [1, 2] and 50 in sizes
    assert all(50 % size == 0 for size in sizes)


def test_where_all_fails_a_stage_is_left_after_the_least(tried):
    """Also where the estimate begins far above: not once for each halving."""
    failing = {f"z{stage}_gas1_tmbspg{micro}": "failed" for stage in (0, 1) for micro in range(1, 1025)}
    machine = Machine(info=INFO, failing=failing)
    sizes = tried(machine, capacity=24 << 30, zero_optimization={"stage": [0, 1]})
    assert [len(sizes[stage]) for stage in (0, 1)] == [2, 1]
    assert sizes[0][-1] == sizes[1][0] == 1


@pytest.mark.parametrize("works", [1, 3, 50, 300, 479])
def test_what_is_too_large_for_another_reason(tried, works):
    """The estimate lets begin where there is too little data: what is found is within a half of what works."""
    failing = {f"z0_gas1_tmbspg{micro}": "no metric" for micro in range(works + 1, 1025)}
    sizes = tried(Machine(half=2000, info=INFO, failing=failing), capacity=24 << 30, zero_optimization={"stage": 0})[0]
    assert max(size for size in sizes if size <= works) >= works / 2
    assert len(sizes) <= 14 and len(sizes) == len(set(sizes))


ROOM = 40 << 30
STATES = (16e9, 9e9, 5.5e9, 2e9)
"""Bytes of the states of a billion parameters in half precision on eight ranks, by stage."""


@pytest.mark.parametrize("usable", [0.85, 0.9, 0.97])
@pytest.mark.parametrize("more", [1.0, 1.1, 1.2])
def test_an_estimate_that_is_too_hopeful_costs_few_runs(tried, usable, more):
    """Not all memory can be used, and activations are more than estimated. One run in each stage has to break, to
    know the limit; the limits of all lie within a tenth of what is found."""
    sample = 200 << 20
    limits = tuple(int((ROOM * usable - states) / sample / more) for states in STATES)
    machine = Machine(half=200, tolls=(0, 0.01, 0.02, 0.03), limits=limits, info=ModelInfo(10**9, 10**9, sample))
    zero = {"stage": "all"}
    sizes = tried(machine, capacity=ROOM, world=8, fp16={"enabled": True}, zero_optimization=zero)
    broken = {stage: [size for size in sizes[stage] if size > limits[stage]] for stage in range(4)}
    assert sum(map(len, broken.values())) <= 8
    assert sum(map(len, sizes.values())) <= 22
    for stage in range(4):
        assert max(size for size in sizes[stage] if size <= limits[stage]) >= limits[stage] / 1.12


def test_where_memory_is_no_limit_the_next_stage_does_not_look_for_one(tried):
    """The first stage has shown from where on more brings nothing: two runs show the same of the next."""
    machine = Machine(half=10, tolls=(0, 0.02, 0.04, 0.06), limits=(290, 320, 340, 350), info=ModelInfo(10**9))
    sizes = tried(machine, capacity=200 << 30, zero_optimization={"stage": [0, 1]}, fp16={"enabled": True})
    assert all(size <= 290 for stage in (0, 1) for size in sizes[stage])
    assert len(sizes[1]) <= 4


LIMITED = st.sampled_from([
    {"train_batch_size": 5040},
    {"train_batch_size": 48, "gradient_accumulation_steps": [1, 2, 3]},
    {"autotuning": {"min_train_batch_size": 100, "max_train_batch_size": 100}},
    {"autotuning": {"min_train_batch_size": 90, "max_train_batch_size": 100}},
    {"autotuning": {"min_train_micro_batch_size_per_gpu": 3, "max_train_micro_batch_size_per_gpu": 70}},
])  # fmt: skip
UNEVEN = st.builds(
    Machine,
    half=st.floats(0.5, 100),
    limits=st.tuples(*(st.integers(0, 300) for _ in range(4))),
    info=st.sampled_from([None, INFO]),
    failing=st.dictionaries(
        st.builds("z{}_gas1_tmbspg{}".format, st.integers(0, 1), st.integers(1, 50)),
        st.sampled_from(["failed", "no metric"]),
        max_size=5,
    ),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(LIMITED, UNEVEN, st.floats(0, 1), st.sampled_from([None, 24 << 30]))
def test_an_interrupted_study_within_limits_goes_on_as_it_would_have(space, data, machine, part, capacity):
    made = space(zero_optimization={"stage": [0, 1]}, **data)
    whole = play(Tuning(made, 2, capacity=capacity), machine)
    cut = int(part * len(whole))
    rest = play(Tuning(made, 2, capacity=capacity, earlier=whole[:cut]), machine)
    assert names(rest) == names(whole[cut:])
    assert len(set(names(whole))) == len(whole)
    assert all(not made.impossible(each.trial.point) for each in whole if each.trial.phase != "profile")
