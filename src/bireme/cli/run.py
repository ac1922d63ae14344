"""``bireme run``: parse, run, report."""

from __future__ import annotations

import os

from bireme.cli.options import RUN, parse
from bireme.cli.spec import job_spec
from bireme.errors import OK, BadInputError
from bireme.logs.console import complain, show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from bireme.cli.options import Parsed
    from bireme.job import JobSpec
    from bireme.result.outcome import Outcome


_PATIENCE = 2.0
"""Seconds for which a reader that does not read is waited for, where somebody waits for us."""


def main(argv: list[str]) -> int:
    """Carry out ``bireme run ARGV``; return the exit code."""
    return carry_out(parse(RUN, argv))


def carry_out(parsed: Parsed) -> int:
    """Do what a command line that has been read says; return the exit code."""
    if parsed.options["help"]:
        from bireme.cli.help import run_help

        show(run_help())
        return OK
    if parsed.options["autotuning"]:
        from bireme.cli import tune

        return tune.carry_out(parsed)
    place = "" if parsed.options["dry_run"] else _report_place(parsed.options["report"])
    spec = job_spec(parsed)
    if parsed.options["json"] and not parsed.options["dry_run"]:
        raise BadInputError("--json says how --dry_run prints", hint="add --dry_run")
    if parsed.options["dry_run"]:
        return _dry_run(spec, as_json=parsed.options["json"])
    return _run_and_record(spec, place) if place else _run(spec)


def _report_place(path: str | None) -> str:
    """Where the report is to be written; "" if none is. One of an earlier job is gone from now on."""
    if path is None:
        return ""
    from bireme.cli import report_file

    return report_file.prepare(path)


def _run(spec: JobSpec, at_end: Callable[[Outcome], None] = lambda outcome: None) -> int:
    from bireme.api import run

    outcome = run(spec, on_restart=_say_restart, on_change=_say_change)
    at_end(outcome)  # first, for the reader of our stderr may not read
    report(outcome)
    if outcome.history:
        from bireme.result.report import story

        complain(story(outcome.history), every_line=True, patience=_PATIENCE)
    return outcome.exit_code


def _run_and_record(spec: JobSpec, place: str) -> int:
    """The same with ``--report``: whatever ends the job is written there, but for bad input, when there was none."""
    import time

    from bireme.cli import report_file
    from bireme.result import report_record

    begin = time.monotonic()
    try:
        return _run(spec, lambda outcome: report_file.write(place, report_record.of_outcome(outcome)))
    except BadInputError:
        raise
    except Exception as error:
        report_file.write(place, report_record.of_error(error, time.monotonic() - begin))
        raise


def _say_restart(outcome: Outcome, again: JobSpec) -> None:
    """The report of an attempt, and that there is another."""
    report(outcome)
    without = f", without {', '.join(again.avoid)} if others are left" if again.avoid else ""
    of = f" of {again.restarts}" if again.attempt <= again.restarts else ""  # some may have been forgiven
    complain(f"restart {again.attempt}{of}{without}")


def _say_change(outcome: Outcome, why: str) -> None:
    """The end of an elastic job's epoch: what a worker that failed has said, and why there is another."""
    if outcome.cause == "rank failed":
        report(outcome, hasty=True)  # nobody hears signals meanwhile, and the other nodes wait
        why = why.rpartition(": ")[2]
    complain(why, patience=_PATIENCE)


def report(outcome: Outcome, *, hasty: bool = False) -> None:
    """Say on stderr how it ended, if it did not end well. ``hasty``: do not wait for a reader that does not read."""
    if outcome.exit_code == OK and not outcome.stuck:
        return
    from bireme.result.report import summary

    # Who has stopped the job does not want to wait for him either.
    hasty = hasty or outcome.unread or outcome.cause == "signal"
    complain(summary(outcome), every_line=True, patience=_PATIENCE if hasty else None)


def _dry_run(spec: JobSpec, *, as_json: bool) -> int:
    from bireme.api import sketch
    from bireme.cli import dry_run
    from bireme.launch.placement import engine_commands

    found, commands = sketch(spec), engine_commands(spec, os.environ)
    for piece in dry_run.as_json(found, commands) if as_json else (dry_run.as_text(found, commands),):
        show(piece)
    return OK
