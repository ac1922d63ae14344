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
CHOICES = {(option.name, choice) for option in OPTIONS for choice in option.choices}


def uses(options: tuple[conflicts.Use, ...]) -> list[tuple[str, str]]:
    """Each option with a value that a rule is about; "": with any."""
    return [
        (use, "") if isinstance(use, str) else (use.option, value)
        for use in options
        for value in ([""] if isinstance(use, str) else use.values)
    ]


PAIRS = [(row, one, other) for row in conflicts.EXCLUDES for one in uses(row.options) for other in uses(row.others)]


@pytest.mark.parametrize(("row", "one", "other"), PAIRS)
def test_options_that_exclude_each_other(row, one, other):
    for name, value in (one, other):
        assert (name, value) in CHOICES if value else name in NAMES
    assert {row.when, row.unless} <= NAMES | {""}
    used = {**dict([one, other]), **({row.when: True} if row.when else {})}
    with pytest.raises(BadInputError) as caught:
        conflicts.refuse(used)
    assert f"{' '.join(one).strip()} cannot be used with {' '.join(other).strip()}" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 2
    if row.unless:
        conflicts.refuse({**used, row.unless: True})
    if row.when:
        conflicts.refuse(dict([one, other, ("--node_rank", 0)]))


@pytest.mark.parametrize("row", conflicts.NEEDS, ids=lambda row: row.option)
def test_options_that_need_another(row):
    assert {row.option, row.other} <= NAMES
    with pytest.raises(BadInputError, match=f"{row.option} only works with {row.other}\n  {row.hint}"):
        conflicts.refuse({row.option: True})
    conflicts.refuse({row.option: True, row.other: True})


@pytest.mark.parametrize("words", [["--restarts", "0"], ["--node_rank", "0"], ["--quiet"], ["--output", "raw"]])
def test_what_is_in_use_on_a_command_line(words):
    used = conflicts.of_options(parse(select("run"), [*words, "s.py"]).options)
    assert used == {"--restarts": {}, "--output": {"--output": "raw"}, "--quiet": {"--quiet": True}}.get(
        words[0], {"--node_rank": 0}
    )


FROM_PYTHON = [
    ({"include": "localhost:0", "exclude": "localhost:1"}, "include cannot be used with exclude"),
    ({"include": "localhost:0", "num_gpus": 1}, "num_gpus cannot be used with include"),
    *(
        ({"native_ranks": True, name: value}, f"{name} cannot be used with native_ranks")
        for name, value in (("fold", True), ("log_dir", "x"), ("rank_log_dir", "x"), ("save_pid", True))
    ),
    ({"native_ranks": True, "wrap": ("env",), "wrap_ranks": (1,)}, "wrap_ranks cannot be used with native_ranks"),
    ({"native_ranks": True, "output": "prefix"}, "output prefix cannot be used with native_ranks"),
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
