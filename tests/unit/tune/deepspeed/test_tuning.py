"""Which configuration runs next, and when a study is over."""

from __future__ import annotations

import json
import random
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bireme.tune.deepspeed.results import PROFILE, ModelInfo
from bireme.tune.deepspeed.stages import without_improvement
from bireme.tune.study.trial import FinishedTrial, TrialResult
from tests.unit.tune.deepspeed.machine import MICRO, STAGE, Machine, Tuning, names, play, play_in_parallel

LIST = [4, 8, 16, 32]
TWELVE = {MICRO: LIST, "zero_optimization": {"stage": [0, 1, 2]}}
FOUND = {"zero_optimization": {"stage": [0, 1, 2]}}
KINDS = ("gridsearch", "random", "model_based")
INFO = ModelInfo(10**9, 10**9, 200 << 20)


@pytest.fixture
def tuning(space):
    """The decisions on a configuration, for two ranks."""

    def tuning(earlier=(), capacity=None, world=2, args=(), **data):
        return Tuning(space(world, args, **data), world, capacity=capacity, earlier=earlier)

    return tuning


# -- given micro-batches -----------------------------------------------------------------------------


@pytest.mark.parametrize("micro", [{MICRO: LIST}, {}])
def test_a_grid_of_very_many_is_announced(tuning, micro):
    many = {f"extra{number}": [*range(10)] for number in range(3)}  # 1000 for each stage and micro-batch
    data = {**micro, "zero_optimization": {"stage": [0, 1, 2, 3]}}
    said = "warning: gridsearch will try up to 1[26],000 configurations; "
    assert re.match(said, tuning(**data, **many).stages.warning)
    assert tuning(**data, **{**many, "extra0": [*range(5)]}).stages.warning == ""
    for bounded in ({"tuner_type": "random"}, {"tuner_num_trials": 9}):
        assert tuning(**data, **many, autotuning=bounded).stages.warning == ""


def test_a_grid_measures_the_twelve(tuning):
    """With a section that names no bound, although the best comes early: as DeepSpeed with lists."""
    study = tuning(**TWELVE, autotuning={"enabled": True})
    past = play(study, Machine(half=0.01))
    assert names(past) == [f"z{stage}_gas{32 // micro}_tmbspg{micro}" for stage in (0, 1, 2) for micro in LIST]
    assert study.over == "every configuration was measured"
    assert len(study.completed) == 12 and study.left == 0


@pytest.mark.parametrize(
    ("section", "runs", "over"),
    [
        ({"tuner_num_trials": 5}, 5, "tuner_num_trials"),
        ({"tuner_early_stopping": 3}, 4 + 3, "tuner_early_stopping"),
        ({"tuner_early_stopping": None}, 12, "every"),
        ({"tuner_type": "random", "tuner_num_trials": 3}, 3, "tuner_num_trials"),
        ({"tuner_type": "model_based", "tuner_num_trials": 3}, 3, "tuner_num_trials"),
        ({"tuner_type": "model_based", "tuner_early_stopping": None}, 12, "every"),
    ],
)
def test_a_bound_that_is_named_counts(tuning, section, runs, over):
    study = tuning(**TWELVE, autotuning=section)
    assert len(play(study, Machine())) == runs
    assert over in study.over


def test_random_is_patient_as_the_section_says(tuning):
    study = tuning(**TWELVE, autotuning={"tuner_type": "random"})
    play(study, Machine())
    values = [row.values for row in study.completed]
    assert "tuner_early_stopping" in study.over or len(values) == 12
    assert len(values) - values.index(max(values)) - 1 <= 5


def test_what_runs_out_of_memory_rules_out_what_is_larger(tuning):
    study = tuning(**TWELVE)
    past = play(study, Machine(limits=(4, 8, 16)))
    broken = [name for name, each in zip(names(past), past, strict=True) if each.result.cause == "out of memory"]
    assert broken == ["z0_gas4_tmbspg8", "z1_gas2_tmbspg16", "z2_gas1_tmbspg32"]
    assert len(past) == 9
    assert study.skipped[0] == "stage 0: micro-batches of 8 and more run out of memory"


