"""Goals and limits: what the words mean, and what is said about words that mean nothing."""

from __future__ import annotations

import pytest

from bireme.errors import BadInputError
from bireme.tune.metrics.metric import Goal, Source, parse


def test_the_kinds_of_sources() -> None:
    words = ["samples/s: {}", "out/r.json:train.rate", "tokens", "time", "peak_memory", "peak_gpu_memory"]
    kinds = ["pattern", "file", "reported", "clock", "peak_memory", "peak_gpu_memory"]
    found = [parse([("maximize", word)]).goals[0].source for word in words]
    assert [source.kind for source in found] == kinds
    assert (found[1].path, found[1].key) == ("out/r.json", "train.rate")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("samples/s: {}", "samples/s"),
        ('"tps" = {}', "tps"),
        ("{} MiB/s", "MiB/s"),
        ("Run Time:  real {}", "Run Time: real"),
        ("r.json:a.b", "b"),
        ("time", "time"),
    ],
)
def test_the_name_of_a_figure(text: str, name: str) -> None:
    assert parse([("maximize", text)]).goals == (Goal(name, "maximize", parse([("minimize", text)]).goals[0].source),)


def test_two_figures_have_two_names() -> None:
    measure = parse([("maximize", "p99: {}"), ("minimize", "p99 = {}")], ["p99: {} < 3"])
    assert measure.sources == {"p99": Source("pattern", "p99: {}"), "p99 = {}": Source("pattern", "p99 = {}")}
    assert measure.limits[0].name == "p99"


@pytest.mark.parametrize(
    ("limit", "figure", "words"),
    [
        ("p99: {} < 200", 231, "p99 is 231, the limit is < 200"),
        ("p99: {} < 200", 200, "p99 is 200, the limit is < 200"),
        ("p99: {} < 200ms", 0.231, "p99 is 231 ms, the limit is < 200 ms"),
        ("p99: {} ms < 0.2s", 231, "p99 is 231, the limit is < 200"),
        ("peak_memory<=16GiB", 20 * 2**30, "peak_memory is 20 GiB, the limit is <= 16 GiB"),
        ("time < 5min", 330, "time is 5.5 min, the limit is < 5 min"),
        ("time < 300", 330, "time is 330 s, the limit is < 300 s"),
        ("accuracy >= .9", 0.85, "accuracy is 0.85, the limit is >= 0.9"),
        ("errors: {} <= 5%", 5.000001, "errors is 5.000001 %, the limit is <= 5%"),
        ("r.json:p99 < 1,500", 1501, "p99 is 1501, the limit is < 1500"),
    ],
)
def test_a_limit_that_is_broken(limit: str, figure: float, words: str) -> None:
    measure = parse([("maximize", "rate")], [limit])
    assert measure.over({measure.limits[0].name: figure}) == words
    kept = figure / 2 if "<" in limit else figure * 2
    assert measure.over({measure.limits[0].name: kept}) == ""


@pytest.mark.parametrize(
    ("goal", "words"),
    [
        ("samples/s", "--maximize: no {} in the pattern 'samples/s'\n  write {} for the number"),
        ("loss {loss}", "--maximize: {loss} in the pattern 'loss {loss}'\n  write {} for the number"),
        ("a {} b {}", "--maximize: more than one {} in the pattern 'a {} b {}'\n  a pattern finds one number"),
        ("{}", "--maximize: the pattern '{}' would match any number\n  write the text around it"),
        (" ", "--maximize: the figure is missing\n  as in"),
        ("r.json:a..b", "--maximize: not a key: 'a..b'\n  as in"),
    ],
)
def test_a_goal_that_means_nothing(goal: str, words: str) -> None:
    with pytest.raises(BadInputError) as caught:
        parse([("maximize", goal)])
    assert str(caught.value).startswith(words)


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ("p99: {} 200", "--limit: no <, <=, > or >= in 'p99: {} 200'\n  as in"),
        ("p99: {} == 200", "--limit: no <, <=, > or >= in"),
        ("p99: {} <", "--limit: no number after < in 'p99: {} <'"),
        ("p99: {} < many", "--limit: 'many' is not a number in 'p99: {} < many'"),
        ("p99: {} < 3 parsecs", "--limit: unknown unit: 'parsecs' in 'p99: {} < 3 parsecs'\n  the units are ns, us,"),
        ("< 200", "--limit: the figure is missing\n  as in"),
        ("{} < 200", "--limit: the pattern '{}' would match any number"),
        ("peak_memory < 16", "--limit: give peak_memory a unit, such as 16GiB: 'peak_memory < 16'"),
        ("peak_memory < 16s", "--limit: give peak_memory a unit, such as 16GiB: 'peak_memory < 16s'"),
        ("time < 3GB", "--limit: give time a unit, such as 300s: 'time < 3GB'"),
        ("rate < 3ms", "--limit: the unit of the figure is not known, but the limit has ms: 'rate < 3ms'\n  write"),
        ("{} it/s < 3ms", "--limit: the unit of the figure is not known, but the limit has ms"),
        ("{} ms < 3GiB", "--limit: ms and GiB cannot be compared: '{} ms < 3GiB'"),
    ],
)
def test_a_limit_that_means_nothing(limit: str, words: str) -> None:
    with pytest.raises(BadInputError) as caught:
        parse([("maximize", "rate")], [limit])
    assert str(caught.value).startswith(words)


def test_the_number_of_goals() -> None:
    for goals, words in (
        ([], "no goal\n  add --maximize 'samples/s: {}', or --minimize time"),
        (["a", "b", "c"], "3 goals, but at most two are allowed\n  give the others as"),
        (["a", "a"], "--maximize: given twice: 'a'"),
    ):
        with pytest.raises(BadInputError) as caught:
            parse([("maximize", goal) for goal in goals])
        assert str(caught.value).startswith(words)
