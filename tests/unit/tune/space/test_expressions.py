"""The language of conditions and constraints."""

from __future__ import annotations

import ast
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bireme.errors import BadInputError
from bireme.tune.space.expressions import parse

CHOICES = {
    "batch": [8, 16, 32],
    "accum": range(0, 40),
    "mode": ["fast", "small", "max-autotune"],
    "workers": ["auto", 1, 2],
    "fused": [True, False, None],
}


@pytest.mark.parametrize(
    ("text", "point", "holds"),
    [
        ("batch * accum == 256", {"batch": 8, "accum": 32}, True),
        ("batch * accum == 256", {"batch": 8, "accum": 31}, False),
        ("1 < accum <= 3 < batch", {"batch": 8, "accum": 3}, True),
        ("mode == fast", {"mode": "fast"}, True),
        ("mode != fast and not mode == small", {"mode": "max-autotune"}, True),
        ("mode == 'max-autotune' or batch > 8", {"mode": "fast", "batch": 16}, True),
        ("mode in (fast, small)", {"mode": "small"}, True),
        ("mode not in (fast, small)", {"mode": "small"}, False),
        ("batch in [8, -3]", {"batch": 8}, True),
        ("min(batch, accum, 9) + abs(-1) * max(accum, 3) == 8", {"batch": 8, "accum": 4}, True),
        ("batch // 3 == 2 and batch % 3 == 2 and batch / 16 == 0.5 and batch ** 2 == 64", {"batch": 8}, True),
        ("fused == true", {"fused": True}, True),
        ("fused == True", {"fused": False}, False),
        ("fused == 1", {"fused": True}, False),  # True is a word
        ("fused == null", {"fused": None}, True),
        # What has no value is not true.
        ("batch / accum > 1", {"batch": 8, "accum": 0}, False),
        ("accum == 0 or batch / accum > 1", {"batch": 8, "accum": 0}, True),
        ("workers < 4", {"workers": "auto"}, False),
        ("workers < 4", {"workers": 2}, True),
        ("(0 - batch) ** 0.5 < 9", {"batch": 8}, False),
        ("9 ** 9 ** 9 ** batch > 0", {"batch": 8}, False),
        ("2.5 ** batch ** batch > 0", {"batch": 32}, False),
    ],
)
def test_what_holds(text, point, holds):
    assert parse(text, CHOICES).holds(point) is holds


def test_names_are_listed_once():
    assert parse("batch > accum or batch == 8", CHOICES).names == ("batch", "accum")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("batch * accm == 256", "unknown name 'accm' at character 9 of 'batch * accm == 256'\n  did you mean 'accum'?"),
        ("zzz == 3", "the parameters: batch, accum, mode, workers, fused"),
        ("batch = 3", "'=' is not a comparison at character 7 of 'batch = 3'\n  write == to compare"),
        ("batch > 3 && accum > 2", "unknown sign '&&' at character 11"),
        ("!batch", "unknown sign '!' at character 1 of '!batch'\n  write 'not'"),
        ("batch >", "not an expression at character"),
        ("batch > 3\n", ""),
        ("mode < 3", "'mode' has no numbers at character 1"),
        ("batch + fast", "'fast' is a word, not a number at character 9"),
        ("batch + 'x'", "not a number at character 9"),
        (
            "mode == fst",
            "'fst' is not a choice of 'mode' at character 9 of 'mode == fst'\n  its choices: fast, small, max",
        ),
        ("mode in (fast, smal)", "'smal' is not a choice of 'mode' at character 16"),
        ("mode == max-autotune", "'max' without arguments at character 9"),
        ("batch in 3", "expected a list of values at character 10"),
        ("batch is 3", "write == or !="),
        ("", "the expression is empty"),
        ("3 < 4", "no parameter is named"),
        ("min() == batch", "write min(…)"),
        ("abs(batch, 1) == 2", "abs takes one value"),
        ("__import__('os').system('true')", "no such function"),
        ("open('/etc/passwd') == batch", "no such function: open at character 1"),
        ("batch.real == 3", "not allowed in an expression at character 1"),
        ("mode == (lambda: 3)", "not allowed in an expression at character 10"),
        ("[x for x in (1, 2)] == batch", "not allowed in an expression"),
        ("batch if batch else 3", "not allowed in an expression"),
        ("f'{batch}' == 3", "not allowed in an expression"),
        ("batch == (batch := 3)", "not allowed in an expression at character 11"),
        ("~batch == 3", "unknown sign '~'"),
        ("batch << 99999999", "not allowed in an expression"),
        ("batch == 1e999", "too large at character 10"),
        ("(" * 500 + "batch", "at character"),
        ("-" * 900 + "batch == 3", "nested too deeply"),
        ("batch == " + "1 + " * 400, "an expression of 1609 characters"),
        ("batch == '\0'", ""),
        ("mode == 'ä' or ü == 3", "at character 9"),
        ("mode == fast or 'ä' == mode and ü == 3", "at character 17"),
        ("mode == fast or (1 == batch and\n ü == 3)", "unknown name 'ü' at character 34"),
    ],
)
def test_mistakes_are_pointed_at(text, said):
    if text == "batch > 3\n":
        parse(text, CHOICES)
        return
    with pytest.raises(BadInputError) as caught:
        parse(text, CHOICES, where="--constraint")
    assert said in str(caught.value) and str(caught.value).startswith("--constraint: ")
    assert str(caught.value).count("\n") <= 1


NUMBERS = st.sampled_from(["a", "b", "c", "0", "1", "2", "7", "0.5"])
TERMS = st.recursive(
    NUMBERS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%", "**"]), inner).map(
            lambda each: f"({each[0]} {each[1]} {each[2]})"
        ),
        st.tuples(st.sampled_from(["min", "max"]), inner, inner).map(lambda each: f"{each[0]}({each[1]}, {each[2]})"),
        inner.map(lambda each: f"abs(-{each})"),
    ),
    max_leaves=5,
)
COMPARISONS = st.tuples(TERMS, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), TERMS).map(" ".join)
TEXTS = st.recursive(
    COMPARISONS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(lambda each: f"({each[0]} {each[1]} {each[2]})"),
        inner.map(lambda each: f"not ({each})"),
    ),
    max_leaves=3,
).map(lambda text: f"a == a and ({text})")
SETS = st.tuples(*[st.lists(st.integers(-3, 6), min_size=1, max_size=3, unique=True).map(sorted)] * 3)


def as_python(text, point):
    """What Python makes of the text; False if it has no value."""
    try:
        value = eval(compile(ast.parse(text, mode="eval"), "", "eval"), {"min": min, "max": max, "abs": abs}, point)
    except (ArithmeticError, TypeError):  # TypeError: complex numbers are in no order
        return False
    return bool(value)


@settings(max_examples=200, deadline=None)
@given(TEXTS, SETS)
def test_it_is_python_and_intervals_never_exclude_what_holds(text, sets):
    choices = dict(zip("abc", sets, strict=True))
    expression = parse(text, choices)
    held = []
    for values in product(*sets):
        point = dict(zip("abc", values, strict=True))
        holds = expression.holds(point)
        if "**" not in text:  # a power that is too large, or a complex number, has no value here
            assert holds is as_python(text, point)
        held.append(holds)
        assert expression.may_hold({**{name: (value, value) for name, value in point.items()}}) is holds
    if any(held):
        assert expression.may_hold({name: (values[0], values[-1]) for name, values in choices.items()})
        assert expression.may_hold(dict.fromkeys("abc"))