def test_a_larger_micro_batch_than_one_that_ran_out_of_memory_is_not_tried(tuning):
    """Also where another choice than the first ran out of memory, which says nothing of the first."""
    zero = {"stage": 1, "overlap_comm": [False, True]}
    study = tuning(**{MICRO: LIST}, zero_optimization=zero)
    while (trial := study.ask()) is not None:
        short = trial.point["zero_optimization.overlap_comm"] and trial.point[MICRO] >= 8
        study.tell(trial.name, TrialResult("out of memory") if short else Machine().run(trial)[0])
    tried = [(each.trial.point["zero_optimization.overlap_comm"], each.trial.point[MICRO]) for each in study.completed]
    assert [micro for overlap, micro in tried if overlap] == [4, 8]
    assert [micro for overlap, micro in tried if not overlap] == LIST


def test_another_accumulation_needs_no_less_memory(tuning):
    study = tuning(**{MICRO: [8]}, gradient_accumulation_steps=[1, 2, 4])
    assert len(play(study, Machine(limits=(4,) * 4))) == 1


def test_out_of_memory_in_a_stage_tells_of_one_that_needs_more(tuning):
    """Where states are known, as by `model_info`: stage 0 of a large model takes more than stage 2."""
    zero = {"stage": [2, 0], "reduce_bucket_size": 10**6, "allgather_bucket_size": 10**6}
    section = {"model_info": {"num_params": 10**9}}
    study = tuning(**{MICRO: LIST}, zero_optimization=zero, autotuning=section, capacity=80 << 30)
    past = play(study, Machine(limits=(8, 8, 8, 8)))
    tried = [(each.trial.point[STAGE], each.trial.point[MICRO]) for each in past]
    assert tried == [(2, 4), (2, 8), (2, 16), (0, 4), (0, 8)]


def test_a_stage_that_cannot_fit_is_not_run(tuning):
    section = {"model_info": {"num_params": 10**9}}
    study = tuning(**{MICRO: LIST}, zero_optimization={"stage": [0, 3]}, autotuning=section, capacity=10 << 30, world=8)
    assert {each.trial.point[STAGE] for each in play(study, Machine())} == {3}
    assert study.skipped == ("stage 0: needs 14.9 GiB for the model's states alone, but a GPU has 10.0 GiB",)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("data", [TWELVE, FOUND])
def test_everything_out_of_memory(tuning, data, kind):
    """DeepSpeed crashes (its issue 3475)."""
    study = tuning(**data, autotuning={"tuner_type": kind})
    play(study, Machine(limits=(0,) * 4, info=INFO))
    assert len(study.completed) == 3 if kind == "gridsearch" or data is FOUND else len(study.completed) < 9
    assert study.over == "no configuration fits in memory"
    assert study.best is None


def test_nothing_works(tuning):
    study = tuning(**TWELVE)
    while (trial := study.ask()) is not None:
        study.tell(trial.name, TrialResult("failed", "RuntimeError: no"))
    assert study.over == "no configuration worked" and len(study.completed) == 12


def test_less_latency_is_better(tuning):
    """That of a step, in which there are as many samples in each of them."""
    study = tuning(**TWELVE, autotuning={"metric": "latency"})
    play(study, Machine())
    assert study.best.trial.name == "z0_gas1_tmbspg32"
    assert study.best.values == min(row.values for row in study.completed)


def test_no_metric(tuning):
    """A run that ends well without a figure is no winner where less is better, and no failure."""
    study = tuning(**TWELVE, autotuning={"metric": "latency"})
    row = study.tell(study.ask().name, TrialResult("ok", metrics={"latency": 0.0, "throughput": 9.0}))
    assert (row.result.cause, row.values) == ("no metric", None)
    assert "'latency'" in row.result.reason
    assert study.best is None


