"""From a configuration to its points, and from each point back to a configuration."""

from __future__ import annotations

import copy
import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.errors import BadInputError
from bireme.tune.deepspeed.space import name_of
from bireme.tune.space.points import Parameter, Space, Union, key_of
from tests.unit.tune.samplers.searching import Search

MICRO = "train_micro_batch_size_per_gpu"
GAS = "gradient_accumulation_steps"


def whole(tuning, found=None) -> Union:
    """All points: with the micro-batches that are listed, or with those found in each stage."""
    sizes = dict.fromkeys(tuning.stages, tuning.micro) if found is None else found
    return Union(tuple(tuning.part(stage, sizes[stage]) for stage in tuning.stages if sizes.get(stage)))


def names(tuning) -> list[str]:
    return [tuning.name(point) for point in whole(tuning).points()]


# -- stages ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("zero", "stages"),
    [
        (None, (0,)),
        ({}, (0,)),
        ({"stage": 2}, (2,)),
        ({"stage": [2, 0]}, (2, 0)),
        ({"stage": "all"}, (0, 1, 2, 3)),
        ({"stage": [1, "all"]}, (0, 1, 2, 3)),
    ],
)
def test_stages(space, zero, stages):
    assert space(**({} if zero is None else {"zero_optimization": zero})).stages == stages


@pytest.mark.parametrize("stage", [4, -1, "1", True, [0, 4], [], [1, 1], None, 1.0, "auto", {}])
def test_stages_that_there_are_not(space, stage):
    with pytest.raises(BadInputError, match="stage") as caught:
        space(train_batch_size=8, zero_optimization={"stage": stage})
    assert caught.value.where.endswith("ds_config.json:4")


def test_zero_is_no_object(space):
    with pytest.raises(BadInputError, match="must be an object"):
        space(zero_optimization=[1])


# -- micro-batches -----------------------------------------------------------------------------------


def test_the_twelve_of_the_contract(space):
    """Every step takes as many samples, whatever the micro-batch, as DeepSpeed has it."""
    tuning = space(train_micro_batch_size_per_gpu=[4, 8, 16, 32], zero_optimization={"stage": [0, 1, 2]})
    expected = [
        f"z{stage}_gas{32 // micro}_tmbspg{micro}" for stage, micro in itertools.product((0, 1, 2), (4, 8, 16, 32))
    ]
    assert names(tuning) == expected
    for point in whole(tuning).points():
        assert tuning.ds_config(point)["train_batch_size"] == 64


def test_a_number_is_fixed(space):
    assert names(space(train_micro_batch_size_per_gpu=3, zero_optimization={"stage": 1})) == ["z1_gas1_tmbspg3"]


@pytest.mark.parametrize("given", [{}, {MICRO: "auto"}])
def test_to_be_found(space, given):
    tuning = space(**given, gradient_accumulation_steps=2, zero_optimization={"stage": [0, 1]})
    assert tuning.micro is None
    assert (tuning.batch.least, tuning.batch.most) == (1, 1024)
    assert whole(tuning).size == 0
    found = whole(tuning, {0: (5,), 1: (6, 7)})
    assert [tuning.name(point) for point in found.points()] == ["z0_gas2_tmbspg5", "z1_gas2_tmbspg6", "z1_gas2_tmbspg7"]


def test_auto_is_looked_up_in_the_arguments(space):
    mappings = {MICRO: "--batch", GAS: "--accumulate"}
    args = ("--batch=6", "--accumulate", "4")
    batch = space(args=args, autotuning={"arg_mappings": mappings}, **{MICRO: "auto", GAS: "auto"}).batch
    assert (batch.start, batch.steps, batch.micro) == (6, 4, None)


def test_limits(space):
    tuning = space(
        autotuning={"max_train_batch_size": 100, "mp_size": 2, "min_train_micro_batch_size_per_gpu": 2}, world=8
    )
    assert (tuning.batch.least, tuning.batch.most) == (2, 25)
    point = next(tuning.part(0, (10,)).points())
    config = tuning.ds_config(point)
    assert (config[MICRO], config[GAS], config["train_batch_size"]) == (10, 2, 80)


