"""Arguments reach the rank byte for byte: no shell reads them, and none is taken for an option of ours."""

from __future__ import annotations

import os
import sys

import pytest

from tests.command.conftest import LOOK

HARD = [
    "a b",
    "  ",
    "",
    "'",
    '"',
    "$HOME",
    "`id`",
    "$(id)",
    ";",
    "&",
    "|",
    "*",
    "?",
    "[a]",
    "~",
    "!!",
    "#",
    "\\",
    "a\nb",
    "a\tb\r",
    '{"a": [1, "x y", null], "b": \'c\'}',
    "-4C",
    "-",
    "--",
    "--num_gpus",
    "7",
    "--help",
    "--local_rank=9",
    "-i",
    "--opt=",
    "=",
    "{rank}",
    "%d",
    "ü 漢字 🚣",
    os.fsdecode(b"\xff\xfe\xc3"),
    os.fsdecode(bytes(range(1, 256))),
]


def as_bytes(words):
    return [os.fsencode(word).decode("latin-1") for word in words]


def test_hard_ones_arrive_as_they_were(look):
    for found in look(args=HARD):
        assert found["argv"] == [sys.executable, "-u", str(LOOK), *as_bytes(HARD)]


def test_under_a_wrapper(look):
    for found in look("--wrap", "env", args=HARD):
        assert found["argv"] == [sys.executable, "-u", str(LOOK), *as_bytes(HARD)]


def test_of_a_program_without_python(look):
    for found in look("--no_python", program=(sys.executable, LOOK), args=HARD):
        assert found["argv"] == [sys.executable, str(LOOK), *as_bytes(HARD)]


def test_of_a_module(look):
    for found in look("-m", program=("tests.kit.programs.look",), args=HARD):
        assert found["argv"] == [sys.executable, "-u", "-m", "tests.kit.programs.look", *as_bytes(HARD)]


@pytest.mark.parametrize("before", [(), ("--",)], ids=["plain", "after --"])
def test_options_of_ours_after_the_script_are_the_scripts(look, before):
    mine = ["--num_gpus", "9", "--dry_run", "--", "-q", "--nonsense"]
    for found in look(*before, args=mine):
        assert found["argv"][3:] == mine


def test_many(look):
    many = [f"--key{i}={'v' * 100}" for i in range(2000)]
    for found in look(args=many):
        assert found["argv"][3:] == many