def test_a_drop_is_asked_for_again_and_what_is_given_up_is_not(tuning):
    study = tuning(**TWELVE)
    first, second = study.ask(), study.ask()
    study.drop(first.name)
    assert study.ask().name == first.name
    study.give_up(second.name)
    study.tell(first.name, *Machine().run(first))
    rest = names(play(study, Machine()))
    assert len(rest) == 10 and second.name not in rest
    assert study.over == "" and study.given_up == (second.name,)  # it can be taken up again


# -- a model -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_model_finds_the_same_winner_in_two_thirds_of_the_runs(tuning):
    """On plausible machines, whose measurements differ by 3 %: as fast as what a grid finds, but for noise."""
    luck, runs = random.Random(1), []
    for seed in range(12):
        tolls = tuple(luck.uniform(0, 0.5) for _ in range(4))
        machine = Machine(10 ** luck.uniform(-0.3, 1.5), tolls, noise=0.03, seed=seed)
        study, grid = tuning(**TWELVE, autotuning={"tuner_type": "model_based"}), tuning(**TWELVE)
        runs.append(len(play(study, machine)))
        play(grid, machine)
        assert machine.speed(study.best.trial) > machine.speed(grid.best.trial) * 0.94
    assert sum(runs) / len(runs) <= 8
    assert sum(count > 8 for count in runs) <= 2


# -- going on where it was ---------------------------------------------------------------------------

DATA = st.sampled_from([
    TWELVE,
    FOUND,
    {**FOUND, "autotuning": {"metric": "latency"}},
    {**FOUND, "autotuning": {"num_tuning_micro_batch_sizes": 6}},
    {**FOUND, "autotuning": {"fast": False}},
    {**TWELVE, "autotuning": {"fast": False, "tuner_type": "random"}},
    {**TWELVE, "autotuning": {"tuner_type": "random"}},
    {**FOUND, "autotuning": {"tuner_type": "random", "tuner_num_trials": 4}},
    {**FOUND, "autotuning": {"fast": False, "tuner_num_trials": 12}},
    {"zero_optimization": {"stage": [1, 2], "offload_optimizer": [{"device": "none"}, {"device": "cpu"}]}},
    {"zero_optimization": {"stage": [1, 2], "overlap_comm": [False, True]}},
])  # fmt: skip

MACHINES = st.builds(
    Machine,
    half=st.floats(0.5, 100),
    tolls=st.tuples(*(st.floats(0, 0.5) for _ in range(4))),
    limits=st.tuples(*(st.integers(0, 300) for _ in range(4))) | st.just((10**9,) * 4),
    noise=st.sampled_from([0.0, 0.03]),
    seed=st.integers(0, 1000),
    info=st.sampled_from([None, INFO]),
    failing=st.dictionaries(
        st.sampled_from([PROFILE, "z0_gas1_tmbspg1", "z0_gas1_tmbspg8", "z1_gas1_tmbspg16"]),
        st.sampled_from(["failed", "out of memory", "timed out", "no metric"]),
        max_size=2,
    ),
)

thorough = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def read(past: list[FinishedTrial]) -> list[FinishedTrial]:
    """As the journal gives it back."""
    points = [json.loads(json.dumps(each.trial.point)) for each in past]
    return [each.replace(trial=each.trial.replace(point=point)) for each, point in zip(past, points, strict=True)]


@thorough
@given(DATA, MACHINES, st.floats(0, 1), st.sampled_from([None, 24 << 30]))
def test_an_interrupted_study_goes_on_as_it_would_have(tuning, data, machine, part, capacity):
    undisturbed = tuning(**data, capacity=capacity)
    whole = play(undisturbed, machine)
    cut = int(part * len(whole))
    interrupted = tuning(**data, capacity=capacity)
    told = play(interrupted, machine, cut)
    interrupted.ask()  # one was running, and came to nothing
    resumed = tuning(**data, capacity=capacity, earlier=read(told))
    assert names(told) + names(play(resumed, machine)) == names(whole)
    assert resumed.over == undisturbed.over
    assert resumed.skipped == undisturbed.skipped
    assert (resumed.best and resumed.best.trial.name) == (undisturbed.best and undisturbed.best.trial.name)


