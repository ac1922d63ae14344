"""Spaces with conditions and constraints: the same points as by going through all combinations, and far sooner."""

from __future__ import annotations

import time
import tracemalloc
from itertools import islice, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bireme.errors import BadInputError
from bireme.tune.samplers import KINDS
from bireme.tune.space import points
from bireme.tune.space.expressions import parse
from bireme.tune.space.parameter import Decimals
from bireme.tune.space.points import Condition, Parameter, Space, key_of
from tests.unit.tune.samplers.searching import Search


def space(choices, conditions=(), constraints=(), defaults=None):
    """A space from plain values; conditions as (name, expression)."""
    parameters = [Parameter(name, values, (defaults or {}).get(name, values[0])) for name, values in choices.items()]
    return Space(
        parameters,
        [Condition(name, parse(text, choices)) for name, text in conditions],
        [parse(text, choices) for text in constraints],
    )


STAGES = space(
    {"stage": [0, 1, 2], "offload": ["none", "cpu"], "pin": [True, False], "batch": [8, 16]},
    [("offload", "stage >= 2"), ("pin", "offload == cpu")],
    ["batch == 8 or offload != cpu"],
)


def test_absent_parameters():
    assert list(STAGES.points()) == [
        {"stage": 0, "batch": 8},
        {"stage": 0, "batch": 16},  # the constraint names an absent parameter, so it does not apply
        {"stage": 1, "batch": 8},
        {"stage": 1, "batch": 16},
        {"stage": 2, "offload": "none", "batch": 8},
        {"stage": 2, "offload": "none", "batch": 16},
        {"stage": 2, "offload": "cpu", "pin": True, "batch": 8},
        {"stage": 2, "offload": "cpu", "pin": False, "batch": 8},
    ]
    assert STAGES.size == 8 and STAGES.default == {"stage": 0, "batch": 8}


@pytest.mark.parametrize(
    "point",
    [
        {"stage": 0, "offload": "none", "batch": 8},  # absent where the condition is false
        {"stage": 2, "batch": 8},  # and only there
        {"stage": 2, "offload": "cpu", "pin": True, "batch": 16},
        {"stage": 3, "batch": 8},
        {"stage": 0, "batch": 8, "other": 1},
        {"stage": 0},
        {},
    ],
)
def test_what_is_no_point(point):
    assert not STAGES.allows(point) and point not in STAGES


def test_a_condition_may_name_what_is_declared_later():
    late = space({"offload": ["none", "cpu"], "stage": [1, 2]}, [("offload", "stage == 2")])
    assert list(late.points()) == [{"stage": 1}, {"offload": "none", "stage": 2}, {"offload": "cpu", "stage": 2}]
    assert [list(point) for point in late.points()][1] == ["offload", "stage"]


def test_conditions_in_a_circle():
    with pytest.raises(BadInputError, match="conditions of 'a' and 'b' depend on each other"):
        space({"a": [1, 2], "b": [1, 2], "c": [1]}, [("a", "b == 1"), ("b", "a == 1")])


# -- as by brute force -------------------------------------------------------------------------------

VALUES = st.one_of(
    st.lists(st.integers(-2, 6), min_size=1, max_size=4, unique=True),
    st.integers(1, 9).map(lambda count: range(1, count + 1)),
    st.sampled_from([["on", "off"], ["auto", 1, 2], Decimals(range(1, 7), 10), [8, 2, 4]]),
)
TEXTS = st.sampled_from(
    [
        "a * b == 6", "a + b + c <= 5", "a != on", "b == on or a > 1", "a % 2 == 0", "c / b >= 1", "d < a",
        "d == a + 1", "max(a, b) * min(c, d) == 4", "not (a < b < c)", "a in (1, on)", "(a - b) ** 2 > 3",
        "abs(c - d) < 2", "a > 99", "b // c == 2",
    ]
)  # fmt: skip


def brute_force(choices, conditions, constraints):
    """The keys of all points, by every combination of the choices and absence."""
    parsed = {text: parse(text, choices) for text in [*constraints, *(text for _, text in conditions)]}
    found, absent = set(), object()
    for values in product(*([*each, absent] for each in choices.values())):
        point = {name: value for name, value in zip(choices, values, strict=True) if value is not absent}

        def holds(text, point=point):
            return parsed[text].holds(point)

        def has_all(text, point=point):
            return all(name in point for name in parsed[text].names)

        active = {name: all(has_all(t) and holds(t) for each, t in conditions if each == name) for name in choices}
        allowed = all(not has_all(text) or holds(text) for text in constraints)
        if allowed and all((name in point) == active[name] for name in choices):
            found.add(key_of(point))
    return found


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_the_same_as_by_brute_force(data):
    choices = {name: data.draw(VALUES) for name in "abcd"}

    def some(most):
        texts = data.draw(st.lists(TEXTS, max_size=most))
        kept = []
        for text in texts:
            try:
                kept.append((text, parse(text, choices)))
            except BadInputError:  # `on` is no choice here, or calculates with words
                pass
        return kept

    # Later parameters depend on earlier ones, so there are no circles.
    conditions = [("d", text) for text, each in some(2) if "d" not in each.names]
    conditions += [("c", text) for text, each in some(1) if not {"c", "d"} & set(each.names)]
    constraints = [text for text, _ in some(3)]
    expected = brute_force(choices, conditions, constraints)
    listed = points.LISTED
    try:
        for steps in (listed, 3):  # with 3 steps, almost nothing can be listed: the search works from any place
            points.LISTED = steps
            found = space(choices, conditions, constraints)
            keys = [key_of(point) for point in found.points()]
            assert set(keys) == expected and len(keys) == len(expected)
            assert all(found.allows(point) for point in found.points())
            assert found.size == len(expected) if found.is_exact else found.size >= len(expected)
            if expected:
                assert {key_of(found.point(index)) for index in range(found.size)} == expected
            few, many = found.sample(3, 1), found.sample(10_000, 2)
            assert {key_of(point) for point in many} == expected and len(many) == len(expected)
            assert len({key_of(point) for point in few}) == min(3, len(expected))
            assert found.allows(found.default) == (key_of(found.default) in expected)
    finally:
        points.LISTED = listed


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "model_based"])
@pytest.mark.parametrize("steps", [points.LISTED, 3])
def test_a_search_asks_for_each_point_once(kind, steps, monkeypatch):
    monkeypatch.setattr(points, "LISTED", steps)
    found = space({"a": range(1, 20), "b": range(1, 20), "c": ["x", "y"]}, [], ["a * b == 36"])
    search = Search(kind, found)
    asked = list(iter(search.ask, None))
    assert len(asked) == len({key_of(point) for point in asked}) == 2 * 7
    assert all(found.allows(point) for point in asked)


