"""The words of --param, --env, --in, --when, --constraint and --default."""

from __future__ import annotations

import json
import math
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.errors import BadInputError
from bireme.tune.define.declarations import Binding, Declaration, declare, fill
from bireme.tune.space.parameter import Parameter
from bireme.tune.space.value_lists import read


def values(text, **options):
    return list(read("x", text, where="--param", **options).choices)


def texts(text):
    parameter = read("x", text, where="--param")
    return [parameter.text(value) for value in parameter.choices]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8", [8]),
        ("8,16", [8, 16]),
        ("on,off", ["on", "off"]),
        ("true,false", ["true", "false"]),
        ("auto,1,2.5,-3,1e-4", ["auto", 1, 2.5, -3, 0.0001]),
        ("'a,b',c\\,d,\"3\",''", ["a,b", "c,d", "3", ""]),
        ("host:80,C:\\dir", ["host:80", "C:\\dir"]),
        ("../a,./b", ["../a", "./b"]),
        ("1..4", [1, 2, 3, 4]),
        ("-1..1", [-1, 0, 1]),
        ("0..100:25", [0, 25, 50, 75, 100]),
        ("1..8:3", [1, 4, 7]),
        ("0.1..0.5:0.1", [0.1, 0.2, 0.3, 0.4, 0.5]),
        ("0..1:0.25", [0.0, 0.25, 0.5, 0.75, 1.0]),
        ("8..512:log2", [8, 16, 32, 64, 128, 256, 512]),
        ("3..30:log2", [3, 6, 12, 24]),
        ("0.5..4:log2", [0.5, 1, 2, 4]),
        ("1e-5..1e-2:log10", [1e-05, 0.0001, 0.001, 0.01]),
        ("1e-3..1e-1:log:7", [0.001, 0.00215, 0.00464, 0.01, 0.0215, 0.0464, 0.1]),
        ("1e-4..1e-1:log:4", [0.0001, 0.001, 0.01, 0.1]),
        ("1..100:log:7", [1, 2, 5, 10, 22, 46, 100]),
        ("5..5", [5]),
    ],
)
def test_values(text, expected):
    found = values(text)
    assert found == expected and [type(each) for each in found] == [type(each) for each in expected]


def test_twenty_points():
    found = values("1e-4..1e-1:log:20")
    assert len(found) == 20 and found[0] == 1e-4 and found[-1] == 0.1
    steps = [math.log(two / one) for one, two in pairwise(found)]
    assert max(steps) < 1.1 * min(steps)
    assert len(set(values("1..1.001:log:500"))) == 500


@pytest.mark.parametrize(
    ("text", "first", "within", "without"),
    [
        ("0.0..0.9", [0.0, 0.0009, 0.0018], [0.123456, 1e-9, 0, 0.9], [-1e-9, 0.91, True, "0.1", float("nan")]),
        ("0..1.0", [0.0, 0.001, 0.002], [0.5], [2]),
        ("-0.5..0.5", [-0.5, -0.499, -0.498], [0, 0.123456], [0.6]),
        ("1e-5..1e-1:log", [1e-05, 1.002e-05, 1.005e-05], [3.14159e-5, 0.1], [0.0, 0.11]),
        ("1.0..100:log", [1.0, 1.002, 1.005], [99.999], [0.5]),
        ("1..1000000:log", [1, 1, 1], [2, 3.0, 999_999], [1.5, 0, True]),
        ("8..512:log", [8, 8, 8], [9, 511], [8.5, 513]),
    ],
)
def test_intervals(text, first, within, without):
    """Any number between the ends may be a value; those that are proposed are short, in order and close together."""
    parameter = read("x", text, where="")
    numbers = list(parameter.choices)
    assert numbers[:3] == first and numbers == sorted(numbers) and parameter.ordered and parameter.default == first[0]
    assert all(map(parameter.choices.__contains__, [*within, *numbers])) and not any(
        map(parameter.choices.__contains__, without)
    )
    assert max(len(f"{number:g}") for number in numbers) <= 9
    assert {type(number) for number in numbers} == {int if text in ("1..1000000:log", "8..512:log") else float}
    assert all(numbers[parameter.index(number)] == number for number in numbers if isinstance(number, float))
    middle = parameter.index(within[0])
    assert min(numbers[middle - 1 : middle + 2], key=lambda each: abs(each - within[0])) == pytest.approx(
        within[0], abs=0.01 * numbers[-1]
    )
    assert Parameter.choices_of(json.loads(json.dumps(parameter.as_dict()))["choices"]) == parameter.choices


def test_a_logarithmic_interval_has_as_much_of_each_decade():
    for text in ("1e-5..1e-1:log", "1..10000:log"):
        numbers = read("x", text, where="").choices
        decades = Counter(math.floor(math.log10(each) + 1e-9) for each in numbers[:-1])
        assert max(decades.values()) <= 1.2 * min(decades.values())


def test_few_whole_numbers_are_no_interval():
    assert values("1..20:log") == list(range(1, 21)) and values("0.5..0.5") == [0.5]