@pytest.mark.slow
@pytest.mark.parametrize("cut", [1, 3, 5, 6])
def test_so_does_a_model(tuning, cut):
    data = {**TWELVE, "autotuning": {"tuner_type": "model_based"}}
    machine = Machine(noise=0.03)
    whole = play(tuning(**data), machine)
    assert names(whole[:cut] + play(tuning(**data, earlier=read(whole[:cut])), machine)) == names(whole)


@pytest.mark.parametrize("part", [0.3, 0.6, 1.0])
@pytest.mark.parametrize("stage", [[1], [0, 1, 2], "all"])
def test_what_failed_is_forgotten_when_the_script_was_mended(tuning, part, stage):
    """It is run again, and nothing else is: the study ends as if it had never failed."""
    data = {"zero_optimization": {"stage": stage}}
    mended = Machine(limits=(40, 90, 100, 300), info=ModelInfo(1000, 1000, 1000))
    best = play(tuning(**data), mended)
    failing = {each.trial.name: "failed" for each in best[2::3]}
    whole = play(tuning(**data), mended.replace(failing=failing))
    kept = [each for each in whole[: round(len(whole) * part)] if each.result.cause != "failed"]
    resumed = tuning(**data, earlier=kept)
    then = play(resumed, mended)
    assert resumed.over and not set(names(then)) & set(names(kept))
    assert not {row.result.cause for row in resumed.completed} & {"failed"}
    undisturbed = tuning(**data, earlier=best).best
    assert resumed.best.values[0] >= undisturbed.values[0] * 0.95


@thorough
@given(DATA, MACHINES, st.integers(2, 6), st.integers(0, 10**6), st.sampled_from([0.0, 0.2]))
def test_side_by_side_in_any_order(tuning, data, machine, slots, seed, faults):
    """No name twice, no end before everything has ended, and an end in any case."""
    study = tuning(**data)
    rows = play_in_parallel(study, machine, slots, seed, faults)
    assert bool(study.over) == (not study.given_up)
    if data is TWELVE and not study.given_up:
        alone = tuning(**data)
        play(alone, machine)
        assert {row.trial.name for row in rows if row.values} == {
            row.trial.name for row in alone.completed if row.values
        }


# -- micro-batches to be found -----------------------------------------------------------------------


def test_profiled_first_and_only_where_it_is_not_known(tuning):
    assert play(tuning(**FOUND), Machine(info=INFO))[0].trial.name == PROFILE
    known = tuning(**FOUND, autotuning={"model_info": {"num_params": 10**6}})
    assert PROFILE not in names(play(known, Machine(info=INFO)))
    assert PROFILE not in names(play(tuning(**TWELVE), Machine(info=INFO)))
    study = tuning(**FOUND)
    assert study.ask().name == PROFILE and study.ask() is None


def test_on_without_a_profile(tuning):
    study = tuning(**FOUND)
    play(study, Machine())
    assert study.best is not None
    assert (
        study.skipped[0] == "profile_model_info: RuntimeError: no; the memory that each stage needs was not estimated"
    )


def test_a_profile_that_runs_out_of_memory_is_knowledge(tuning):
    """One sample, in the highest stage: that stage is not tried."""
    study = tuning(**FOUND)
    past = play(study, Machine(failing={PROFILE: "out of memory"}, limits=(0, 0, 0, 0)))
    assert names(past) == [PROFILE, "z0_gas1_tmbspg1", "z1_gas1_tmbspg1"]
    assert "stage 2: micro-batches of 1 and more run out of memory" in study.skipped


def test_without_a_wall_it_climbs_while_that_brings_something(tuning):
    study = tuning(**FOUND)
    past = play(study, Machine())
    tried = [each.trial.point[MICRO] for each in past[1:] if each.trial.point[STAGE] == 0]
    assert tried[:9] == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert "stage 0: micro-batches above 256 no longer help" in study.skipped
    later = [each.trial.point[MICRO] for each in past[1:] if each.trial.point[STAGE] == 1]
    assert later[:2] == [128, 256] and len(later) <= 3


