"""Shapes, reservations, free slots."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.resources.filters import apply_filters
from bireme.tune.execution.slot_scheduler import FreeSlots, Shape, SlotReservation, why_impossible

POOL = {"a": ("0", "1"), "b": ("0", "1", "2", "3"), "c": ("GPU-1", "GPU-2", "GPU-3"), "d": ()}

pools = st.lists(st.integers(0, 4), max_size=6).map(
    lambda sizes: {f"n{number}": tuple(map(str, range(size))) for number, size in enumerate(sizes)}
)
shapes = st.builds(Shape, st.integers(1, 3), st.integers(1, 4))


def test_a_reservation_is_what_include_wants():
    reservation = SlotReservation((("node1", ("0", "1")), ("fe80::1", ("3",))))
    assert reservation.include() == "node1:0,1@[fe80::1]:3"
    assert reservation.size == 3
    pool = {"node1": ("0", "1", "2"), "node2": ("0",), "fe80::1": ("2", "3")}
    assert apply_filters(pool, reservation.include()) == dict(reservation.places)


def test_the_first_nodes_with_room():
    free = FreeSlots(POOL)
    assert free.find(Shape(2, 2)).places == (("a", ("0", "1")), ("b", ("0", "1")))
    assert free.find(Shape(2, 2), avoid=["a", "x"]).places == (
        ("b", ("0", "1")), ("c", ("GPU-1", "GPU-2"))
    )  # fmt: skip
    assert free.find(Shape(3, 3)) is None


def test_the_tightest_nodes():
    free = FreeSlots(POOL)
    assert free.find(Shape(1, 3), tight=True).places == (("c", ("GPU-1", "GPU-2", "GPU-3")),)
    assert [host for host, _ in free.find(Shape(2, 2), tight=True).places] == ["a", "c"]
    assert [host for host, _ in free.find(Shape(3, 1), tight=True).places] == ["a", "b", "c"]


def test_slots_are_given_back():
    free = FreeSlots(POOL)
    first, second = free.find(Shape(1, 1)), None
    free.take(first)
    second = free.find(Shape(1, 1))
    free.take(second)
    assert (first.places, second.places) == ((("a", ("0",)),), (("a", ("1",)),))
    assert free.view()["a"] == ()
    free.give(first)
    assert free.find(Shape(1, 1)).places == first.places


def test_a_node_that_is_away_gives_nothing_and_forgets_nothing():
    free = FreeSlots(POOL)
    taken = free.find(Shape(1, 1))
    free.take(taken)
    free.leave("a")
    assert "a" not in free.view()
    assert free.find(Shape(1, 1)).places[0][0] == "b"
    assert not free.carries(Shape(3, 2))
    free.come("a")
    assert free.view()["a"] == ("1",)
    free.leave("a")
    free.give(taken)
    assert free.find(Shape(1, 1)).places[0][0] == "b"
    free.come("a")
    assert free.view() == POOL
    with pytest.raises(KeyError):
        free.leave("x")


def test_a_copy_goes_its_own_way():
    free = FreeSlots(POOL)
    other = free.copy()
    other.take(other.find(Shape(2, 2)))
    other.leave("c")
    assert free.view() == POOL
    assert other.view() == {"a": (), "b": ("2", "3"), "d": ()}


def test_what_a_shape_could_need():
    free = FreeSlots(POOL)
    free.take(free.find(Shape(1, 4)))
    kept = free.kept_for(Shape(2, 3))
    assert kept.places == (("b", ()), ("c", ("GPU-1", "GPU-2", "GPU-3")))
    kept = free.kept_for(Shape(4, 2), avoid=["a"])
    assert kept.places == (("b", ()), ("c", ("GPU-1", "GPU-2")))


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        (Shape(1, 4), ""),
        (Shape(3, 2), ""),
        (Shape(1, 5), "5 slots on one node requested, but no node has more than 4 (b)"),
        (Shape(3, 3), "3 slots on each of 3 nodes requested, but only 2 can give that many: b, c"),
        (Shape(5, 1), "5 nodes requested, but the pool has 4: a, b, c, d"),
        (Shape(0, 1), "1 slots on 0 nodes: at least one slot on one node is needed"),
    ],
)
def test_why_it_is_impossible(shape, said):
    assert why_impossible(POOL, shape) == said
    assert FreeSlots(POOL).carries(shape) == (not said)
    assert why_impossible({}, Shape(1, 1)) == "1 nodes requested, but the pool has 0: none"


@given(pools, st.lists(st.tuples(shapes, st.booleans(), st.booleans()), max_size=20))
def test_no_slot_twice(pool, wishes):
    free, taken = FreeSlots(pool), []
    for shape, tight, give in wishes:
        before = free.view()
        fits = sum(len(slots) >= shape.slots for slots in before.values()) >= shape.nodes
        room = free.find(shape, tight=tight)
        assert (room is not None) == fits
        if room is not None:
            got = room.places
            assert len(dict(got)) == len(got) == shape.nodes
            assert all(len(slots) == shape.slots and set(slots) <= set(before[host]) for host, slots in got)
            left_over = sorted(len(before[host]) for host, _ in got)
            able = sorted(len(slots) for slots in before.values() if len(slots) >= shape.slots)
            assert not tight or left_over == able[: shape.nodes]
            free.take(room)
            taken.append(room)
        elif give and taken:
            free.give(taken.pop())
    for room in taken:
        free.give(room)
    assert free.view() == pool
