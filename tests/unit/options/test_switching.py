"""Options and commands of other launchers: they work, or one line says what to type."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

import pytest

from bireme.cli.parser import parse
from bireme.errors import BadInputError
from bireme.options.switching import ANSWERS, answer
from bireme.options.table import OPTIONS, select
from tests.kit import needs

TUNE = {name for options in select("tune").values() for option in options for name in option.names}
RUN = {name for options in select("run").values() for option in options for name in option.names}


def names_of(parser: argparse.ArgumentParser) -> set[str]:
    return {name.replace("-", "_").replace("__", "--", 1) if name.startswith("--") else name
            for action in parser._actions for name in action.option_strings}  # fmt: skip


def unanswered(names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if name not in RUN and not answer(name))


@pytest.mark.slow
@pytest.mark.torch
def test_every_option_of_torchrun():
    parser = needs.module("torch.distributed.run").get_args_parser()
    found = names_of(parser)
    assert len(found) > 30
    assert found <= RUN, "torchrun has an option that bireme run does not take"


@pytest.mark.slow
def test_every_option_of_deepspeed(monkeypatch):
    runner, launch = needs.module("deepspeed.launcher.runner"), needs.module("deepspeed.launcher.launch")
    found: set[str] = set()

    def keep(parser, args=None, namespace=None):
        found.update(names_of(parser))
        raise SystemExit

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", keep)
    with pytest.raises(SystemExit):
        runner.parse_args([])
    assert len(found) > 20
    assert found <= RUN, "deepspeed has an option that bireme run does not take"
    found.clear()
    with pytest.raises(SystemExit):
        launch.parse_args()
    assert found <= {name for option in OPTIONS if "agent" in option.commands for name in option.names}


@pytest.mark.slow
def test_every_option_of_accelerate():
    pytest.importorskip("accelerate", reason="accelerate is not installed: see the Makefile")
    from accelerate.commands.launch import launch_command_parser

    found = names_of(launch_command_parser())
    assert len(found) > 80
    assert not unanswered(found)


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_one_line_and_for_no_option_of_ours(name):
    assert name not in RUN
    assert "\n" not in ANSWERS[name] and len(ANSWERS[name]) < 130
    ours = (
        RUN
        | {"--version", "--deepspeed_config", "--results_dir"}
        | (TUNE if "bireme tune has" in ANSWERS[name] else set())
    )
    for word in ANSWERS[name].replace(",", " ").replace(";", " ").replace("=", " ").split():
        if word.startswith("--") and word.rstrip(":") not in ours:
            pytest.fail(f"{word} is no option of bireme")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--ntasks-per-node=4"], "use --num_gpus N"),
        (["-N", "2"], "use --num_nodes N"),
        (["-N2"], "use --num_nodes N"),
        (["-np", "4"], "use --num_nodes N"),
        (["--host", "a,b"], "use --hosts 'node1:4,node2:4'"),
        (["--fsdp-offload-param", "true"], "did you mean --fsdp_offload_params?"),
        (["--number_of_gpus", "2"], "options of the script go after it; bireme run --help_all shows those of Bireme"),
        (["--slurm_comment", "x"], "use --launcher_args='--comment=…' with --launcher slurm"),
        (["--exclusive"], "give it to sbatch or salloc"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_unknown_options(words, says):
    with pytest.raises(BadInputError) as caught:
        parse(select("run"), [*words, "s.py"])
    text = str(caught.value)
    assert says in text and len(text.splitlines()) == 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--num_gpus", "2", "x.py"], "unknown option: --num_gpus\n  to run a job: bireme run --num_gpus 2 x.py"),
        (["torchrun", "--nnodes", "1", "x.py"], "to run a job: bireme run --nnodes 1 x.py"),
        (["accelerate", "launch", "x.py"], "to run a job: bireme run x.py"),
        (["train", "x.py"], "to run a job: bireme run x.py"),
        (["rnu", "x.py"], "did you mean bireme run?"),
        (["chekc"], "did you mean bireme check?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_unknown_commands(stage, words, says):
    done = stage.run(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr and len(done.stderr.splitlines()) == 2
