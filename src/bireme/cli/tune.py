"""The commands ``bireme tune`` and ``bireme run --autotuning``: run a study from the options, and print its result."""

from __future__ import annotations

import os
import sys
from signal import SIGPIPE

from bireme import isolated, jsontext
from bireme.cli.defaults import in_active_environment
from bireme.cli.parser import Parsed, enter, parse
from bireme.cli.tune_words import DECLARES, deepspeed_study, of_file, program_study
from bireme.errors import OK, BadInputError, BiremeError, similar
from bireme.logs.console import complain, is_gone, printable, show
from bireme.options import conflicts
from bireme.options.table import select
from bireme.resources import program
from bireme.tune import requirements

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from bireme.tune.execution.adapter import Adapter
    from bireme.tune.launcher import Result
    from bireme.tune.store.stored_study import Study

_NOTHING_WORKS = 1
"""Exit code of a study in which no configuration worked."""

_TYPED = {"--autotuning": "bireme tune"}
"""What the user has typed instead of an option."""

_SAYS_SO = (*DECLARES, "maximize", "minimize", "limit", "warm_start")
_FOR_ASK_TELL = (
    *(*DECLARES, "maximize", "minimize", "budget", "trials", "confidence", "effect", "confirm", "pruner", "search"),
    *("seed", "ask_tell", "autotuning", "quiet", "results_dir"),
)

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
    if _is_program_study(parsed):
        if parsed.options["init"]:
            return _init()
        requirements.check("bireme tune")
        return _ask_tell(parsed) if parsed.options["ask_tell"] else _tune_program(parsed, argv)
    if not parsed.command:
        raise BadInputError("nothing to tune", hint=_SUCH)
    conflicts.refuse(conflicts.of_options(parsed.options), _TYPED)
    for name, key in _IN_THE_SECTION.items():
        if parsed.options[name]:
            what = "the DeepSpeed configuration sets this itself"
            raise BadInputError(what, hint=f"set autotuning.{key} there", where=f"--{name}")
    return carry_out(parsed)


def _refuse_misspelt(argv: list[str]) -> None:
    """Refuse a word that is nearly the name of a command, and nothing else."""
    word = argv[0] if argv else ""
    near = similar(word, ("status", "report"), 0.7)
    if near and not os.path.exists(word) and not program.find_executable(word, os.environ):
        raise BadInputError(f"no such program or command: {word}", hint=f"did you mean: bireme tune {near}")


def _is_program_study(parsed: Parsed) -> bool:
    """Whether the command line describes a study of a program, not of a DeepSpeed configuration."""
    return (
        parsed.options["init"]
        or parsed.options["ask_tell"]
        or _is_study_file(parsed)
        or any(parsed.options[name] for name in _SAYS_SO)
    )


def _is_study_file(parsed: Parsed) -> bool:
    return bool(parsed.command) and parsed.command[0].endswith(".toml")


# -- studies ----------------------------------------------------------------------------------------


def _tune_program(parsed: Parsed, argv: list[str]) -> int:
    """Run the study of a parsed command line, or that of the file which it names; ``argv``: as it was typed."""
    file = None
    if _is_study_file(parsed):
        parsed, file = of_file(parsed, argv)
    try:
        conflicts.refuse(conflicts.of_options(parsed.options), _TYPED)
        parsed = in_active_environment(parsed, os.environ)
        study = program_study(parsed, os.environ, file.declaration if file else None)
    except BadInputError as error:
        raise (file.located(error, argv) if file else error) from None
    return _run(study, _show_program, quiet=parsed.options["quiet"])[0]


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
    return _run(deepspeed_study(parsed, os.environ), _show_deepspeed, quiet=parsed.options["quiet"])


def _run(adapter: Adapter, show: Callable[[Result], None], *, quiet: bool) -> tuple[int, tuple[str, ...]]:
    """Run a study, and print what it has found; return the exit code, and the command of the real job if that is OK."""
    from bireme.tune.launcher import tune
    from bireme.tune.progress import any_text, callback

    with any_text(sys.stdout):
        result = tune(adapter, lambda living: callback(living, quiet=quiet))
        gone = _shown_to_the_end(lambda: show(result))
    if signum := result.conclusion.signum or gone:
        return 128 + signum, ()
    return OK if result.job.command else _NOTHING_WORKS, result.job.command


def _shown_to_the_end(show: Callable[[], None]) -> int:
    """Write the result of a study; return SIGPIPE if the reader of stdout is gone, else 0.

    Raises:
        BiremeError: stdout cannot be written for another reason.
    """
    try:
        show()
    except OSError as error:
        if not is_gone(error):
            raise BiremeError(f"stdout cannot be written: {error.strerror}") from error
        return SIGPIPE
    return 0


def _show_deepspeed(result: Result) -> None:
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


def _show_program(result: Result) -> None:
    import shlex

    from bireme.planning.masking import masked_words
    from bireme.tune.program.program_study import BEST_COMMAND

    print(printable(result.summary), end="", flush=True)
    if result.conclusion.signum:
        print("interrupted: the same command resumes the study")
    for what, job in (("the real job", result.job), ("or the baseline", result.baseline)):
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


# -- an example, and studies that others drive -------------------------------------------------------


def _init() -> int:
    from bireme.tune.define.study_file import EXAMPLE, write_example

    write_example()
    show(f"wrote {EXAMPLE}; edit it, then type: bireme tune {EXAMPLE}\n")
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
            raise BadInputError("propose must be an object with a value for each parameter")
        trial = study.propose(point)
        return {"trial": trial.as_dict()}
    if "tell" in request:
        return _tell(study, request)
    if "answer" in request:
        return {"answer": study.answer.as_dict()}
    if "prune" in request:
        return {"prune": _reason_to_prune(study, request)}
    raise BadInputError(
        f"no request in {', '.join(request) or 'an empty object'}", hint="one of: ask, propose, prune, tell, answer"
    )


def _tell(study: Study, request: Mapping[str, Any]) -> dict[str, object]:
    name, figures = str(request["tell"]), request.get("figures", {})
    result = study.result_of(name, str(request.get("failed", "")), figures)
    numbers = (*(figures.values() if isinstance(figures, dict) else ("",)), request.get("seconds", result.seconds))
    if not all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in numbers):
        raise BadInputError(f"trial {name!r}: figures and seconds must be numbers")
    study.tell(name, result.replace(seconds=float(numbers[-1])))
    return {"told": name}


def _reason_to_prune(study: Study, request: Mapping[str, Any]) -> str:
    name, series = str(request["prune"]), request.get("series", ())
    if name not in {each.name for each in study.pending}:
        raise BadInputError(f"no trial {name!r} is pending")
    if not isinstance(series, list) or not all(isinstance(each, (int, float)) for each in series):
        raise BadInputError(f"trial {name!r}: series must be a list of numbers")
    return study.reason_to_prune(name, series=series)
