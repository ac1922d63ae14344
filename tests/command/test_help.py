"""The help pages: every option, in groups, with examples, wrapped to the width of the terminal."""

from __future__ import annotations

import pytest

from bireme.options.table import COMMANDS, SUBCOMMANDS, select


def test_every_option_of_run_is_on_the_page(stage):
    done = stage.run("run", "--help-all")
    assert (done.returncode, done.stderr) == (0, "")
    for title, options in select("run").items():
        assert f"\n{title}:\n" in done.stdout
        for option in options:
            for name in option.names:
                assert name in done.stdout
    assert done.stdout.count("  bireme run ") >= 5


PAGES = [["--help"], *(["help", *name.split(), "--all"] for name in (*COMMANDS, *SUBCOMMANDS))]
PAGES += [[*name.split(), "--help"] for name in (*COMMANDS, *SUBCOMMANDS)]


@pytest.mark.parametrize("words", PAGES, ids=" ".join)
def test_every_page_fits_into_80_columns(stage, words):
    done = stage.run(*words)
    assert (done.returncode, done.stdout[:6]) == (0, "usage:")
    assert [line for line in done.stdout.splitlines() if len(line) > 80] == []


@pytest.mark.parametrize("word", ["--help", "-h"])
def test_help_wins_over_what_is_missing(stage, word):
    for words in (["run", word], ["run", "--num_gpus", "2", word], [word]):
        done = stage.run(*words)
        assert done.returncode == 0
        assert "usage: bireme" in done.stdout


def test_help_of_the_script_is_the_scripts(stage, script):
    done = stage.run("run", "-q", script("import sys\nprint(sys.argv[1:])\n"), "--help")
    assert done.stdout == "['--help']\n"


def test_version(stage):
    import bireme

    done = stage.run("--version")
    assert (done.returncode, done.stdout) == (0, f"bireme {bireme.__version__}\n")


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("runn", "did you mean bireme help run?"),
        ("xyz", f"bireme help {', '.join(COMMANDS)}, or --man"),
    ],
)
def test_help_on_what_is_no_command(stage, word, hint):
    done = stage.run("help", word, code=2)
    assert done.stderr == f"bireme: expected the name of a command\n  {hint}\n"
