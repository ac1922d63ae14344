"""Parameters, spaces, points."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.errors import BadInputError
from bireme.tune.space.points import Parameter, Space, Union, key_of

SIZES = Parameter("size", (1, 2, 4))
FLAG = Parameter("flag", (True, False))


def test_the_last_parameter_varies_fastest():
    space = Space((FLAG, SIZES))
    assert [tuple(point.values()) for point in space.points()] == [
        (True, 1), (True, 2), (True, 4), (False, 1), (False, 2), (False, 4)
    ]  # fmt: skip
    assert space.size == 6


@given(st.lists(st.integers(1, 4), max_size=4))
def test_every_point_once(sizes):
    space = Space(tuple(Parameter(f"d{number}", tuple(range(size))) for number, size in enumerate(sizes)))
    keys = [key_of(point) for point in space.points()]
    assert len(keys) == len(set(keys)) == space.size
    assert all(point in space for point in space.points())


def test_a_space_without_parameters_has_one_point():
    assert list(Space(()).points()) == [{}]


def test_a_large_space_costs_nothing():
    space = Space(tuple(Parameter(f"d{number}", tuple(range(100))) for number in range(10)))
    assert space.size == 100**10
    assert set(space.point(space.size - 1).values()) == {99}


@pytest.mark.parametrize("index", [-1, 3, 10**9])
def test_no_point_beyond_the_end(index):
    with pytest.raises(IndexError):
        Space((SIZES,)).point(index)
    with pytest.raises(IndexError):
        Union((Space((SIZES,)),)).point(index)


def test_true_is_not_one():
    assert {"size": True} not in Space((SIZES,))
    assert {"flag": 1} not in Space((FLAG,))
    assert not FLAG.ordered and SIZES.ordered
    assert key_of({"a": True}) != key_of({"a": 1})
    Parameter("either", (True, 1, False, 0, "1")).check()


def test_keys_do_not_depend_on_order():
    assert key_of({"a": 1, "b": [1, {"x": None}]}) == key_of({"b": [1, {"x": None}], "a": 1})


def test_a_union_is_one_space_after_the_other():
    one = Space((Parameter("stage", (1,)), Parameter("size", (4, 8))))
    zero = Space((Parameter("stage", (0,)), Parameter("size", (2,)), FLAG))
    union = Union((one, zero))
    assert union.size == 4
    assert [union.point(index) for index in range(4)] == list(union.points()) == [*one.points(), *zero.points()]
    assert union.parameters == (Parameter("stage", (0, 1), default=1), Parameter("size", (2, 4, 8), default=4), FLAG)
    assert {"stage": 1, "size": 4} in union
    assert {"stage": 0, "size": 4, "flag": True} not in union


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ((), "no choices for 'size'"),
        ((1, 2, 1), "1 is listed twice"),
        (({"a": 1}, {"a": 1}), "is listed twice"),
        ((500000000, 5e8), "500000000.0 is listed twice"),
    ],
)
def test_impossible_parameters(choices, said):
    with pytest.raises(BadInputError, match=said):
        Parameter("size", choices).check()
