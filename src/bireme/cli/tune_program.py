"""``bireme tune`` of any program: makes the request from the options or a study file, and prints the answer."""

from __future__ import annotations

import os
import re
import shutil
import sys
from signal import SIGPIPE

from bireme.cli import duplicate_starts
from bireme.cli.default_python import in_active_environment
from bireme.cli.parser import Parsed, parse
from bireme.cli.spec import job_spec, tuning_width
from bireme.cli.tune_words import launch_of, real_words, with_accelerator
from bireme.errors import OK, BadInputError, BiremeError
from bireme.logs.console import printable, show
from bireme.logs.sink import is_gone
from bireme.options import conflicts
from bireme.options.table import select
from bireme.process import activation
from bireme.resources import program
from bireme.tune.launching import resource_pool
from bireme.tune.slots import Shape

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from bireme.job import JobSpec
    from bireme.tune.declarations import Declaration
    from bireme.tune.figures import Direction, Measure
    from bireme.tune.program.tuning import ProgramResult, Request

NOTHING_WORKS = 1
"""Exit code of a study in which no configuration worked."""

_DECLARES = ("param", "env", "in", "when", "constraint", "default")
_SAYS_SO = (*_DECLARES, "maximize", "minimize", "limit")
_SECONDS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


def is_one(parsed: Parsed) -> bool:
    """Whether the command line describes a study of a program, not of a DeepSpeed configuration."""
    return (
        parsed.options["init"]
        or parsed.options["ask_tell"]
        or _is_study_file(parsed)
        or any(parsed.options[name] for name in _SAYS_SO)
    )


def _is_study_file(parsed: Parsed) -> bool:
    return bool(parsed.command) and parsed.command[0].endswith(".toml")


def carry_out(parsed: Parsed, argv: list[str]) -> int:
    """Run the study of a parsed command line, or that of the file which it names; return the exit code.

    Args:
        parsed: the command line.
        argv: the same, as it was typed.
    """
    from bireme.cli.progress import any_text, watcher
    from bireme.tune.program.tuning import tune

    if parsed.options["init"]:
        return _init()
    if parsed.options["ask_tell"]:
        return _ask_tell(parsed)
    declaration = None
    if _is_study_file(parsed):
        parsed, declaration = _of_file(parsed, argv)
    conflicts.refuse(conflicts.of_options(parsed.options))
    parsed = in_active_environment(parsed, os.environ)
    request = make_request(parsed, os.environ, declaration)
    with any_text(sys.stdout):
        result = tune(request, lambda board: watcher(board, quiet=parsed.options["quiet"]))
        signum = result.conclusion.signum
        try:
            _show(result)
        except OSError as error:
            if not is_gone(error):
                raise BiremeError(f"stdout cannot be written: {error.strerror}") from error
            signum = signum or SIGPIPE
    if signum:
        return 128 + signum
    return OK if result.best else NOTHING_WORKS


def _init() -> int:
    from bireme.tune import study_example

    study_example.write()
    show(f"{study_example.NAME} is written; edit it, and type: bireme tune {study_example.NAME}\n")
    return OK


def _ask_tell(parsed: Parsed) -> int:
    from bireme.cli.tune_ask_tell import serve
    from bireme.tune.study import Study

    if parsed.command:
        raise BadInputError("--ask_tell runs no program", hint=f"leave out {parsed.command[0]}")
    places = [f"{{{name}}}" for text in parsed.options["param"] if not (name := text.partition("=")[0]).startswith("-")]
    declaration, measure = _declared(parsed, tuple(places)), _measured(parsed)
    return serve(Study(declaration.space, measure.goals, **_bounds(parsed)))


def _declared(parsed: Parsed, args: tuple[str, ...]) -> Declaration:
    """What the command line declares."""
    from bireme.tune.declarations import declare

    options = parsed.options
    return declare(
        params=options["param"],
        envs=options["env"],
        files=options["in"],
        conditions=options["when"],
        constraints=options["constraint"],
        defaults=options["default"],
        args=args,
    )


def _measured(parsed: Parsed) -> Measure:
    """What the command line measures."""
    from bireme.tune.figures import parse as parse_measure

    goals: list[tuple[Direction, str]] = [("maximize", text) for text in parsed.options["maximize"]]
    goals += [("minimize", text) for text in parsed.options["minimize"]]
    return parse_measure(goals, parsed.options["limit"])


def _bounds(parsed: Parsed) -> dict[str, Any]:
    """How the study searches, and when it ends."""
    options = parsed.options
    return {
        "search": options["search"] or "model_based",
        "seed": options["seed"],
        "confidence": _percent(options["confidence"] or "95", "--confidence", least=50, most=99.99),
        "effect": _percent(options["effect"] or "2", "--effect", least=0.01, most=100),
        "trials": options["trials"],
        "seconds": None if options["budget"] is None else seconds_of(options["budget"], "--budget"),
    }


