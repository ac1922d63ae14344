"""No flag of the launch is lost on its way to experiments, nor changed."""

from __future__ import annotations

import pytest

from bireme.cli.options import RUN, Option, parse
from bireme.cli.tune import NOT_SHARED, words_of

OPTIONS = [option for group in RUN.values() for option in group]
STRANGE = "-x 'a b' \"c\" $HOME;=\n*ü"


def values(option: Option) -> list[str]:
    if option.kind == "choice":
        return [choice for choice in option.choices if choice != option.default]
    return {
        "count": ["7"],
        "range": ["7", "2:4"],
        "seconds": ["0", "2.5", "1e-07", "100000"],
        "word": [STRANGE],
        "list": [STRANGE],
    }[option.kind]


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.dest)
def test_words_say_what_was_said(option):
    given = [option.names[0]] if option.kind == "flag" else [f"{option.names[0]}={value}" for value in values(option)]
    for word in given:
        parsed = parse(RUN, [word, "train.py", "--an", "argument"])
        words = words_of(parsed)
        assert words, "it is not its default"
        assert parse(RUN, [*words, "train.py", "--an", "argument"]) == parsed
        assert bool(words_of(parsed, without=NOT_SHARED)) == (option.dest not in NOT_SHARED)


def test_a_list_keeps_its_order():
    parsed = parse(RUN, ["--export", "B=1", "--export", "A=2", "--export", "B*", "train.py"])
    assert words_of(parsed) == ("--export=B=1", "--export=A=2", "--export=B*")


def test_defaults_are_left_out():
    assert words_of(parse(RUN, ["train.py"])) == ()
