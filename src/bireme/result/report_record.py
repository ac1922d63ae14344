"""The file of ``--report``: an outcome or an error as a JSON object, written completely or not at all; its check."""

from __future__ import annotations

import json
import os
import stat

from bireme import drafts
from bireme.errors import UNFIT, BadInputError, BiremeError
from bireme.result.outcome import Outcome, RankEnd
from bireme.validate import ShapeError, build

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from bireme.result.outcome import Cause


def prepare(path: str) -> str:
    """Check that the file can be written, and remove that of an earlier job; return its absolute path."""
    place = os.path.abspath(os.path.expanduser(path))
    try:
        if not stat.S_ISREG(os.lstat(place).st_mode):  # we would replace it: never a device or a link
            hint = "name a file that does not exist yet, or a regular one"
            raise BadInputError(f"{path} is not a regular file", hint=hint, where="--report")
    except OSError:
        pass  # nothing is there yet; a problem with the folder shows below
    try:
        fd, draft = drafts.create(place)
        os.close(fd)
        os.unlink(draft)
        if os.path.exists(place):
            os.unlink(place)
    except OSError as error:
        raise BadInputError(f"cannot write {path}: {error.strerror}", where="--report") from None
    return place


def write(place: str, record: dict[str, Any]) -> None:
    """Write the file.

    Raises:
        OSError: it cannot be written.
    """
    drafts.write(place, f"{json.dumps(record, indent=1)}\n".encode("ascii"))


def of_outcome(outcome: Outcome) -> dict[str, Any]:
    """The fields of an outcome, and of the ends of its ranks.

    Leaves out ``recorded``, which may be a megabyte per rank; its useful part is in ``detail``.
    """
    record = outcome.as_dict()
    for end in (*record["ends"], record["first"]):
        if end is not None:
            end.pop("recorded", None)
    return record


def of_error(error: Exception, seconds: float, job_name: str = "") -> dict[str, Any]:
    """The report of a job that ended with an exception."""
    if not isinstance(error, BiremeError):
        error = BiremeError(f"{type(error).__name__}: {error}")
    cause: Cause = "unfit" if error.code == UNFIT else "internal error"
    outcome = Outcome(exit_code=error.code, cause=cause, seconds=seconds, note=str(error), hosts=error.hosts)
    return of_outcome(outcome.replace(job_name=job_name))


def is_report(report: Any) -> bool:
    """Whether data that was read is a report: every field is there, and of the right type."""
    try:
        outcome = build(Outcome, report)
    except ShapeError:
        return False
    ends = [*report["ends"], report["first"]] if {"ends", "first"} <= report.keys() else []
    whole = all({*RankEnd._fields} - {"recorded"} <= end.keys() for end in ends if end is not None)
    return whole and {*Outcome._fields} <= report.keys() and (outcome.cause != "rank failed" or bool(outcome.first))