def test_marks():
    plain, memory = read("x", "8..64:log2", where=""), read("x", "8..64:log2:memory", where="")
    assert plain.ordered and not plain.memory and memory.memory and memory.choices == plain.choices
    words = read("x", "small,large:ordered:memory", where="")
    assert words.ordered and words.memory and words.choices == ("small", "large")
    assert not read("x", "small,large", where="").ordered and not read("x", "auto,1,2", where="").ordered


def test_a_program_gets_what_was_typed():
    assert texts("1e-4,0.0010,007,+5,on") == ["1e-4", "0.0010", "007", "+5", "on"]
    assert texts("8,16,0.5") == ["8", "16", "0.5"]
    assert texts("0.1..0.3:0.1") == ["0.1", "0.2", "0.3"] and texts("1..3") == ["1", "2", "3"]
    assert texts("'3.1','3.10'") == ["3.1", "3.10"]


def test_a_file_gets_values():
    assert values("true,false,null,on,3", in_file=True) == [True, False, None, "on", 3]
    assert values("'true'", in_file=True) == ["true"]


def test_a_range_of_a_billion_costs_nothing():
    assert len(read("x", "0..1000000000", where="").choices) == 10**9 + 1
    assert len(read("x", "0..1000:0.000001", where="").choices) == 10**9 + 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no values for 'x'\n  list them: x=8,16,32, or a range: x=1..8"),
        ("8,,16", "an empty value for 'x'"),
        ("8,16,8", "8 is listed twice"),
        ("3.1,3.10", "3.1 and 3.10 are the same number\n  quote them if they are words: '3.1','3.10'"),
        ("8..4", "from the larger number to the smaller one: '8..4'\n  write 4..8"),
        ("1..9:0", "a step of 0"),
        ("1..9:-1", "a step of -1"),
        ("0..9:log2", "a logarithmic scale cannot start at 0: '0..9:log2'\n  start above 0"),
        ("1..9:lg2", "unknown kind of range: 'lg2' in '1..9:lg2'\n  did you mean 'log2'?"),
        ("1..9:log:1", "1 values on a logarithmic scale"),
        ("1..9:log:99999", "99999 values on a logarithmic scale"),
        ("1..4,8", "a range stands alone, but '1..4' is in a list"),
        ("8..x", "not a range of numbers: '8..x'"),
        ("x..8", "not a range of numbers: 'x..8'"),
        ("8,16:memmory", "unknown kind of values: 'memmory'\n  did you mean 'memory'?"),
        ("8,16:log2", "'log2' belongs to a range"),
        ("'a,b", 'a quote is not closed: "\'a,b"'),
        ("'a'b,c", "'b,c' after a quoted value"),
        ("1e999,2", "a number that is too large: 1e999"),
        ("1e-300..1:log", "too large or too small"),
        ("1..1e300", "too large or too small"),
    ],
)
def test_malformed_values(text, said):
    with pytest.raises(BadInputError) as caught:
        read("x", text, where="--param")
    assert said in str(caught.value) and str(caught.value).startswith("--param: ")
    assert str(caught.value).count("\n") <= 1


@given(st.text(alphabet="0189.,:'\"\\-+eglo2mryab ", max_size=20))
def test_any_text_is_read_or_refused(text):
    try:
        parameter = read("x", text, where="--param")
    except BadInputError:
        return
    few = parameter.choices[:100]
    assert len(few) and all(parameter.index(value) == index for index, value in enumerate(few))
    assert len(set(map(parameter.text, few))) == len(few)
    json.dumps(parameter.as_dict(), allow_nan=False)


# -- whole declarations ------------------------------------------------------------------------------


def test_every_way_to_a_program():
    found = declare(
        params=["batch=8..32:log2:memory", "--compile=on,off", "-j=1,2", "--a-b.c=1,2"],
        envs=["OMP_NUM_THREADS=1,2"],
        files=["config.yaml:training.lr=1e-3,1e-2", "config.yaml:model.fused=true,false"],
        args=["--batch", "{batch}", "--config", "config.yaml"],
    )
    assert found.bindings == (
        Binding("batch", "argument"),
        Binding("compile", "flag", "--compile"),
        Binding("j", "flag", "-j"),
        Binding("a_b_c", "flag", "--a-b.c"),
        Binding("OMP_NUM_THREADS", "environment", "OMP_NUM_THREADS"),
        Binding("lr", "file", "config.yaml", "training.lr"),
        Binding("fused", "file", "config.yaml", "model.fused"),
    )
    assert found.space.size == 3 * 2**6
    assert found.space.default == {
        "batch": 8, "compile": "on", "j": 1, "a_b_c": 1, "OMP_NUM_THREADS": 1, "lr": 0.001, "fused": True
    }  # fmt: skip
    assert found.texts(found.space.default)["lr"] == "1e-3" and found.texts(found.space.default)["fused"] == "true"
    json.dumps(found.as_record(), allow_nan=False)
    assert isinstance(found, Declaration)


def test_names_of_keys_that_clash():
    found = declare(params=["--lr=1,2"], files=["c.json:a.lr=1,2", "c.json:b.lr=1,2", "d.json:layers.0=1,2"])
    assert [each.name for each in found.space.parameters] == ["lr", "a_lr", "b_lr", "_0"]


