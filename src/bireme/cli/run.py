"""The command ``bireme run``: parses the options, runs the job, and reports its end."""

from __future__ import annotations

import os

from bireme.cli.job_options import job_spec, refuse_duplicate_starts
from bireme.cli.parser import enter, parse
from bireme.errors import OK, BadInputError
from bireme.logs.console import complain, show
from bireme.options.table import needless, select, uses_accelerate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from bireme.cli.parser import Parsed
    from bireme.job import JobSpec
    from bireme.result.outcome import Outcome


_PATIENCE = 2.0
"""Longest wait, in seconds, for a stalled reader of stderr while somebody else waits for us."""


def main(argv: list[str]) -> int:
    """Run ``bireme run ARGV``; return the exit code."""
    groups, typed = select("run"), " ".join(argv)
    if "config" not in typed and not any(name.startswith("PET_") for name in os.environ):
        return carry_out(parse(groups, argv))
    from bireme.cli.defaults import parse_run

    return carry_out(parse_run(groups, argv, os.environ))


def carry_out(parsed: Parsed) -> int:
    """Run a parsed command line; return the exit code."""
    if parsed.options["help"] or parsed.options["help_all"]:
        from bireme.cli.help import help_page

        show(help_page("run", everything=parsed.options["help_all"]))
        return OK
    parsed = enter(parsed)
    if any(name in os.environ for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHON_EXEC")):
        from bireme.cli.defaults import in_active_environment

        parsed = in_active_environment(parsed, os.environ)
    if parsed.options["autotuning"]:
        from bireme.cli import tune

        return tune.carry_out(parsed)
    place = "" if parsed.options["dry_run"] else _report_place(parsed.options["report"])
    spec = job_spec(parsed)
    refuse_duplicate_starts(spec, os.environ)
    notes = list(needless(parsed.options, torchrun=bool(spec.rendezvous)))
    if uses_accelerate(parsed.options):
        from bireme.cli.accelerate import without_effect

        notes += without_effect(parsed.options)
    for line in notes:
        if spec.log_level in ("debug", "info"):
            complain(line)
    if not parsed.ended and spec.log_level in ("debug", "info"):
        _say_misplaced(spec)
    if parsed.options["dry_run"]:
        return _dry_run(spec, as_json=parsed.options["json"])
    if parsed.options["detach"]:
        from bireme.runner import detached

        code = detached.detach(spec.job_name, os.environ)
        if code is not None:
            return code
    return _run_and_record(spec, place) if place else _run_job(spec)


def _say_misplaced(spec: JobSpec) -> None:
    """Tell the user if the script gets options that were meant for us."""
    args = spec.program.args
    args = args[: args.index("--")] if "--" in args else args
    spelt = {word: "--" + word[2:].partition("=")[0].replace("-", "_") for word in args if word.startswith("--")}
    if not spelt:
        return
    table = {name: option for options in select("run").values() for option in options for name in option.names}
    suspects = {word: table[name] for word, name in spelt.items() if name in table and name != "--help"}
    if not suspects:
        return
    from bireme.planning.masking import shortened
    from bireme.resources import misplaced_options, program

    target = spec.program.target
    folders = [os.path.dirname(target) or ".", ".", *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    words = misplaced_options.misplaced(args, suspects, program.source(spec.program, os.environ), folders)
    if words:
        module = ["-m"] if spec.program.kind == "module" else []
        complain(
            f"{target} gets {shortened(words)}, which does not occur in its code\n"
            f"  put options of bireme run before the script: {shortened([*words, *module, target])}"
        )


def _report_place(path: str | None) -> str:
    """The path of the report, "" if none is wanted. A report of an earlier job is removed."""
    if path is None:
        return ""
    from bireme.result import report_record

    return report_record.prepare(path)


def _run_job(spec: JobSpec, at_end: Callable[[Outcome], None] = lambda outcome: None) -> int:
    from bireme.launching import placement

    outcome = placement.launch(spec, on_restart=_say_restart, on_change=_say_change)
    at_end(outcome)  # first: the reader of our stderr may be stalled
    report(outcome)
    if outcome.history:
        from bireme.result.report import story

        complain(story(outcome.history), every_line=True, patience=_PATIENCE)
    if spec.requeue and outcome.cause == "preempted":
        from bireme.runner import preemption

        complain("asking Slurm to queue the job again", patience=_PATIENCE)  # first: Slurm then ends this command too
        if problem := preemption.requeue():
            complain(f"it is not queued again: {problem}")
    return outcome.exit_code


def _run_and_record(spec: JobSpec, place: str) -> int:
    """Run a job and write its result to the file of ``--report``, also after an error; not after bad input."""
    import time

    from bireme.result import report_record

    def write(record: dict[str, Any]) -> None:
        try:
            report_record.write(place, record)
        except OSError as error:  # the exit code of the job stays
            complain(f"cannot write the report {place}: {error.strerror}")

    begin = time.monotonic()
    try:
        return _run_job(spec, lambda outcome: write(report_record.of_outcome(outcome)))
    except BadInputError:
        raise
    except Exception as error:
        write(report_record.of_error(error, time.monotonic() - begin, spec.job_name))
        raise


def _say_restart(outcome: Outcome, again: JobSpec) -> None:
    """Report how an attempt ended, and announce the next one."""
    report(outcome)
    without = f", without {', '.join(again.avoid)} if others are left" if again.avoid else ""
    of = (
        f" of {again.restarts}" if again.attempt <= again.restarts else ""
    )  # more where earlier restarts no longer count
    complain(f"restart {again.attempt}{of}{without}")


def _say_change(outcome: Outcome, why: str) -> None:
    """Report why an epoch of an elastic job ended, with the failed worker's error, and why the next one starts."""
    if outcome.cause == "rank failed":
        report(outcome, hasty=True)  # no signal is handled meanwhile, and the other nodes wait
        why = why.rpartition(": ")[2]
    complain(why, patience=_PATIENCE)


def report(outcome: Outcome, *, hasty: bool = False) -> None:
    """Report on stderr how a job ended, unless it succeeded. ``hasty``: wait only `_PATIENCE` for a stalled reader."""
    if outcome.exit_code == OK and not outcome.stuck:
        return
    from bireme.result.report import summary

    # Somebody who stopped the job, or whose terminal is stalled, should not have to wait.
    hasty = hasty or outcome.unread or outcome.cause == "signal"
    complain(summary(outcome), every_line=True, patience=_PATIENCE if hasty else None)


def _dry_run(spec: JobSpec, *, as_json: bool) -> int:
    from bireme.cli import dry_run
    from bireme.launching import placement

    plan, commands = placement.preview(spec)
    for piece in dry_run.as_json(plan, commands) if as_json else (dry_run.as_text(plan, commands),):
        show(piece)
    return OK
