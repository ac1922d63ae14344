"""Arguments reach the rank byte for byte: no shell reads them, and none is taken for an option of ours."""

from __future__ import annotations

import sys

import pytest

from tests.command.conftest import LOOK
from tests.kit.hard_words import HARD, latin

PYTHON, MODULE = sys.executable, "tests.kit.programs.look"
STARTS = {
    "script": ((), (LOOK,), [PYTHON, "-u", str(LOOK)]),
    "under a wrapper": (("--wrap", "env"), (LOOK,), [PYTHON, "-u", str(LOOK)]),
    "program": (("--no_python",), (PYTHON, LOOK), [PYTHON, str(LOOK)]),
    "module": (("-m",), (MODULE,), [PYTHON, "-u", "-m", MODULE]),
}


@pytest.mark.parametrize("start", STARTS)
def test_hard_ones_arrive_as_they_were(look, start):
    options, program, argv = STARTS[start]
    for found in look(*options, program=program, args=HARD):
        assert found["argv"] == [*argv, *map(latin, HARD)]


@pytest.mark.parametrize("before", [(), ("--",)], ids=["plain", "after --"])
def test_options_of_ours_after_the_script_are_the_scripts(look, before):
    mine = ["--num_gpus", "9", "--dry_run", "--", "-q", "--nonsense"]
    for found in look(*before, args=mine):
        assert found["argv"][3:] == mine


def test_many(look):
    many = [f"--key{i}={'v' * 100}" for i in range(2000)]
    for found in look(args=many):
        assert found["argv"][3:] == many
