"""Trials that are compared run one after the other, on the same slots."""

from __future__ import annotations

from bireme.tune.execution.adapter import Blocks
from bireme.tune.execution.slot_scheduler import SlotReservation
from bireme.value import Value

PLACE = SlotReservation(places=(("node", ("0",)),))


class Run(Value):
    name: str
    block: str = ""


def test_a_block_runs_one_after_the_other_on_its_slots():
    coming = iter([Run("a1", "a"), Run("a2", "a"), Run("b1", "b"), Run("free"), Run("also free")])
    blocks: Blocks[Run] = Blocks(lambda: next(coming, None))
    first = blocks.next()
    assert first.name == "a1" and blocks.pinned(first) is None
    blocks.started(first, PLACE)
    assert [blocks.next().name for _ in range(3)] == ["b1", "free", "also free"]
    assert blocks.next() is None
    blocks.ended("a1")
    second = blocks.next()
    assert second.name == "a2" and blocks.pinned(second) == PLACE
    assert blocks.next() is None and blocks.pinned(Run("free")) is None