def test_conditions_constraints_and_defaults():
    found = declare(
        params=["stage=0..3", "offload=none,cpu", "pin=true,false", "batch=8..64:log2", "accum=1..8:log2"],
        conditions=["offload,pin only if stage >= 2"],
        constraints=["batch * accum == 64"],
        defaults=["batch=64,accum=1", "stage=2"],
        args=["{stage}{offload}{pin}{batch}{accum}"],
    )
    assert found.space.default == {"stage": 2, "offload": "none", "pin": "true", "batch": 64, "accum": 1}
    assert found.space.size == (2 + 2 * 4) * 4
    assert {"stage": 0, "batch": 8, "accum": 8} in found.space


def test_defaults_are_found_by_their_text():
    found = declare(params=["--rate=0.0010,1e-4", "--names='a,b',c"], defaults=["rate=1e-4,names='a,b'"])
    assert found.space.default == {"rate": 1e-4, "names": "a,b"}
    assert declare(params=["--rate=0.0010,1e-4"], defaults=["rate=0.0001"]).space.default == {"rate": 1e-4}
    assert declare(files=["c.json:x=true,false"], defaults=["x=false"]).space.default == {"x": False}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({}, "no parameters: nothing varies"),
        ({"params": ["batch"]}, "--param: no name and values: 'batch'\n  write it like: batch=8,16,32"),
        ({"params": ["a-b=1,2"]}, "--param: not a name: 'a-b'\n  use letters, digits and '_', such as a_b"),
        ({"params": ["---=1,2"]}, "not a flag"),
        ({"envs": ["1A=1,2"]}, "--env: not a name: '1A'"),
        ({"files": ["c.json=1,2"]}, "--in: no file and key before '='"),
        ({"files": ["c.json:a..b=1,2"]}, "--in: no file and key before '='"),
        ({"params": ["--a=1", "a=2"]}, "--param: the parameter 'a' is declared twice"),
        ({"params": ["--a=1", "--a=2"]}, "--param: the parameter 'a' is declared twice"),
        (
            {"params": ["batch=1,2"], "args": ["-b", "{bach}"]},
            "for {bach} in the program's arguments\n  did you mean {batch}? Write {{bach}} for a literal {bach}",
        ),
        ({"params": ["batch=1,2"], "args": ["-b"]}, "'batch' does not reach the program\n  write {batch} in"),
        ({"params": ["batch=1,2"], "args": ["{{batch}}"]}, "'batch' does not reach the program"),
        ({"params": ["--a=1,2"], "conditions": ["a if b"]}, "--when: no 'only if' in 'a if b'"),
        ({"params": ["--abc=1,2"], "conditions": ["abd only if abc > 1"]}, "no parameter 'abd'\n  did you mean"),
        ({"params": ["--abc=1,2"], "conditions": ["abc only if abd > 1"]}, "--when: unknown name 'abd' at character 1"),
        ({"params": ["--abc=1,2"], "conditions": ["abc only if abc > 1"]}, "--when: the conditions of 'abc' depend"),
        ({"params": ["--abc=1,2"], "constraints": ["abc >"]}, "--constraint: not an expression at character"),
        ({"params": ["--abc=1,2"], "constraints": ["abc > 2"]}, "--constraint: no point meets the constraint"),
        (
            {"params": ["--a=1,2", "--b=1,2"], "constraints": ["a * b == 2"]},
            "--constraint: the default point (a=1 b=1) is excluded by the constraint 'a * b == 2'\n"
            "  say what the program uses today, such as: --default a=1,b=2",
        ),
        ({"params": ["--abc=1,2"], "defaults": ["abd=1"]}, "--default: no parameter 'abd'\n  did you mean 'abc'?"),
        ({"params": ["--abc=1,2"], "defaults": ["abc=3"]}, "--default: '3' is not a choice of 'abc'\n  choose: 1, 2"),
        ({"params": ["--abc=1,2"], "defaults": ["abc"]}, "--default: no name and values: 'abc'"),
    ],
)  # fmt: skip
def test_mistakes(words, said):
    with pytest.raises(BadInputError) as caught:
        declare(**words)
    assert said in str(caught.value)
    assert str(caught.value).count("\n") <= 1


# -- places ------------------------------------------------------------------------------------------


def test_places_are_filled():
    args = ["-b", "{batch}", "--x={batch}/{mode}", "{{batch}}", '{"a":{"b":{batch}}}', "{print $1}", "{}", "{other}"]
    assert fill(args, {"batch": "8", "mode": "on"}) == (
        "-b", "8", "--x=8/on", "{batch}", '{"a":{"b":8}}', "{print $1}", "{}", "{other}"
    )  # fmt: skip


def test_what_is_absent_leaves_no_trace():
    args = ["x.py", "--offload", "{offload}", "--to={offload}", "{offload}", "--keep=1", "{offload}", "end"]
    assert fill(args, {}, {"offload"}) == ("x.py", "--keep=1", "end")
    assert fill(args, {"offload": "cpu"})[:3] == ("x.py", "--offload", "cpu")
