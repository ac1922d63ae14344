"""When a job counts as one that hangs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bireme.result.collectives import GroupProgress
from bireme.result.stacks import Frame, RankStack
from bireme.runner.hang_watch import HangWatch
from bireme.runner.quiet_time import TICK, QuietTime

WAITS = (
    Frame(function="all_reduce", file="/lib/torch/distributed/c10d.py", line=9, own=False),
    Frame(function="step", file="a.py", line=3),
)
CUDA = Frame(function="item", file="a.py", line=9)
READS = (Frame(function="read", file="a.py", line=7), Frame(function="step", file="a.py", line=4))


class Ranks:
    """Two ranks, and what is said of them."""

    def __init__(self, limit: float | None = None) -> None:
        self.clock, self.looks, self.said = 0.0, 0, ""
        self.stacks = [RankStack(rank=0, frames=WAITS), RankStack(rank=1, frames=READS)]
        self.change: Callable[[], object] = lambda: None
        self.noted: list[str] = []
        self.silence = QuietTime(limit)
        self.watch = HangWatch(
            self.silence,
            now=lambda: self.clock,
            look=self.look,
            say=lambda _, text: self.say(text),
            on_hang=lambda quiet, _: self.say(f"hangs after {quiet:g}"),
            note=lambda event, seconds: self.noted.append(f"{event} {seconds:g}"),
        )

    def look(self, then: Callable[[Any], object]) -> None:
        self.looks += 1
        self.change()
        then({(each.rank, each.thread): each for each in self.stacks})

    def say(self, text: str) -> None:
        self.said += f"{text}; "

    def go(self, seconds: int, *, talks: bool = False) -> str:
        for _ in range(int(seconds / TICK)):
            self.silence.tick(talked=talks)
            self.watch.tick()
            self.clock += TICK
        return self.said


def test_a_job_without_a_cadence_is_not_looked_at() -> None:
    one = Ranks()
    assert one.go(1000) == ""
    assert one.looks == 0


def test_a_job_that_has_a_cadence() -> None:
    one = Ranks()
    one.go(10, talks=True)
    assert one.go(60) == "hangs after 40; "
    assert one.go(1000) == "hangs after 40; "  # it is told once
    assert one.go(1, talks=True).endswith("the job writes again, after 17 min 40 s; ")


def test_long_pauses_are_waited_for() -> None:
    one = Ranks()
    one.go(10, talks=True)
    one.go(20)
    one.go(1, talks=True)
    assert one.go(109) == ""
    assert one.go(1) == "hangs after 110; "


def test_a_time_that_the_user_has_given() -> None:
    assert Ranks(4).go(60) == "hangs after 6; "


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({"frames": READS[1:]}, 4),
        ({"frames": (READS[0], READS[1].replace(line=5))}, 4),
        ({"io": 1 << 20}, 4),
        ({"cpu": 5.0}, None),
    ],
    ids=["elsewhere", "another-line", "io", "cpu"],
)
def test_what_moves_between_two_looks(changes: dict[str, object], limit: float | None) -> None:
    one = Ranks(limit)
    one.go(10, talks=True)
    before = one.stacks[1]
    one.change = lambda: one.stacks.__setitem__(1, before.replace(**changes) if one.looks % 2 == 0 else before)
    assert "hangs" not in one.go(200)
    assert one.looks > 4
    suspected, quiet = one.noted[:2]
    assert suspected.startswith("suspected ") and quiet.startswith("quiet ")


@pytest.mark.parametrize(("advances", "said"), [(0, "hangs after 40; "), (1, "")], ids=["the-same", "the-next"])
def test_a_rank_that_spins_in_a_collective(advances: int, said: str) -> None:
    """It is in a function of CUDA, and uses a core; by PyTorch's record it waits in the same one at both looks."""
    one = Ranks()
    one.go(10, talks=True)

    def spin() -> None:
        group = GroupProgress(name="0", label="dp", called=6, waits=6 + advances * one.looks)
        one.stacks[0] = RankStack(rank=0, frames=(CUDA,), cpu=10.0 * one.looks, groups=(group,))

    one.change = spin
    assert one.go(60) == said


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({"state": "traced"}, 4),
        ({"frames": (Frame(function="interaction", file="/lib/pdb.py", line=1), *READS)}, 4),
        ({"frames": WAITS}, None),
        ({"frames": (), "reason": "no py-spy"}, None),
    ],
    ids=["traced", "debugger", "all-alike", "unknown"],
)
def test_what_is_no_hang(changes: dict[str, object], limit: float | None) -> None:
    one = Ranks(limit)
    one.go(10, talks=True)
    one.stacks[1] = one.stacks[1].replace(**changes)
    assert "hangs" not in one.go(200)
    assert one.looks > 4


def test_a_server_that_waits_for_requests_does_not_hang() -> None:
    """Its ranks wait at different places, but for nobody among them."""
    one = Ranks()
    one.go(10, talks=True)
    one.stacks[0] = one.stacks[0].replace(frames=(Frame(function="accept", file="a.py", line=5),))
    assert one.go(200) == ""
    assert one.looks > 4


def test_a_loop_of_some_lines_is_one_place() -> None:
    one = Ranks(4)

    def change() -> None:
        one.stacks[1] = RankStack(rank=1, frames=(READS[0].replace(line=one.looks), READS[1]))

    one.change = change
    assert one.go(10) == "hangs after 6; "