def test_where_less_is_better_small_ones_are_enough(tuning):
    study = tuning(**FOUND, autotuning={"metric": "latency"})
    assert len(play(study, Machine(tolls=(0, 0.02, 0.04, 0.06)))) == 1 + 3 * 2
    assert study.best.trial.name == "z0_gas1_tmbspg1"


def test_from_where_the_script_is(tuning):
    section = {"arg_mappings": {MICRO: "--batch"}}
    study = tuning(args=("--batch", "16"), **FOUND, autotuning=section)
    past = play(study, Machine(limits=(40,) * 4))
    assert past[1].trial.name == "z0_gas1_tmbspg16"


def test_the_wall_of_each_stage(tuning):
    study = tuning(zero_optimization={"stage": "all"})
    play(study, Machine(half=50, tolls=(0,) * 4, limits=(20, 30, 40, 50)))
    assert study.best.trial.point[STAGE] == 3
    assert 45 <= study.best.trial.point[MICRO] <= 50


def test_the_estimate_finds_the_wall_sooner(tuning):
    data = {"zero_optimization": {"stage": [1, 2, 3]}, "fp16": {"enabled": True}, "world": 8}
    machine = Machine(half=500, limits=(0, 170, 178, 185), info=INFO)
    informed = play(tuning(**data, capacity=40 << 30), machine)
    blind = play(tuning(**data), machine.replace(info=None))
    assert len(informed) < 0.7 * len(blind)


@thorough
@given(MACHINES.map(lambda machine: machine.replace(failing={})), st.sampled_from([None, 24 << 30]))
def test_no_wall_is_run_into_twice(tuning, machine, capacity):
    """Halving takes at most as many runs as the range has doublings; and never what was seen not to fit already."""
    past = play(tuning(zero_optimization={"stage": "all"}, capacity=capacity), machine)
    broken: dict[int, int] = {}
    count = 0
    for each in past:
        if each.trial.phase == "profile":
            continue
        stage, micro = each.trial.point[STAGE], each.trial.point[MICRO]
        assert micro < broken.get(stage, 10**9)
        if each.result.cause == "out of memory":
            broken[stage] = micro
            count += 1
    assert count <= 4 * 10


def test_a_failure_of_another_kind_is_no_wall_but_an_end(tuning):
    study = tuning(zero_optimization={"stage": [0, 1]})
    past = play(study, Machine(failing={"z0_gas1_tmbspg8": "failed"}))
    tried = [each.trial.point[MICRO] for each in past[1:] if each.trial.point[STAGE] == 0]
    assert max(tried) == 8
    assert "stage 0: micro-batch 8: failed; no larger one was tried" in study.skipped
    assert study.best.trial.point == {STAGE: 1, MICRO: 256} or study.best.trial.point[MICRO] > 8


def test_a_small_data_set(tuning):
    """From some micro-batch on there is too little data for the steps that are measured."""
    failing = {f"z{stage}_gas1_tmbspg{micro}": "no metric" for stage in (0, 1, 2) for micro in range(64, 1025)}
    study = tuning(**FOUND)
    past = play(study, Machine(half=30, failing=failing))
    assert len(past) <= 16
    assert study.best.trial.name == "z0_gas1_tmbspg32"


def test_a_stage_that_cannot_win_is_not_run(tuning):
    study = tuning(zero_optimization={"stage": "all"})
    past = play(study, Machine(half=0.2, tolls=(0, 0.5, 0.6, 0.7)))
    assert {each.trial.point[STAGE] for each in past[1:]} == {0, 1}
    assert any(line.startswith("stage 2: stage 1 was slower than stage 0") for line in study.skipped)


def test_offloading_is_a_choice_where_memory_is_short(tuning):
    zero = {"stage": 1, "offload_optimizer": [{"device": "none"}, {"device": "cpu"}]}
    study = tuning(zero_optimization=zero)
    play(study, Machine(half=100, limits=(20,) * 4))
    assert study.best.trial.point["zero_optimization.offload_optimizer"] == {"device": "cpu"}
    assert study.best.trial.point[MICRO] > 60