@pytest.mark.parametrize(("world", "mp_size"), [(1, 1), (2, 1), (4, 1), (6, 1), (2, 2), (4, 2), (6, 2)])
@pytest.mark.parametrize(
    "given",
    [
        {MICRO: [1, 2, 3, 8]},
        {MICRO: [1, 2, 3], GAS: 5},
        {MICRO: [1, 2], GAS: [1, 3]},
        {"train_batch_size": 48},
        {"train_batch_size": 48, MICRO: [1, 2, 5, 8]},
        {"train_batch_size": 48, GAS: 2},
        {"train_batch_size": 48, GAS: [1, 2]},
        {MICRO: [1, 2, 3, 8], "autotuning": {"max_train_batch_size": 40}},
    ],
)
def test_the_identity_of_batch_sizes(space, world, mp_size, given):
    section = {**given.get("autotuning", {}), "mp_size": mp_size}
    tuning = space(world=world, **{**given, "autotuning": section})
    found = None if tuning.micro else dict.fromkeys(tuning.stages, range(tuning.batch.least, tuning.batch.most + 1))
    points = [point for point in whole(tuning, found).points() if not tuning.impossible(point)]
    assert points
    for point in points:
        config = tuning.ds_config(point)
        assert config["train_batch_size"] == config[MICRO] * config[GAS] * world // mp_size
        assert config["train_batch_size"] == given.get("train_batch_size", config["train_batch_size"])
        assert config["train_batch_size"] <= section.get("max_train_batch_size", 10**9)


def test_what_the_identity_forbids_is_not_tried(space):
    tuning = space(train_batch_size=16, train_micro_batch_size_per_gpu=[2, 4, 3], gradient_accumulation_steps=[2, 4])
    search = Search("gridsearch", whole(tuning), excluded=lambda point: bool(tuning.impossible(point)))
    tried = []
    while (point := search.ask()) is not None:
        tried.append((point[MICRO], point[GAS]))
    assert sorted(tried) == [(2, 4), (4, 2)]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({MICRO: 0}, "a positive integer"),
        ({MICRO: "4"}, "a positive integer"),
        ({MICRO: True}, "a positive integer"),
        ({MICRO: [4, "auto"]}, "a positive integer"),
        ({MICRO: []}, "empty list"),
        ({MICRO: [4, 4]}, "twice"),
        ({GAS: 1.5}, "a positive integer"),
        ({"train_batch_size": [8, 16]}, "cannot be a list"),
        ({"train_batch_size": 7}, "7 cannot be divided among 2 ranks"),
        ({"train_batch_size": 8, MICRO: 3}, "micro-batch 3 on 2 ranks cannot make up train_batch_size 8"),
        ({"train_batch_size": 8, MICRO: 4, GAS: 2}, "cannot make up"),
        ({"autotuning": {"mp_size": 3}}, "2 ranks are not divisible by mp_size 3"),
        ({"autotuning": {"mp_size": 4}}, "2 ranks are not divisible by mp_size 4"),
        ({"autotuning": {"max_train_batch_size": 1}}, "no micro-batch is possible"),
        ({MICRO: [64], "autotuning": {"max_train_batch_size": 32}}, "above max_train_batch_size 32"),
        ({MICRO: 1, "autotuning": {"min_train_batch_size": 4}}, "below min_train_batch_size 4"),
        ({"autotuning": {"min_train_batch_size": 100000}}, "gives train_batch_size 2048, below min_train_batch_size"),
        (
            {GAS: 2, "autotuning": {"min_train_batch_size": 300, "max_train_micro_batch_size_per_gpu": 16}},
            "micro-batch 16 on 2 ranks gives train_batch_size 64, below min_train_batch_size 300",
        ),
        (
            {GAS: [3, 4], "autotuning": {"max_train_batch_size": 5}},
            "micro-batch 1 on 2 ranks gives train_batch_size 6, above max_train_batch_size 5",
        ),
        (
            {"autotuning": {"min_train_batch_size": 5, "max_train_batch_size": 5}},
            "on 2 ranks gives train_batch_size 4, below min_train_batch_size 5",
        ),
    ],
)
def test_impossible(space, given, said):
    with pytest.raises(BadInputError, match=said) as caught:
        space(**given)
    assert "ds_config.json" in caught.value.where
    assert len(str(caught.value).splitlines()) <= 2


