"""Options that cannot be used together: every row of the tables, on the command line and from Python."""

from __future__ import annotations

import pytest

import bireme
from bireme.cli.parser import parse
from bireme.errors import BadInputError
from bireme.job import JobSpec, Program
from bireme.options import conflicts
from bireme.options.table import OPTIONS, select

NAMES = {option.name for option in OPTIONS} | {conflicts.ELASTIC_RANGE, conflicts.MIG}
CHOICES = {f"{option.name} {choice}" for option in OPTIONS for choice in option.choices}
PAIRS = [(row, other) for row in conflicts.EXCLUDES for other in row.others]


@pytest.mark.parametrize(("row", "other"), PAIRS, ids=lambda value: getattr(value, "option", value))
def test_options_that_exclude_each_other(row, other):
    assert {row.option, other} <= NAMES | CHOICES
    assert {row.when, row.unless} <= NAMES | {""}
    with pytest.raises(BadInputError) as caught:
        conflicts.refuse({row.option, other, row.when} - {""})
    assert f"{row.option} cannot be used with {other}" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 2
    if row.unless:
        conflicts.refuse({row.option, other, row.when, row.unless} - {""})


@pytest.mark.parametrize("row", conflicts.NEEDS, ids=lambda row: row.option)
def test_options_that_need_another(row):
    assert {row.option, row.other} <= NAMES
    with pytest.raises(BadInputError, match=f"{row.option} only works with {row.other}\n  {row.hint}"):
        conflicts.refuse({row.option})
    conflicts.refuse({row.option, row.other})


@pytest.mark.parametrize("words", [["--restarts", "0"], ["--node_rank", "0"], ["--quiet"], ["--output", "raw"]])
def test_what_is_in_use_on_a_command_line(words):
    used = conflicts.of_options(parse(select("run"), [*words, "s.py"]).options)
    assert used == {"--restarts": set(), "--output": {"--output", "--output raw"}}.get(words[0], {words[0]})


FROM_PYTHON = [
    ({"include": "localhost:0", "exclude": "localhost:1"}, "include cannot be used with exclude"),
    ({"include": "localhost:0", "num_gpus": 1}, "num_gpus cannot be used with include"),
    ({"native_ranks": True, "fold": True}, "fold cannot be used with native_ranks"),
    ({"native_ranks": True, "output": "rank0"}, "output rank0 cannot be used with native_ranks"),
    ({"native_ranks": True, "restarts": 2}, "restarts cannot be used with native_ranks"),
    ({"wrap_ranks": (0,)}, "wrap_ranks only works with wrap"),
    ({"min_nodes": 2}, "min_nodes only works with elastic"),
    ({"by_hand": True}, "by_hand only works with node_rank"),
]


@pytest.mark.parametrize(("fields", "says"), FROM_PYTHON, ids=lambda value: " ".join(value))
@pytest.mark.parametrize("start", [bireme.run, bireme.plan])
def test_python_refuses_the_same(start, fields, says):
    with pytest.raises(BadInputError) as caught:
        start(JobSpec(Program("absent.py"), **fields))
    assert str(caught.value).startswith(says)
