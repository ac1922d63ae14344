"""When an experiment is tried again or given up, and how long a failed host gets none."""

from __future__ import annotations

import pytest

from bireme.errors import LOST, UNFIT
from bireme.tune.execution.retries import ATTEMPTS, BACK_OFF, LONGEST_BACK_OFF, Attempt, Retries
from bireme.tune.execution.slot_scheduler import Shape, Task, why_impossible
from bireme.tune.study.trial import TrialResult

POOL = {"a": ("0", "1"), "b": ("0",)}
FIRST = Attempt(Task("e0", Shape(1, 1)))


def retries() -> Retries:
    return Retries(lambda shape, without: why_impossible({h: POOL[h] for h in POOL if h not in without}, shape))


def failed(*hosts: str) -> TrialResult:
    return TrialResult("infrastructure", "a node was lost", hosts=hosts)


def test_each_attempt_has_a_key_of_its_own_and_avoids_the_hosts_that_failed():
    second = retries().next_attempt(FIRST, failed("a"), LOST)
    third = retries().next_attempt(second, failed("b"), LOST)
    assert [each.task.key for each in (FIRST, second, third)] == ["e0#1", "e0#2", "e0#3"]
    assert third.task.avoid == {"a", "b"}


def test_an_experiment_is_given_up_after_the_last_attempt():
    attempt, numbers, policy = FIRST, [], retries()
    while attempt is not None:
        numbers.append(attempt.number)
        attempt = policy.next_attempt(attempt, failed("a"), LOST)
    assert numbers == list(range(1, ATTEMPTS + 1))
    assert policy.cannot_run == "", "losing a node in mid-run may be the configuration's doing"


def test_a_host_rests_twice_as_long_at_each_failure():
    policy, now, rests = retries(), 0.0, []
    for _ in range(8):
        rests.append(policy.rest("a", now))
        now += rests[-1]
    assert rests == [min(BACK_OFF * 2**n, LONGEST_BACK_OFF) for n in range(8)]
    policy.ran_to_its_end(["a"])
    assert policy.rest("a", now) == BACK_OFF


def test_failures_within_one_rest_are_one_failure():
    policy = retries()
    assert policy.rest("a", 0.0) == BACK_OFF
    assert policy.rest("a", 5.0) == BACK_OFF
    assert policy.rest("a", 5.0, at_least=99.0) == 99.0
    assert policy.rest("a", 6.0) == 98.0, "it is not shortened"


@pytest.mark.parametrize(
    ("code", "worked", "dead", "hopeless"),
    [
        (UNFIT, False, ["a", "b"], True),
        (UNFIT, False, ["a"], False),  # the other host can carry it
        (UNFIT, True, ["a", "b"], False),
        (LOST, False, ["a", "b"], False),
    ],
)
def test_nothing_can_run(code, worked, dead, hopeless):
    policy, now = retries(), 0.0
    if worked:
        policy.ran_to_its_end([])
    for _ in range(ATTEMPTS):
        for host in dead:
            policy.rest(host, now)
        now += LONGEST_BACK_OFF
    assert (policy.next_attempt(FIRST, failed(*dead), code) is None) == hopeless
    assert policy.cannot_run == ("a node was lost" if hopeless else "")