@pytest.mark.parametrize(
    ("given", "micro", "gas", "dropped"),
    [
        (
            {"train_batch_size": 64, MICRO: [4, 6, 8]},
            (4, 8),
            (),
            ("micro-batch 6 on 2 ranks cannot make up train_batch_size 64",),
        ),
        (
            {MICRO: [4, 8], GAS: [1, 4, 9], "autotuning": {"max_train_batch_size": 40}},
            (4, 8),
            (1, 4),
            ("gradient_accumulation_steps 9: micro-batch 4 on 2 ranks gives train_batch_size 72",),
        ),
        ({GAS: [1, 2], "autotuning": {"min_train_batch_size": 4096}}, None, (2,), ("gradient_accumulation_steps 1: ",)),
        ({MICRO: [4, 8]}, (4, 8), (), ()),
    ],
)
def test_what_is_listed_and_cannot_be_is_said(space, given, micro, gas, dropped):
    batch = space(**given).batch
    assert (batch.micro, batch.gas) == (micro, gas)
    assert len(batch.dropped) == len(dropped)
    assert all(reason.startswith(start) for reason, start in zip(batch.dropped, dropped, strict=True))


# -- other choices -----------------------------------------------------------------------------------


def test_lists_are_choices(space):
    tuning = space(
        train_micro_batch_size_per_gpu=2,
        fp16={"enabled": [True, False]},
        zero_optimization={"stage": [1, 3], "overlap_comm": [True, False], "stage3_max_live_parameters": [1, 2]},
        gradient_clipping=[0.5],
    )
    assert whole(tuning).size == 2 * 2 + 2 * 2 * 2
    assert len(set(names(tuning))) == 12
    configs = [tuning.ds_config(point) for point in whole(tuning).points()]
    assert len({key_of(config) for config in configs}) == 12
    assert all(config["gradient_clipping"] == 0.5 for config in configs)
    assert not any("stage3_max_live_parameters" in config["zero_optimization"] for config in configs[:4])


def test_lists_that_are_no_choices(space):
    optimizer = {"type": "Adam", "params": {"betas": [0.9, 0.999]}}
    tuning = space(train_micro_batch_size_per_gpu=2, optimizer=optimizer, comms_logger={"prof_ops": ["all_reduce"]})
    assert whole(tuning).size == 1
    assert tuning.ds_config(whole(tuning).point(0))["optimizer"] == optimizer


LEAVES = ["Block", "Expert"]
SPECS = [{"patterns": ["q", "k"], "partition_type": "row"}, {"patterns": ["v"], "shape": [[2, 1], -1]}]


@pytest.mark.parametrize(
    "given",
    [
        {"torch_autocast": {"enabled": True, "lower_precision_safe_modules": ["torch.nn.Linear", "torch.nn.Conv1d"]}},
        {"zero_optimization": {"stage": 3, "leaf_module": {"classes": LEAVES, "names": [], "name_suffixes": LEAVES}}},
        {"tensor_parallel": {"partition_config": {"layer_specs": SPECS, "lm_head_patterns": LEAVES}}},
        {"tensor_parallel": {"injection_policy_tuple": LEAVES}},
        {"compile": {"deepcompile": True, "passes": ["z3", "autosp"]}},
    ],
)
def test_lists_that_the_engine_wants_as_they_are(space, given):
    tuning = space(train_micro_batch_size_per_gpu=2, **given)
    assert whole(tuning).size == 1
    config = tuning.ds_config(whole(tuning).point(0))
    assert {key: config[key] for key in given} == given