def _of_file(parsed: Parsed, argv: list[str]) -> tuple[Parsed, Declaration]:
    """The command line that a study file describes, and its declaration; options on the command line take precedence.

    Raises:
        BadInputError: the file is wrong, or the command line declares parameters too.
    """
    from bireme.tune.study_file import read_study

    path, *more = parsed.command
    if more:
        raise BadInputError(f"nothing may follow a study file: {more[0]}", hint=f"put options before {path}")
    for name in _DECLARES:
        if parsed.options[name]:
            raise BadInputError(f"--{name} and a study file exclude each other", hint=f"write it into {path}")
    study = read_study(path)
    typed = argv[: len(argv) - 1]
    words = [*study.words, *(word for word in typed if word != "--"), "--", *study.command]
    parsed = parse(select("tune"), words)
    options = {**parsed.options, "autotuning": parsed.options["autotuning"] or "tune"}
    return parsed.replace(options=options), study.declaration


def _show(result: ProgramResult) -> None:
    import shlex

    from bireme.planning.masking import masked_words
    from bireme.tune.program.files import BEST_COMMAND

    print(printable(f"{result.summary}\n{result.lines}"), end="", flush=True)
    if result.conclusion.signum:
        print("interrupted: the same command resumes the study")
    if result.best:
        masked = masked_words(result.best)  # --export may be secret, but not what was found
        shown = [word if word in result.exports else mask for word, mask in zip(result.best, masked, strict=True)]
        print(f"  the real job:  {printable(shlex.join(shown))}")
        if shown != list(result.best):
            print(f"  with the values hidden here: {result.files.path(BEST_COMMAND)}")
    if result.answer.best is not None:
        print(f"  a page about it:  bireme tune report {shlex.quote(os.path.relpath(result.files.results_dir))}")
    sys.stdout.flush()


def make_request(parsed: Parsed, environ: Mapping[str, str], declaration: Declaration | None = None) -> Request:
    """Make the request to the tuner from a parsed command line.

    Args:
        parsed: the command line.
        environ: the environment.
        declaration: what varies; None: what the command line declares.

    Raises:
        BadInputError: the study is described wrongly; nothing has been started.
    """
    from bireme.tune.program.tuning import Request

    parsed = _direct(parsed.replace(options=with_accelerator(parsed.options)))
    options = parsed.options
    nodes, slots = tuning_width(options)
    spec = program.recognized(job_spec(parsed.replace(options={**options, "num_nodes": None, "num_gpus": None})))
    duplicate_starts.refuse(spec, environ)
    declaration = declaration or _declared(parsed, spec.program.args)
    measure = _measured(parsed)
    program.check(spec, environ, own_interpreter=activation.own_interpreter(spec))
    pool = resource_pool(spec, environ, slots)
    shape = Shape(nodes or len(pool.slots), slots or min(map(len, pool.slots.values())))
    parsed = _with_kind(parsed, spec)
    launch = launch_of(parsed, spec, pool)
    real = ("bireme", "run", *real_words(parsed, pool, shape))
    return Request(
        declaration=declaration,
        measure=measure,
        launch=launch,
        shape=shape,
        args=spec.program.args,
        real=lambda exports: (
            *real,
            *(word for export in exports for word in ("--export", export)),
            spec.program.target,
        ),
        environ=environ,
        results_dir=options["results_dir"],
        **_bounds(parsed),
        limit=options["experiment_limit"],
        order=options["order"],
    )


def _direct(parsed: Parsed) -> Parsed:
    """The command line, with ``--no_python`` if its program is no file but a program on PATH."""
    options = parsed.options
    if not parsed.command or options["module"] or options["no_python"]:
        return parsed
    word = parsed.command[0]
    if os.path.exists(word) or word.endswith(".py") or os.sep in word or shutil.which(word) is None:
        return parsed
    return parsed.replace(options={**options, "no_python": True})


def _with_kind(parsed: Parsed, spec: JobSpec) -> Parsed:
    """The command line, with ``--no_python`` if its program was found to be an executable file of another language."""
    if spec.program.kind != "exec":
        return parsed
    return parsed.replace(options={**parsed.options, "no_python": True})


def _percent(text: str, where: str, *, least: float, most: float) -> float:
    """A share from percent: ``95`` or ``95%``."""
    try:
        number = float(text.strip().removesuffix("%"))
    except ValueError:
        number = float("nan")
    if not least <= number <= most:
        raise BadInputError(f"{text!r} is not a number of percent from {least:g} to {most:g}", where=where)
    return number / 100


def seconds_of(text: str, where: str) -> float:
    """Seconds from a length of time: ``90``, ``90s``, ``30m``, ``1.5h``, ``1h30m``.

    Raises:
        BadInputError: it is none, or not above 0.
    """
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    whole = "".join(number + unit for number, unit in parts) == re.sub(r"\s", "", text.lower())
    if not parts or not whole or any(unit not in _SECONDS for _, unit in parts):
        raise BadInputError(f"{text!r} is not a length of time (expected e.g. 90s, 30m or 2h)", where=where)
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if seconds <= 0:
        raise BadInputError("must be above 0", where=where)
    return seconds
