"""What users rely on, by whole studies under a virtual clock: each test fails if its promise is broken in one place."""

from __future__ import annotations

import functools
import itertools

import pytest

from tests.golden import virtual
from tests.kit import needs

pytestmark = needs.modules("numpy", "hjson")

played = functools.partial(virtual.call, "tests.golden.promises")


# -- the rounds ------------------------------------------------------------------------------------------


def test_the_confidence_that_is_asked_for_is_that_of_the_answer():
    """More rounds."""
    found = played("confidences")
    assert found["99.9"][0] >= found["80"][0] + 6


def test_the_order_in_a_round_is_random():
    """The default is not always the first, nor every second time: a neighbour's rhythm would be for one of them."""
    rounds = played("first_runs")
    first = [each[0] for each in rounds]
    assert len(first) >= 12
    assert all(first.count(value) >= len(first) / 4 for value in "ab")
    assert sum(one == other for one, other in itertools.pairwise(first)) >= len(first) / 4


def test_a_run_that_was_lost_says_nothing_of_its_point():
    """Its node failed each time; other rounds confirm the point."""
    told = played("lost_run")
    assert told["attempts"] == 4
    assert told["answer"]["confirmed"] and told["answer"]["best"] != told["answer"]["baseline"]


def test_a_limit_holds_for_finalists():
    told = played("over_the_limit")
    assert "confirm" in told["phases"], "it was within the limit until then"
    assert told["best"] != "c"


# -- the search ------------------------------------------------------------------------------------------


def test_what_may_be_the_best_runs_again():
    """Twelve points within the noise, and the best of them unlucky at first: most run three times before the rounds."""
    told = played("unlucky")
    assert told["best"] == 7 and told["runs"]["7"] >= 3
    assert sum(count >= 3 for count in told["runs"].values()) >= 8


def test_of_two_peaks_the_cheap_one_is_searched():
    """After its first look around, the search asks for what takes a tenth of the time."""
    points = played("expensive")[3:]
    assert len(points) >= 6 and sum(point > 20 for point in points) <= 1


# -- what is stopped early -------------------------------------------------------------------------------


def test_a_warm_up_stops_no_trial():
    """All are slow at first. Those that are better than the default run to their ends."""
    causes = played("warming_up")
    good = [cause for trial, cause in causes.items() if trial[0] in "4567"]
    assert len(good) >= 4 and set(good) == {"ok"}
    assert "pruned" in causes.values(), "others are stopped, so that this shows something"


@pytest.mark.parametrize(("part", "cause"), [(0.2, "ok"), (0.6, "pruned")])
def test_a_trial_is_stopped_only_if_it_is_hopeless(part, cause):
    """Two runs of the default say little of the noise: what is a fifth behind may still win."""
    assert played("behind", part) == [cause]


# -- DeepSpeed -------------------------------------------------------------------------------------------


def test_no_larger_micro_batch_than_one_that_did_not_fit():
    for trials in played("out_of_memory"):
        broken: dict[str, int] = {}
        for configuration, micro, fits in trials:
            assert micro < broken.get(configuration, 10**9)
            if not fits:
                broken[configuration] = micro
        assert len(broken) >= 4, "some did not fit"


def test_the_clock_measures_steps_where_a_step_is_to_be_short():
    told = played("shortest_step")
    assert told["best"] == 4 and "best: z0_gas1_tmbspg4" in told["summary"]


# -- reports ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@needs.modules("vl_convert")
def test_what_is_minimized_is_better_if_it_is_less():
    """On the page, on the screen, and in the comparison of the finalists, also where the study was killed."""
    told = played("minimized")
    assert "1.5 x the default" in told["page"] or "1.49 x the default" in told["page"], told["page"]
    assert "1.5 x the default" in told["status"] or "1.49 x the default" in told["status"], told["status"]
    assert told["over"] and all(each["ratio"] > 1.4 for each in told["over"]) and told["over"][0]["verdict"] == "better"
    for one, other in zip(told["killed"], told["over"], strict=True):  # the rounds say the same without the answer
        assert one["verdict"] == other["verdict"]
        assert [one["ratio"], one["low"] or 0] == pytest.approx([other["ratio"], other["low"] or 0])