# -- large spaces ------------------------------------------------------------------------------------


def large(constraint):
    return space({name: range(1, 1001) for name in ("a", "b", "c", "d")}, [("d", "c > 500")], [constraint])


@pytest.mark.parametrize("constraint", ["a * b == 720", "a + b + c < 2000", "a - b == 3"])
def test_a_large_space_costs_little(constraint):
    tracemalloc.start()
    try:
        began = time.process_time()
        found = large(constraint)
        found.sample(10, 1)
        assert found.allows(found.point(found.size // 2))
        assert all(found.allows(point) for point in islice(found.points(), 10))
        assert all(found.allows(point) for point in found.sample(10, 2))
        seconds = time.process_time() - began
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()
    assert seconds < 20  # with the memory traced, on a busy machine; it is a second or less


def test_a_default_in_a_large_space_is_checked_at_once():
    began = time.process_time()
    space({"a": range(1, 10**6), "b": range(1, 10**6)}, [], ["a * b == 720"], {"a": 72, "b": 10}).check()
    assert time.process_time() - began < 1


# -- mistakes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choices", "constraints", "said"),
    [
        (
            {"batch": [8, 16, 32, 64], "accum": [1, 2, 4]},
            ["batch * accum == 64"],
            "the default point (batch=8 accum=1) is excluded by the constraint 'batch * accum == 64'\n"
            "  say what the program uses today, such as: batch=16 accum=4",
        ),
        ({"a": [1, 2], "b": [1, 2]}, ["a * b == 7"], "no point meets the constraint 'a * b == 7'"),
        ({"a": range(1, 10**6), "b": range(1, 10**6)}, ["a + b < 2"], "no point meets the constraint 'a + b < 2'"),
        ({"a": [1, 2], "b": [1, 2]}, ["a < b", "b < a"], "no point meets these constraints together: 'a < b', 'b < a'"),
        ({"a": [1, 2], "b": [1, 2]}, ["a < 2", "b < 1"], "no point meets the constraint 'b < 1'"),
    ],
)
def test_what_excludes_too_much(choices, constraints, said):
    with pytest.raises(BadInputError) as caught:
        space(choices, (), constraints).check()
    assert said in str(caught.value)


def test_conditions_that_leave_nothing():
    with pytest.raises(BadInputError, match="no point meets the constraint 'a < 0'"):
        space({"a": [1, 2], "b": [1]}, [("b", "a == 1")], ["a < 0"]).check()


def test_a_name_that_is_declared_twice():
    with pytest.raises(BadInputError, match="'a' is declared twice"):
        Space([Parameter("a", (1,)), Parameter("a", (2,))]).check()
    with pytest.raises(BadInputError, match="the default of 'a' is not among its choices: 3\n  choose: 1, 2"):
        Space([Parameter("a", (1, 2), 3)]).check()


# -- parameters --------------------------------------------------------------------------------------


@given(st.integers(-50, 50), st.integers(0, 50), st.integers(1, 9), st.sampled_from([1, 4, 10, 1000]))
def test_decimals_are_a_sequence(first, count, step, denominator):
    numbers = Decimals(range(first, first + count * step, step), denominator)
    plain = [(first + index * step) / denominator for index in range(count)]
    assert list(numbers) == plain and len(numbers) == count and list(numbers[1:3]) == plain[1:3]
    assert all(number in numbers and numbers.index(number) == index for index, number in enumerate(plain))
    assert 0.00001 not in numbers and "1" not in numbers and float("nan") not in numbers and float("inf") not in numbers


def test_texts_reach_the_program_as_they_were_typed():
    rate = Parameter("rate", (0.0001, 0.001), texts=("1e-4", "0.0010"))
    assert [rate.text(value) for value in (0.0001, 0.001)] == ["1e-4", "0.0010"]
    assert rate.narrowed((0.001,)).text(0.001) == "0.0010" and rate.narrowed((0.001,)).default == 0.001
    assert Parameter("x", ("on", 3, True, None, 0.5)).text("on") == "on"
    assert [Parameter("x", (3, True, None, 0.5)).text(each) for each in (3, True, None, 0.5)] == [
        "3", "true", "null", "0.5"
    ]  # fmt: skip


def test_a_million_choices_are_described_by_their_ends():
    assert Parameter("n", range(10**6)).as_dict() == {
        "name": "n",
        "choices": {"first": 0, "last": 999999, "count": 10**6},
        "default": 0,
        "ordered": True,
        "memory": False,
        "texts": [],
    }
    assert Parameter("n", (True, "a"), "a").as_dict()["choices"] == [True, "a"]
