"""The commands ``bireme tune`` and ``bireme run --autotuning``: run a study from the options, and print its result."""

from __future__ import annotations

import os
import sys

from bireme import isolated
from bireme.cli import tune_program
from bireme.cli.defaults import in_active_environment
from bireme.cli.parser import Parsed, enter, parse
from bireme.cli.spec import job_spec, refuse_duplicate_starts
from bireme.cli.tune_words import make_setting, real_words, shown_to_the_end, with_accelerator
from bireme.errors import OK, BadInputError, similar
from bireme.logs.console import printable, show
from bireme.node import activation
from bireme.options import conflicts
from bireme.options.table import select
from bireme.resources import program
from bireme.tune import requirements
from bireme.tune.execution.launch import gpu_memory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from bireme.tune.deepspeed.tuning import DeepSpeedStudy
    from bireme.tune.launcher import Result

_IN_THE_SECTION = {"trials": "tuner_num_trials", "search": "tuner_type", "results_dir": "results_dir"}
"""Options about any program, and the keys of the section ``autotuning`` that say the same."""

_SUCH = "type: bireme tune --param batch=8,16 --maximize 'samples/s: {}' train.py --batch {batch}"


def main(argv: list[str]) -> int:
    """Run ``bireme tune ARGV``; return the exit code."""
    if argv[:1] in (["status"], ["report"]):
        from bireme.cli import tune_report

        return tune_report.main(argv)
    _refuse_misspelt(argv)
    parsed = parse(select("tune"), argv)
    mode = parsed.options["autotuning"] or "tune"
    parsed = parsed.replace(options={**parsed.options, "autotuning": mode})
    if parsed.options["help"] or parsed.options["help_all"]:
        from bireme.cli.help import help_page

        show(help_page("tune", everything=parsed.options["help_all"]))
        return OK
    parsed = enter(parsed)
    if tune_program.is_one(parsed):
        if not parsed.options["init"]:
            requirements.check("bireme tune")
        return tune_program.carry_out(parsed, argv)
    if not parsed.command:
        raise BadInputError("nothing to tune", hint=_SUCH)
    conflicts.refuse(conflicts.of_options(parsed.options), tune_program.TYPED)
    for name, key in _IN_THE_SECTION.items():
        if parsed.options[name]:
            what = "tunes a DeepSpeed configuration, which says that itself"
            raise BadInputError(what, hint=f"set autotuning.{key} there", where=f"--{name}")
    return carry_out(parsed)


def _refuse_misspelt(argv: list[str]) -> None:
    """Refuse a word that is nearly the name of a command, and nothing else."""
    word = argv[0] if argv else ""
    near = similar(word, ("status", "report"), 0.7)
    if near and not os.path.exists(word) and not program.find_executable(word, os.environ):
        raise BadInputError(f"no such program or command: {word}", hint=f"did you mean: bireme tune {near}")


def carry_out(parsed: Parsed) -> int:
    """Tune the job of a parsed command line; with ``--autotuning run``, then run it. Return the exit code."""
    code, best = study(in_active_environment(parsed, os.environ))
    if code == OK and parsed.options["autotuning"] == "run":
        os.execv(sys.executable, isolated.command("bireme", *best[1:]))  # without the word ``bireme``
    return code


def study(parsed: Parsed) -> tuple[int, tuple[str, ...]]:
    """Tune the job; return the exit code, and the command of the job with the best configuration if that is OK."""
    requirements.check("bireme tune")
    conflicts.refuse(conflicts.of_options(parsed.options))
    from bireme.tune.progress import any_text

    with any_text(sys.stdout):
        return _study(parsed)


def _study(parsed: Parsed) -> tuple[int, tuple[str, ...]]:
    from bireme.tune.launcher import tune
    from bireme.tune.progress import callback

    study = make_study(parsed, os.environ)
    result = tune(study, lambda living: callback(living, quiet=parsed.options["quiet"]))
    gone = shown_to_the_end(lambda: _show(result))
    if signum := result.conclusion.signum or gone:
        return 128 + signum, ()
    if not result.job.command:
        return tune_program.NOTHING_WORKS, ()
    return OK, result.job.command


def _show(result: Result) -> None:
    import shlex

    from bireme.planning.masking import masked_words
    from bireme.tune.deepspeed.files import BEST_COMMAND

    print(printable(result.summary), end="", flush=True)
    if result.conclusion.signum:
        print("interrupted: the same command resumes the search")
    if command := result.job.command:
        shown = masked_words(command)
        also = f"{result.folder}/{BEST_COMMAND}"
        also += "" if shown == list(command) else ", including the values hidden here"
        print(f"to run the job with the best configuration (also in {also}):")
        print(f"  {shlex.join(shown)}", flush=True)


def make_study(parsed: Parsed, environ: Mapping[str, str]) -> DeepSpeedStudy:
    """The study that a parsed command line describes.

    Raises:
        BadInputError: the job cannot be tuned as described; nothing has been started.
    """
    from bireme.tune.deepspeed.command import find_config
    from bireme.tune.deepspeed.tuning import DeepSpeedStudy

    options = with_accelerator(parsed.options)
    parsed = parsed.replace(options=options)
    spec = job_spec(parsed.replace(options={**options, "num_nodes": None, "num_gpus": None}))
    refuse_duplicate_starts(spec, environ)
    find_config(spec.program.args)  # first, as it needs no look at the nodes
    program.check(spec, environ, own_interpreter=activation.own_interpreter(spec))
    setting = make_setting(parsed, spec, environ)
    return DeepSpeedStudy(
        setting,
        ("bireme", "run", *real_words(parsed, setting), spec.program.target),
        by_file=options["config_as"] == "file",
        capacity=gpu_memory(spec, environ),
        **_bounds(options),
    )


def _bounds(options: Mapping[str, Any]) -> dict[str, Any]:
    """How sure the winner must be; with ``--confidence 0`` every configuration is run once.

    Raises:
        BadInputError: a number is not one of percent.
    """
    from bireme.tune.define.spec import shares

    if options.get("confidence") in ("0", "0%"):
        return {"confidence": None, "seconds": options.get("budget")}
    return {**shares(options), "seconds": options.get("budget")}
