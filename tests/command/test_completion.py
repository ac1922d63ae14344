"""Completion in real shells, the manual page in real roff, and the pages of ``bireme help``."""

from __future__ import annotations

import subprocess

import pytest

from bireme.options.table import COMMANDS, SUBCOMMANDS, select
from tests.kit import needs


def script_for(stage, shell: str) -> str:
    done = stage.run("completion", shell)
    assert (done.returncode, done.stderr) == (0, "")
    return str(done.stdout)


def shell_says(shell: str, text: str) -> list[str]:
    done = subprocess.run([needs.program(shell), "-c", text], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return done.stdout.split()


def in_bash(stage, *words: str) -> list[str]:
    quoted = " ".join(f"'{word}'" for word in ("bireme", *words))
    text = f"{script_for(stage, 'bash')}\nCOMP_WORDS=({quoted})\nCOMP_CWORD={len(words)}\n_bireme\n"
    return shell_says("bash", text + 'printf "%s\\n" "${COMPREPLY[@]}"\n')


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("ch",), ["check"]),
        (("run", "--num_g"), ["--num_gpus"]),
        (("run", "--num-g"), ["--num-gpus"]),
        (("run", "--launcher", "s"), ["ssh", "slurm"]),
        (("run", "--num_gpus", "2", "--dry"), ["--dry_run"]),
        (("run", "-q", "--num-gpus", "2", "--output", "r"), ["raw", "rank0"]),
        (("run", "train.py", "--num"), []),  # the script's own
        (("run", "--num_gpus=2", "train.py", "--num"), []),
        (("drain", "--b"), ["--back"]),
        (("help", "tu"), ["tune"]),
        (("completion", "f"), ["fish"]),
        (("tune", "st"), ["status"]),
        (("tune", "report", "--c"), ["--csv"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_bash(stage, words, offered):
    assert in_bash(stage, *words) == offered


def test_bash_offers_every_option(stage):
    for command in (*COMMANDS, *SUBCOMMANDS):
        names = {name for options in select(command).values() for option in options for name in option.names}
        assert set(in_bash(stage, *command.split(), "-")) == names


def test_fish(stage):
    def offers(line: str) -> list[str]:
        return [
            row.split("\t")[0]
            for row in "\n".join(lines_of_fish(f"{script_for(stage, 'fish')}\ncomplete -C '{line}'\n")).splitlines()
        ]

    def lines_of_fish(text: str) -> list[str]:
        done = subprocess.run([needs.program("fish"), "-N", "-c", text], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    assert "run" in offers("bireme r")
    assert offers("bireme run --num_g") == ["--num_gpus"]
    assert set(offers("bireme run --launcher s")) == {"ssh", "slurm"}
    assert offers("bireme tune rep") == ["report"] and "--csv" in offers("bireme tune report --")


def test_zsh_can_read_it(stage):
    text = script_for(stage, "zsh")
    shell_says("zsh", f"compdef() {{ print $1 $2; }}\n{text}")
    words = "words=(bireme run --num_g); CURRENT=3; PREFIX=--num_g\ncompadd() { print -l -- ${(M)@:#$PREFIX*}; }\n"
    assert shell_says("zsh", f"compdef() {{ }}\n{text}\n{words}_bireme\n") == ["--num_gpus"]


def test_an_unknown_shell(stage):
    done = stage.run("completion", "tcsh")
    assert (done.returncode, done.stdout) == (2, "")
    assert "bireme completion bash, zsh or fish" in done.stderr


def test_the_manual_page(stage):
    page = stage.run("help", "--man").stdout
    page_reader = [needs.program("groff"), "-man", "-Tascii", "-P-cbou", "-ww"]
    done = subprocess.run(page_reader, input=page, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    for command in COMMANDS:
        for options in select(command).values():
            for option in options:
                assert all(name in done.stdout for name in option.names), option.names


@pytest.mark.parametrize("command", (*COMMANDS, *SUBCOMMANDS))
def test_help_on_a_command_is_its_own_page(stage, command):
    page = stage.run("help", *command.split()).stdout
    assert page == stage.run(*command.split(), "--help").stdout and page.startswith("usage: bireme ")


def test_short_and_whole_help(stage):
    short, whole = stage.run("run", "--help").stdout, stage.run("run", "--help-all").stdout
    assert whole == stage.run("help", "--all", "run").stdout
    assert len(short.splitlines()) < 100 < len(whole.splitlines())
    assert "bireme run --help-all shows all" in short
    for name in ("--num_gpus", "--hostfile", "--dry_run", "--log_dir"):
        assert f"{name} " in short or f"{name}," in short


def test_help_on_nothing_known(stage):
    done = stage.run("help", "nothing")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"bireme help {', '.join(COMMANDS)}, or --man" in done.stderr
    assert "did you mean bireme help run?" in stage.run("help", "rnu", code=2).stderr