def test_offloading_cannot_win_where_memory_is_no_limit(tuning):
    zero = {"stage": 1, "offload_optimizer": [{"device": "none"}, {"device": "cpu"}]}
    study = tuning(zero_optimization=zero)
    past = play(study, Machine())
    assert all(each.trial.point["zero_optimization.offload_optimizer"] == {"device": "none"} for each in past[1:])
    assert any("with offloaded optimizer: memory is not the limit without offloading" in line for line in study.skipped)


def test_the_least_train_batch_size_is_kept(tuning):
    study = tuning(zero_optimization={"stage": 0}, autotuning={"min_train_batch_size": 12})
    assert play(study, Machine())[1].trial.point[MICRO] == 6


# -- the default choices -----------------------------------------------------------------------------


@pytest.mark.parametrize("data", [FOUND, TWELVE])
def test_the_default_choices_come_after_the_list(tuning, data):
    """Where `fast` is false, for stages that may still win, within the budget. (DeepSpeed raises KeyError.)"""
    study = tuning(**data, autotuning={"fast": False, "tuner_num_trials": 30, "tuner_type": "random"})
    past = play(study, Machine(tolls=(0, 0.1, 0.9, 0.9), info=INFO))
    kinds = [each.trial.phase for each in past]
    assert kinds == sorted(kinds, key=["profile", "limits", "search", "rest"].index)
    rest = [each.trial for each in past if each.trial.phase == "rest"]
    assert rest and {trial.point[STAGE] for trial in rest} == {1}
    assert len([kind for kind in kinds if kind in ("search", "rest")]) <= 30
    patient = {"fast": False, "tuner_num_trials": 20, "tuner_type": "random", "tuner_early_stopping": None}
    past = play(tuning(**data, autotuning=patient), Machine(tolls=(0, 0.1, 0.9, 0.9), info=INFO))
    assert sum(each.trial.phase in ("search", "rest") for each in past) == 20


def test_a_large_space(tuning):
    lists = {f"option_{number}": list(range(10)) for number in range(5)}
    study = tuning(**{MICRO: LIST}, **lists, autotuning={"tuner_type": "random"})
    assert study.left == 50
    assert len(play(study, Machine())) <= 50


def test_left(tuning):
    study = tuning(**TWELVE)
    assert study.left == 12
    trial = study.ask()
    assert study.left == 12
    study.tell(trial.name, *Machine().run(trial))
    assert study.left == 11
    assert tuning(**FOUND).left is None


@thorough
@given(DATA, MACHINES, st.integers(1, 6), st.integers(0, 10**6), st.sampled_from([0.0, 0.2]))
def test_what_is_left_never_grows(tuning, data, machine, slots, seed, faults):
    """The display says "at most N to go", and who waits for it plans by that."""
    study = tuning(**data)
    seen: list[int] = []

    def look() -> None:
        left = study.left
        if left is not None or seen:
            assert left is not None and left <= min(seen, default=left)
            seen.append(left)

    rows = play_in_parallel(study, machine, slots, seed, faults, look=look)
    if seen and not study.given_up:
        assert seen[-1] == 0 and rows


@pytest.mark.parametrize(
    ("speeds", "best", "since"),
    [
        ([1.0, 2.0, 3.0], 0.0, 0),
        ([2.0, 1.0, 1.0], 0.0, 2),
        ([2.0, 1.0, 3.0, 1.0], 0.0, 1),
        ([2.0, None, None], 0.0, 2),
        ([None, None, None], 0.0, 0),  # nothing has worked yet
        ([None, 1.0], 0.0, 0),
        ([2.0, 2.0, 2.0], 0.0, 2),
        ([1.0, 2.0], 3.0, 2),
        ([4.0, 1.0], 3.0, 1),
    ],
)
def test_trials_without_an_improvement(speeds, best, since):
    assert without_improvement(speeds, best) == since
