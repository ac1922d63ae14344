"""``bireme tune`` of any program: runs the study of the options or of a file, or lets another program drive it."""

from __future__ import annotations

import os
import shutil
import sys

from bireme import jsontext
from bireme.cli.defaults import in_active_environment
from bireme.cli.parser import Parsed, enter, parse
from bireme.cli.spec import job_spec, refuse_duplicate_starts
from bireme.cli.tune_words import make_setting, real_words, shown_to_the_end, with_accelerator
from bireme.errors import OK, BadInputError
from bireme.logs.console import complain, printable, show
from bireme.node import activation
from bireme.options import conflicts
from bireme.options.table import select
from bireme.resources import program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from bireme.tune.define.declarations import Declaration
    from bireme.tune.define.study_file import StudyFile
    from bireme.tune.launcher import Result
    from bireme.tune.program.tuning import ProgramStudy
    from bireme.tune.store.stored_study import Study

NOTHING_WORKS = 1
"""Exit code of a study in which no configuration worked."""

TYPED = {"--autotuning": "bireme tune"}
"""What the user has typed instead of an option."""

_DECLARES = ("param", "env", "in", "when", "constraint", "default")
_SAYS_SO = (*_DECLARES, "maximize", "minimize", "limit", "warm_start")
_FOR_ASK_TELL = (
    *(*_DECLARES, "maximize", "minimize", "budget", "trials", "confidence", "effect", "confirm", "search", "seed"),
    *("ask_tell", "autotuning", "quiet", "results_dir"),
)


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
        argv: the same, as it was typed.
    """
    from bireme.tune.launcher import tune
    from bireme.tune.progress import any_text, callback

    if parsed.options["init"]:
        return _init()
    if parsed.options["ask_tell"]:
        return _ask_tell(parsed)
    file = None
    if _is_study_file(parsed):
        parsed, file = _of_file(parsed, argv)
    try:
        conflicts.refuse(conflicts.of_options(parsed.options), TYPED)
        parsed = in_active_environment(parsed, os.environ)
        study = make_study(parsed, os.environ, file.declaration if file else None)
    except BadInputError as error:
        raise (file.located(error, argv) if file else error) from None
    with any_text(sys.stdout):
        result = tune(study, lambda living: callback(living, quiet=parsed.options["quiet"]))
        gone = shown_to_the_end(lambda: _show(result))
    if signum := result.conclusion.signum or gone:
        return 128 + signum
    return OK if result.job.command else NOTHING_WORKS


def _init() -> int:
    from bireme.tune.define.study_file import EXAMPLE, write_example

    write_example()
    show(f"{EXAMPLE} is written; edit it, and type: bireme tune {EXAMPLE}\n")
    return OK


def _ask_tell(parsed: Parsed) -> int:
    from bireme.tune.define.spec import StudySpec
    from bireme.tune.store.stored_study import Study

    if parsed.command:
        raise BadInputError("--ask_tell runs no program", hint=f"leave out {parsed.command[0]}")
    absent = parse(select("tune"), ()).options
    for name, value in parsed.options.items():
        if name not in _FOR_ASK_TELL and value != absent[name]:
            hint = "tell such trials as failed" if name == "limit" else "leave it out"
            raise BadInputError("does not apply to --ask_tell, which runs no program", hint=hint, where=f"--{name}")
    places = [f"{{{name}}}" for text in parsed.options["param"] if not (name := text.partition("=")[0]).startswith("-")]
    spec = StudySpec.of(parsed.options, places)
    return _serve(Study(spec.declaration.space, spec.measure.goals, storage=spec.results_dir, **spec.bounds))


def _serve(study: Study) -> int:
    """Answer requests until stdin ends, each line with a line on stdout; ``docs/tuning-any-program.md`` lists them."""
    for note in study.notes:
        complain(note)
    for line in sys.stdin:
        if not line.strip():
            continue
        try:
            reply = _reply(study, _request(line))
        except BadInputError as error:
            reply = {"error": str(error)}
        print(jsontext.dumps(reply), flush=True)
    return OK


def _request(line: str) -> Mapping[str, Any]:
    try:
        request = jsontext.loads(line, finite=True)
    except ValueError as error:
        raise BadInputError(f"not JSON: {error}") from None
    if not isinstance(request, dict):
        raise BadInputError("not a JSON object", hint='write {"ask": true}, {"tell": NAME, …} or {"answer": true}')
    return request


def _reply(study: Study, request: Mapping[str, Any]) -> dict[str, object]:
    if "ask" in request:
        trial = study.ask()
        if trial is None:
            return {"trial": None, "over": study.over}
        return {"trial": trial.as_dict()}
    if "propose" in request:
        point = request["propose"]
        if not isinstance(point, dict):
            raise BadInputError("propose: an object with a value for each parameter is expected")
        trial = study.propose(point)
        return {"trial": trial.as_dict()}
    if "tell" in request:
        return _tell(study, request)
    if "answer" in request:
        return {"answer": study.answer.as_dict()}
    raise BadInputError(
        f"no request in {', '.join(request) or 'an empty object'}", hint="one of: ask, propose, tell, answer"
    )


def _tell(study: Study, request: Mapping[str, Any]) -> dict[str, object]:
    name, figures = str(request["tell"]), request.get("figures", {})
    result = study.result_of(name, str(request.get("failed", "")), figures)
    numbers = (*(figures.values() if isinstance(figures, dict) else ("",)), request.get("seconds", result.seconds))
    if not all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in numbers):
        raise BadInputError(f"trial {name!r}: figures and seconds are numbers")
    study.tell(name, result.replace(seconds=float(numbers[-1])))
    return {"told": name}


def _of_file(parsed: Parsed, argv: list[str]) -> tuple[Parsed, StudyFile]:
    """The command line that a study file describes, and the file; options on the command line take precedence."""
    from bireme.tune.define.study_file import read_study

    path, *more = parsed.command
    if more:
        raise BadInputError(f"nothing may follow a study file: {more[0]}", hint=f"put options before {path}")
    for name in _DECLARES:
        if parsed.options[name]:
            raise BadInputError(f"--{name} and a study file exclude each other", hint=f"write it into {path}")
    study = read_study(path)
    study = study.without(
        goals=bool(parsed.options["maximize"] or parsed.options["minimize"]), limits=parsed.options["limit"]
    )
    for each in study.options:
        try:
            parse(select("tune"), (each.text,))
        except BadInputError as error:
            raise study.located(error) from None
    typed = argv[: len(argv) - 1]
    words = [*study.words, *(word for word in typed if word != "--"), "--", *study.command]
    entered = parsed.options["cwd"]  # now an absolute path
    parsed = parse(select("tune"), words)
    parsed = parsed.replace(options={**parsed.options, "cwd": entered}) if entered else enter(parsed)
    options = {**parsed.options, "autotuning": parsed.options["autotuning"] or "tune"}
    return parsed.replace(options=options), study


def _show(result: Result) -> None:
    import shlex

    from bireme.planning.masking import masked_words
    from bireme.tune.program.files import BEST_COMMAND

    print(printable(result.summary), end="", flush=True)
    if result.conclusion.signum:
        print("interrupted: the same command resumes the study")
    for what, job in (("the real job", result.job), ("or, as it was", result.baseline)):
        # An export may be secret, but not what was found.
        pairs = zip(job.command, masked_words(job.command), strict=True)
        shown = [word if word in job.exports else mask for word, mask in pairs]
        if shown:
            print(f"  {what}:  {printable(shlex.join(shown))}")
        if job == result.job and shown != list(job.command):
            print(f"  with the values hidden here: {os.path.join(result.folder, BEST_COMMAND)}")
    if result.answer.best is not None:
        print(f"  a page about it:  bireme tune report {shlex.quote(os.path.relpath(result.folder))}")
    sys.stdout.flush()


def make_study(parsed: Parsed, environ: Mapping[str, str], declaration: Declaration | None = None) -> ProgramStudy:
    """The study that a parsed command line describes.

    Args:
        declaration: what varies; None: what the command line declares.
    """
    from bireme.tune.define.spec import StudySpec
    from bireme.tune.program.tuning import ProgramStudy

    parsed = _direct(parsed.replace(options=with_accelerator(parsed.options)))
    options = parsed.options
    spec = program.recognized(job_spec(parsed.replace(options={**options, "num_nodes": None, "num_gpus": None})))
    refuse_duplicate_starts(spec, environ)
    study = StudySpec.of(options, spec.program.args, declaration)
    program.check(spec, environ, own_interpreter=activation.own_interpreter(spec))
    if spec.program.kind == "exec":  # also if it was only found to be an executable file of another language
        parsed = parsed.replace(options={**options, "no_python": True})
    setting = make_setting(parsed, spec, environ)
    real = ("bireme", "run", *real_words(parsed, setting))

    def command(exports: tuple[str, ...]) -> tuple[str, ...]:
        return (*real, *(word for export in exports for word in ("--export", export)), spec.program.target)

    return ProgramStudy(study, setting, command)


def _direct(parsed: Parsed) -> Parsed:
    """The command line, with ``--no_python`` if its program is no file but a program on PATH."""
    options = parsed.options
    if not parsed.command or options["module"] or options["no_python"]:
        return parsed
    word = parsed.command[0]
    if os.path.exists(word) or word.endswith(".py") or os.sep in word or shutil.which(word) is None:
        return parsed
    return parsed.replace(options={**options, "no_python": True})
