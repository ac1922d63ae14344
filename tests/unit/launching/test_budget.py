"""How often a job may be restarted, and when it is not."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from bireme.job import JobSpec, Program
from bireme.launching import restarts
from bireme.launching.restarts import RestartBudget
from bireme.result.outcome import Outcome


def test_so_many_and_no_more():
    budget = RestartBudget(2, window=100)
    budget.begin(0)
    assert budget.spend(1) and budget.used == 1
    budget.begin(2)
    assert budget.spend(3) and budget.used == 2
    budget.begin(4)
    assert not budget.spend(5)


def test_none():
    assert not RestartBudget(0, window=100).spend(1)


def test_forgiven_after_a_healthy_time():
    budget = RestartBudget(1, window=100)
    budget.begin(0)
    assert budget.spend(1)
    budget.begin(2)
    assert budget.spend(102) and budget.used == 1


def test_the_healthy_time_is_that_without_a_failure():
    """Epochs that end for other reasons do not begin it anew; waiting for the next one is not healthy."""
    budget = RestartBudget(1, window=100)
    budget.begin(0)
    budget.begin(50)
    assert budget.spend(100)
    assert not budget.spend(300), "it has not run since"


def test_looking_takes_nothing():
    budget = RestartBudget(1, window=100)
    budget.begin(0)
    assert budget.is_left(1) and budget.is_left(1) and budget.spend(1)
    budget.begin(2)
    assert not budget.is_left(3) and budget.is_left(102)


@pytest.mark.parametrize(("checkpoint", "code"), [("", 3), ("USR1", 78)])
def test_a_signal_when_an_attempt_has_ended_is_heard(checkpoint: str, code: int) -> None:
    """The session does not handle signals any more, and there is no next one."""
    tried = []

    def attempt(spec: JobSpec, is_last: Callable[[Outcome], bool]) -> Outcome:
        tried.append(spec.attempt)
        os.kill(os.getpid(), signal.SIGTERM)
        return Outcome(exit_code=3, cause="rank failed", seconds=1.0)

    spec = JobSpec(Program("train.py"), restarts=5, checkpoint_signal=checkpoint)
    assert restarts.run(spec, attempt, lambda *_: None).exit_code == code and tried == [0]
