"""The search for micro-batches, when not only memory limits them."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bireme.tune.deepspeed.results import ModelInfo
from tests.tune.deepspeed.machine import MICRO, STAGE, Machine, Tuning, names, play

INFO = ModelInfo(10**6, 10**6, 50 << 20)


@pytest.fixture
def tried(space):
    """The micro-batches that a study tries on a machine in each stage, in order."""

    def tried(machine, capacity=None, args=(), world=2, **data):
        past = play(Tuning(space(world, args, **data), world, capacity=capacity), machine)
        points = [each.trial.point for each in past if each.trial.phase != "profile"]
        return {stage: [point[MICRO] for point in points if point[STAGE] == stage] for stage in range(4)}

    return tried


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