def test_lists_of_lists_are_choices_there_too(space):
    tuning = space(
        train_micro_batch_size_per_gpu=2,
        zero_optimization={"stage": 3, "leaf_module": {"classes": [LEAVES, LEAVES[:1]]}},
    )
    configs = [tuning.ds_config(point) for point in whole(tuning).points()]
    assert [config["zero_optimization"]["leaf_module"]["classes"] for config in configs] == [LEAVES, LEAVES[:1]]
    assert len(set(names(tuning))) == 2


@pytest.mark.parametrize(("values", "said"), [([], "no choices"), ([1, 1], "1 is listed twice")])
def test_choices_that_are_none(space, values, said):
    with pytest.raises(BadInputError, match=said) as caught:
        space(gradient_clipping=values)
    assert caught.value.where.endswith("ds_config.json:2")


def test_auto_is_left_to_the_script(space):
    tuning = space(train_micro_batch_size_per_gpu=2, gradient_clipping="auto", zero_optimization={"stage": 1})
    assert tuning.ds_config(whole(tuning).point(0))["gradient_clipping"] == "auto"


@pytest.mark.parametrize(("stage", "size"), [(0, 1), (1, 9), (2, 72), (3, 144)])
def test_default_spaces_when_fast_is_false(space, stage, size):
    """DeepSpeed raises KeyError."""
    tuning = space(train_micro_batch_size_per_gpu=2, zero_optimization={"stage": stage}, autotuning={"fast": False})
    assert whole(tuning).size == size
    assert len(set(names(tuning))) == size
    assert tuning.part(stage, (1, 2), fast=True).size == 2
    fast = space(train_micro_batch_size_per_gpu=2, zero_optimization={"stage": stage}, autotuning={"fast": True})
    assert whole(fast).size == 1


def test_what_the_user_says_takes_the_place_of_the_default_space(space):
    zero = {"stage": 1, "reduce_bucket_size": 1000, "allgather_bucket_size": [1, 2]}
    tuning = space(train_micro_batch_size_per_gpu=2, zero_optimization=zero, autotuning={"fast": False})
    sizes = [tuning.ds_config(point)["zero_optimization"] for point in whole(tuning).points()]
    assert [(zero["reduce_bucket_size"], zero["allgather_bucket_size"]) for zero in sizes] == [(1000, 1), (1000, 2)]


def test_offload_as_a_parameter(space):
    tuning = space(
        train_micro_batch_size_per_gpu=2,
        zero_optimization={
            "stage": "all",
            "offload_optimizer": [None, {"device": "cpu"}],
            "offload_param": {"device": ["none", "cpu"]},
        },
    )
    sizes = {stage: tuning.part(stage, (2,)).size for stage in tuning.stages}
    assert sizes == {0: 1, 1: 2, 2: 2, 3: 4}
    zeros = [tuning.ds_config(point)["zero_optimization"] for point in whole(tuning).points()]
    assert zeros[:3] == [{"stage": 0}, {"stage": 1}, {"stage": 1, "offload_optimizer": {"device": "cpu"}}]
    assert zeros[-1] == {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}
    assert len(set(names(tuning))) == 9


# -- configurations ----------------------------------------------------------------------------------


def test_the_users_configuration_stays_as_it_is(config, space):
    tuning = space(
        train_micro_batch_size_per_gpu=2, zero_optimization={"stage": 3, "offload_param": [{"device": "cpu"}]}
    )
    before = copy.deepcopy(tuning.config.data)
    one = tuning.ds_config(whole(tuning).point(0))
    one["zero_optimization"]["offload_param"]["device"] = "nvme"
    assert tuning.config.data == before
    assert tuning.ds_config(whole(tuning).point(0))["zero_optimization"]["offload_param"] == {"device": "cpu"}


