"""How often a job may be restarted."""

from __future__ import annotations

from bireme.launching.restarts import RestartBudget


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
