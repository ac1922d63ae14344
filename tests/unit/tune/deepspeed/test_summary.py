"""The summary at the end of a study."""

from __future__ import annotations

import pytest

from tests.unit.tune.deepspeed.machine import MICRO, Machine, Tuning, play, summary

DATA = {MICRO: [4, 8], "zero_optimization": {"stage": [1, 0]}}


@pytest.fixture
def played(space):
    """A study that was played to its end on a machine."""

    def played(machine, most=500, **data):
        tuning = Tuning(space(**data), 2)
        play(tuning, machine, most)
        return tuning

    return played


def test_the_whole(played):
    machine = Machine(limits=(4, 8, 0, 0), failing={"z1_gas2_tmbspg4": "failed"})
    tuning = played(machine, **DATA)
    assert summary(tuning, tuning.over, 75.0) == (
        "| tuning_space | num_experiments | best_metric_val | best_exp_name   |\n"
        "|:-------------|:----------------|:----------------|:----------------|\n"
        "| z0           | 2               | 333.333         | z0_gas2_tmbspg4 |\n"
        "| z1           | 2               | 454.545         | z1_gas1_tmbspg8 |\n"
        "| global       | 4               | 454.545         | z1_gas1_tmbspg8 |\n"
        "\n"
        "| configuration   | runs | by the clock    | throughput      | took   | end           |\n"
        "|:----------------|:-----|:----------------|:----------------|:-------|:--------------|\n"
        "| z1_gas1_tmbspg8 | 1    | 409.1 samples/s | 454.5 samples/s | 11.0 s | ok            |\n"
        "| z0_gas2_tmbspg4 | 1    | 300 samples/s   | 333.3 samples/s | 10.0 s | ok            |\n"
        "| z1_gas2_tmbspg4 | 1    |                 |                 | 0.0 s  | failed        |\n"
        "| z0_gas1_tmbspg8 | 1    |                 |                 | 5.0 s  | out of memory |\n"
        "\n"
        "What failed:\n"
        "  z1_gas2_tmbspg4: failed: so it is\n"
        "\n"
        "What was not tried:\n"
        "  stage 0: micro-batches of 8 and more run out of memory\n"
        "\n"
        "Tuning took 1 min 15 s; 4 trials of 4 configurations.\n"
        "It ended: every configuration was measured.\n"
        "\n"
        "best: z1_gas1_tmbspg8  409.1 samples/s by the clock, from 1 run\n"
    )


def test_what_is_listed_and_cannot_be_is_said(played):
    tuning = played(Machine(), train_batch_size=64, train_micro_batch_size_per_gpu=[4, 6, 8])
    said = "What was not tried:\n  micro-batch 6 on 2 ranks cannot make up train_batch_size 64\n"
    assert said in summary(tuning, tuning.over, 1.0)


def test_nothing_at_all(played):
    tuning = played(Machine(), most=0, **DATA)
    assert summary(tuning, "interrupted", 1.0) == (
        "Tuning took 0.0 s; 0 trials of 0 configurations.\nIt ended: interrupted.\n\nnothing was measured\n"
    )


def test_nothing_fits(played):
    tuning = played(Machine(limits=(0,) * 4), **DATA)
    text = summary(tuning, tuning.over, 60.0)
    assert "| global       | 2               |                 |               |" in text
    ended = "2 trials of 2 configurations.\nIt ended: no configuration fits in memory.\n\nno configuration worked\n"
    assert text.endswith(ended)


def test_less_is_better(played):
    tuning = played(Machine(), **DATA, autotuning={"metric": "latency"})
    first = next(line for line in summary(tuning, "", 1.0).splitlines() if " ms " in line)
    assert first.startswith("| z0_gas1_tmbspg8")


def test_it_fits_a_terminal(played):
    """Also with all default choices in the names, and with a long reason."""
    tuning = played(Machine(), zero_optimization={"stage": [2, 3]}, autotuning={"fast": False})
    assert tuning.completed[-1].trial.phase == "rest"
    lines = summary(tuning, tuning.over, 1.0).splitlines()
    assert max(map(len, lines)) <= 120
    assert max(len(line) for line in lines if not line.startswith("|")) <= 100
    plain = played(Machine(limits=(9, 9, 9, 9)), zero_optimization={"stage": "all"})
    assert max(map(len, summary(plain, plain.over, 1.0).splitlines())) <= 100


def test_one_reason_is_said_once(played):
    data = {MICRO: [1, 2, 4, 8], "zero_optimization": {"stage": [0, 1]}}
    failing = {f"z{stage}_gas{8 // micro}_tmbspg{micro}": "failed" for stage in (0, 1) for micro in (1, 2, 4, 8)}
    tuning = played(Machine(failing=failing), **data)
    text = summary(tuning, tuning.over, 1.0)
    assert text.count("so it is") == 1
    assert "z0_gas8_tmbspg1, z0_gas4_tmbspg2, z0_gas2_tmbspg4 and 5 more: failed: so it is" in text


def test_what_could_not_be_run(space):
    tuning = Tuning(space(**DATA), 2)
    tuning.give_up(tuning.ask().name)
    play(tuning, Machine())
    assert "Could not be run (run the same command again to retry): z1_gas2_tmbspg4" in summary(
        tuning, "some experiments could not be run", 1.0
    )