def test_the_section_that_the_engine_reads(space):
    tuning = space(
        train_micro_batch_size_per_gpu=2,
        autotuning={"enabled": False, "start_profile_step": 4, "end_profile_step": 9, "results_dir": "r"},
    )
    point = whole(tuning).point(0)
    assert tuning.ds_config(point, metric_path="/r/metrics.json")["autotuning"] == {
        "enabled": True, "start_profile_step": 4, "end_profile_step": 9, "metric_path": "/r/metrics.json"
    }  # fmt: skip


def test_the_real_job_has_no_such_section(space):
    """With it the engine ends after a few steps, as DeepSpeed's real job does."""
    tuning = space(train_micro_batch_size_per_gpu=2, autotuning={"enabled": True})
    assert "autotuning" not in tuning.ds_config(whole(tuning).point(0))


def test_profile(space):
    tuning = space(
        train_micro_batch_size_per_gpu=[4, 8],
        fp16={"enabled": [True, False]},
        zero_optimization={"stage": [0, 3], "overlap_comm": [True, False]},
    )
    assert tuning.profile_config("/r/model_info.json") == {
        MICRO: 1,
        GAS: 1,
        "train_batch_size": 2,
        "fp16": {"enabled": True},
        "zero_optimization": {"stage": 3, "overlap_comm": True},
        "memory_breakdown": False,
        "autotuning": {"enabled": True, "model_info_path": "/r/model_info.json", "model_info": {"profile": True}},
    }


# -- names -------------------------------------------------------------------------------------------


def test_names_differ_and_fit_a_file(space):
    tuning = space(
        train_micro_batch_size_per_gpu=[1, 11, 111],
        zero_optimization={
            "stage": 2,
            "reduce_scatter": [True, False],
            "round_robin_gradients": [True, False],
            "reduce_bucket_size": [500000000, 500000001, 5e8 + 0.5],
        },
        fp16={"loss_scale": [0, 1], "loss_scale_window": [1, 2], "long": ["a/b", "a b", "c" * 300]},
        bf16={"loss_scale": [0, 1]},
    )
    found = names(tuning)
    assert len(set(found)) == len(found) == whole(tuning).size
    assert all(re.fullmatch(r"z2_gas\d+_tmbspg\d+_[A-Za-z0-9_.+-]+", name) and len(name) < 200 for name in found)


def test_names_are_short_where_they_can_be(space):
    zero = {"stage": 2, "overlap_comm": [True, False], "reduce_bucket_size": [500000000, 1000]}
    tuning = space(train_micro_batch_size_per_gpu=3, zero_optimization=zero)
    assert names(tuning)[0] == "z2_gas1_tmbspg3_ocT_rbs5e+08"


WORDS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-9, 9),
    st.floats(-9, 9, allow_nan=False),
    st.sampled_from(["T", "F", "1", "1.5", "cpu", "5e+08", "a b"]),
    st.sampled_from([{"device": "cpu"}, {"device": "none"}, {"x": 1}]),
)


@given(st.lists(WORDS, min_size=2, max_size=6), st.lists(WORDS, min_size=2, max_size=6))
def test_names_differ_whatever_the_choices(first, second):
    """Two experiments of one name would be one folder, in which the later run destroys the figures of the earlier."""
    parameters = (Parameter("one.b", tuple(first)), Parameter("other.b", tuple(second)))
    try:
        for parameter in parameters:
            parameter.check()
    except BadInputError:
        return
    choices = {each.name: each.choices for each in parameters}
    found = {name_of(0, 1, 1, point, choices) for point in Space(parameters).points()}
    assert len(found) == Space(parameters).size


def test_offloading_can_be_read_in_a_name(space):
    zero = {"stage": 1, "offload_optimizer": [{"device": "cpu"}, {"device": "none"}]}
    tuning = space(train_micro_batch_size_per_gpu=3, zero_optimization=zero)
    assert names(tuning) == ["z1_gas1_tmbspg3_oocpu", "z1_gas1_tmbspg3_oonone"]
