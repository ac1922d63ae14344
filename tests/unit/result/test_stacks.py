"""What is said of the stacks of ranks."""

from __future__ import annotations

import pytest

from bireme.resources.pool import ranges
from bireme.result.stacks import Frame, RankStack, call_chain, merged

STEP = Frame(function="step", file="/job/train.py", line=41)
MAIN = Frame(function="<module>", file="/job/train.py", line=60)
REDUCE = Frame(function="all_reduce", file="/lib/torch/distributed_c10d.py", line=2501, own=False)
WRAPPER = Frame(function="wrapper", file="/lib/torch/c10d_logger.py", line=81, own=False)
WAIT = Frame(function="Work._wait", file="/lib/torch/work.py", line=3, own=False)


@pytest.mark.parametrize(
    ("frames", "said"),
    [
        ((WAIT, REDUCE, WRAPPER, STEP, MAIN), "all_reduce ← train.py:41 step ← train.py:60"),
        ((STEP, MAIN), "train.py:41 step ← train.py:60"),
        ((WAIT, STEP, WRAPPER, MAIN), "_wait ← train.py:41 step ← train.py:60"),
        ((WAIT, REDUCE), "work.py:3 Work._wait ← distributed_c10d.py:2501 all_reduce"),
        ((STEP,) * 7, " ← ".join(["train.py:41 step"] * 5) + " ← …"),
        ((), ""),
    ],
)
def test_calls_are_named_from_the_innermost(frames: tuple[Frame, ...], said: str) -> None:
    assert call_chain(frames, "/job") == said


def test_equal_stacks_stand_once_and_the_odd_ones_first() -> None:
    odd = Frame(function="read_batch", file="/job/sub/data.py", line=17)
    stacks = [RankStack(rank=rank, state="asleep", frames=(REDUCE, STEP)) for rank in (0, 1, 3)]
    stacks.append(RankStack(rank=2, state="running, 100% CPU", frames=(odd, MAIN)))
    hosts = {0: "node1", 1: "node1", 2: "node2", 3: "node2"}
    assert merged(stacks, hosts, own="/job").splitlines() == [
        "rank 2 on node2  sub/data.py:17 read_batch ← train.py:60  running, 100% CPU",
        "ranks 0-1,3      all_reduce ← train.py:41 step            asleep, 3 of 4 are here",
    ]


def test_what_has_no_stack_says_why() -> None:
    stacks = [
        RankStack(rank=0, reason="it is not a Python process"),
        RankStack(rank=0, thread="thread T", frames=(STEP,)),
    ]
    assert merged(stacks, {0: "node1"}).splitlines() == [
        "rank 0            it is not a Python process  0.0 s of CPU",
        "rank 0, thread T  train.py:41 step",
    ]


def test_a_name_cannot_add_lines() -> None:
    bad = Frame(function="step\nrank 7", file="/job/a\rb\x1b\x85\u2028.py", line=1)
    stacks = [RankStack(rank=0, frames=(bad,)), RankStack(rank=0, thread="thread a\n\tb", frames=(STEP,), state="x\ny")]
    said = merged(stacks, {}, own="/job").splitlines()
    assert said == [
        "rank 0                 a\\rb\\x1b\\x85\\u2028.py:1 step\\nrank 7",
        "rank 0, thread a\\n\\tb  train.py:41 step                      x\\ny",
    ]


def test_ranks_without_a_stack_stand_together_whatever_time_they_have_used() -> None:
    stacks = [
        RankStack(rank=rank, reason="it is not a Python process", state="asleep", cpu=rank * 1.5) for rank in range(3)
    ]
    assert merged(stacks, {}) == "ranks 0-2  it is not a Python process  asleep, 0.0 to 3.0 s of CPU"


@pytest.mark.parametrize(("numbers", "text"), [((0,), "0"), ((0, 1, 2, 4), "0-2,4"), ((1, 3, 4), "1,3-4")])
def test_ranks_in_a_row_are_named_by_their_ends(numbers: tuple[int, ...], text: str) -> None:
    assert ranges(numbers) == text
