"""The commands ``bireme tune status`` and ``bireme tune report``: show the study of a folder."""

from __future__ import annotations

import json
import os
import time

from bireme.cli.parser import Parsed, parse
from bireme.errors import OK, BadInputError
from bireme.logs.console import complain, printable, show
from bireme.options.table import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bireme.tune.report.secrets import Secrets
    from bireme.tune.report.view import StudyView


def main(argv: list[str]) -> int:
    """Run ``bireme tune ARGV``, whose first word is ``status`` or ``report``; return the exit code."""
    word, *rest = argv
    command = f"tune {word}"
    parsed = _parsed(command, rest)
    if parsed.options["help"]:
        from bireme.cli.help import help_page

        show(help_page(command))
        return OK
    from bireme.tune.look import read_study

    study, secrets = read_study(*parsed.command)
    (_status if word == "status" else _report)(parsed, study, secrets)
    return OK


def _parsed(command: str, words: list[str]) -> Parsed:
    """Options may stand before the folder and after it."""
    groups = select(command)
    parsed = parse(groups, words)
    if len(parsed.command) < 2:
        return parsed
    folder, *rest = parsed.command
    after = parse(groups, rest, parsed.options)
    if after.command:
        raise BadInputError(
            f"expected one folder, and found another word: {after.command[0]}", hint=f"bireme {command} DIR"
        )
    return after.replace(command=(folder,))


def _status(parsed: Parsed, study: StudyView, secrets: Secrets) -> None:
    from bireme.tune.report.text import status, status_text

    now = time.time()
    show(_json(status(study, now)) if parsed.options["json"] else printable(status_text(study, now)))


def _report(parsed: Parsed, study: StudyView, secrets: Secrets) -> None:
    now = time.time()
    if parsed.options["json"]:
        from bireme.tune.report.export import study_record

        show(_json(study_record(study, now)))
    elif parsed.options["csv"]:
        from bireme.tune.report.export import trials_csv

        show(trials_csv(study))
    else:
        from bireme.tune.report.page import vega

        path = parsed.options["html"] or os.path.join(study.folder, "report.html")
        write(study, secrets, path, now, vega())
        show(printable(f"{path}\n"))
    if os.environ.get("MLFLOW_TRACKING_URI"):
        from bireme.tune.report.export import log_to_mlflow

        said = log_to_mlflow(study)
        if said:
            complain(said)


def write(study: StudyView, secrets: Secrets, path: str, now: float, library: str) -> None:
    """Write the report; ``now``: seconds since the epoch; ``library``: for plotting, as a script."""
    from bireme import drafts
    from bireme.tune.report.page import page

    text = page(study, secrets, now, library)
    try:
        drafts.write(path, text.encode("utf-8"), mode=0o600)  # like the logs, whose last lines it has
    except OSError as error:
        raise BadInputError(
            f"{path} cannot be written: {error.strerror}", hint="choose another file: bireme tune report --html FILE"
        ) from None


def _json(record: object) -> str:
    return json.dumps(record, indent=1) + "\n"
