"""The verdict: the earliest cause counts, in whatever order causes are reported."""

from __future__ import annotations

import itertools

import pytest

from bireme.errors import LOST, READER_GONE
from bireme.result.outcome import RankEnd
from bireme.result.verdict import Verdict


def end(rank, code, *, by_signal=False, stopped=False):
    return RankEnd(rank, "host", "cuda:0", 100 + rank, code, by_signal, 1.0, stopped)


def outcome(verdict):
    return verdict.outcome(seconds=2.0, killed=0)


def test_all_well():
    verdict = Verdict()
    for rank in (1, 0):
        assert not verdict.end(end(rank, 0), 1.0)
    result = outcome(verdict)
    assert (result.exit_code, result.cause, result.first) == (0, "ok", None)
    assert [one.rank for one in result.ends] == [0, 1]


def test_the_first_failure_gives_the_code():
    verdict = Verdict()
    assert verdict.end(end(1, 139, by_signal=True), 1.0)
    assert not verdict.end(end(0, 3), 2.0)
    result = outcome(verdict)
    assert (result.exit_code, result.cause, result.first.rank) == (139, "rank failed", 1)


def test_the_earliest_and_not_the_first_to_be_heard():
    for order in itertools.permutations([(0, 3, 5.0), (1, 4, 4.0), (2, 5, 6.0)]):
        verdict = Verdict()
        news = [verdict.end(end(rank, code), when) for rank, code, when in order]
        assert news == [True, False, False]
        assert (verdict.first.rank, outcome(verdict).exit_code) == (1, 4)


def test_ranks_that_were_stopped_are_no_cause():
    verdict = Verdict()
    assert verdict.blame("signal", 1.0, signum=2)
    assert not verdict.end(end(0, 1, stopped=True), 2.0)
    assert not verdict.end(end(1, 137, by_signal=True, stopped=True), 0.5)
    result = outcome(verdict)
    assert (result.exit_code, result.cause, result.first, result.signum) == (130, "signal", None, 2)


@pytest.mark.parametrize(
    ("cause", "more", "code"),
    [("signal", {"signum": 15}, 143), ("agent lost", {}, LOST), ("reader gone", {}, READER_GONE)],
)
def test_other_causes(cause, more, code):
    verdict = Verdict()
    assert verdict.blame(cause, 1.0, **more)
    assert not verdict.blame("signal", 2.0, signum=1)
    assert outcome(verdict).exit_code == code


def test_success_of_some_is_no_success():
    verdict = Verdict()
    verdict.end(end(0, 0), 1.0)
    verdict.end(end(1, 7), 2.0)
    assert outcome(verdict).exit_code == 7


def test_detail():
    verdict = Verdict()
    verdict.end(end(0, 1), 1.0)
    verdict.detail(0, "Traceback")
    assert outcome(verdict).first.detail == "Traceback"


def test_an_end_as_stopped_is_no_success_where_nobody_has_stopped_anything():
    verdict = Verdict()
    verdict.planned((0, 1))
    verdict.end(end(0, 0), 1.0)
    assert not verdict.end(end(1, 3, stopped=True), 2.0)
    result = outcome(verdict)
    assert (result.exit_code, result.cause) == (LOST, "agent lost")
    assert result.note == "rank 1 was reported as stopped, but nothing had stopped it"


def test_hosts_are_those_of_the_earliest_cause():
    verdict = Verdict()
    verdict.blame("agent lost", 2.0, hosts=("node2",))
    assert outcome(verdict).hosts == ("node2",)
    verdict.blame("agent lost", 1.0, hosts=("node1",))
    verdict.blame("unfit", 3.0, hosts=("node3",))
    assert outcome(verdict).hosts == ("node1",)
    verdict.end(end(0, 1), 0.5)
    assert outcome(verdict).hosts == ()


def test_failed_and_swept_along():
    verdict = Verdict()
    verdict.end(end(3, 0), 0.5)
    verdict.end(end(2, 1), 2.0)
    verdict.end(end(1, 134, by_signal=True), 1.0)
    verdict.end(end(0, 143, by_signal=True, stopped=True), 2.5)
    assert [one.rank for one in verdict.failed] == [1, 2]
    assert [one.rank for one in verdict.swept_along] == [0]


def test_who_is_stopped_for_another_reason_is_not_swept_along():
    verdict = Verdict()
    verdict.blame("signal", 1.0, signum=15)
    verdict.end(end(0, 143, by_signal=True, stopped=True), 2.0)
    assert verdict.swept_along == ()
