"""The stop ladder: from every state, any events lead to its end."""

from __future__ import annotations

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.process.stop_ladder import KILL_WAIT, TABLE, Ladder

ORDER = ["running", "stopping", "killing", "done"]
EVENTS = ["stop", "kill now", "deserted", "deadline", "empty"]


def test_the_way_of_a_job_that_ends_well():
    ladder = Ladder(3.0)
    assert ladder.on("empty") == (("finish",), "cancel")
    assert ladder.state == "done"


def test_the_way_of_stubborn_ranks():
    ladder = Ladder(3.0)
    assert ladder.on("stop", signal.SIGINT) == (("signal",), 3.0)
    assert ladder.signum == signal.SIGINT
    assert ladder.on("deadline") == (("kill",), KILL_WAIT)
    assert ladder.on("deadline") == (("give up", "finish"), "cancel")


def test_a_second_signal_changes_neither_the_first_nor_the_deadline():
    ladder = Ladder(3.0)
    ladder.on("stop", signal.SIGTERM)
    assert ladder.on("stop", signal.SIGHUP) == ((), "keep")
    assert ladder.signum == signal.SIGTERM


@pytest.mark.parametrize("before", [[], ["stop"], ["deserted"]])
def test_urging_kills_at_once(before):
    ladder = Ladder(1000.0)
    for event in before:
        ladder.on(event)
    assert ladder.on("kill now") == (("kill",), KILL_WAIT)


def test_what_ranks_leave_behind_gets_a_signal_and_the_grace_time():
    ladder = Ladder(3.0)
    assert ladder.on("deserted") == (("sweep",), 3.0)
    assert ladder.on("deserted") == ((), "keep")
    assert ladder.on("deadline")[0] == ("kill",)


def test_no_grace_is_not_no_deadline():
    assert Ladder(0.0).on("stop")[1] == 0.0


@given(st.lists(st.sampled_from(EVENTS), max_size=20))
def test_it_only_goes_down_and_finishes_once(events):
    ladder = Ladder(1.0)
    seen, finished = [ladder.state], 0
    for event in events:
        do, _ = ladder.on(event)
        finished += do.count("finish")
        seen.append(ladder.state)
    assert [ORDER.index(state) for state in seen] == sorted(ORDER.index(state) for state in seen)
    assert finished == (ladder.state == "done")


def test_every_state_but_the_last_can_be_left_by_its_deadline_or_the_end():
    for state in ORDER[:-1]:
        assert (state, "empty") in TABLE
    assert TABLE["stopping", "deadline"].state == "killing"
    assert TABLE["killing", "deadline"].state == "done"
