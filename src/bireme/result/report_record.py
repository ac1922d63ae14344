"""The report as data, for ``--report``: converts an outcome or an error to a JSON object, and validates one. Pure."""

from __future__ import annotations

from bireme.errors import UNFIT, BiremeError
from bireme.result.outcome import Outcome, RankEnd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from bireme.result.outcome import Cause
    from bireme.value import Value


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
    """The report of a job that ended with an exception.

    Args:
        seconds: from the job's start to its end.
    """
    if not isinstance(error, BiremeError):
        return of_outcome(
            Outcome(
                exit_code=BiremeError.code,
                cause="internal error",
                seconds=seconds,
                note=f"{type(error).__name__}: {error}",
                job_name=job_name,
            )
        )
    cause: Cause = "unfit" if error.code == UNFIT else "internal error"
    outcome = Outcome(exit_code=error.code, cause=cause, seconds=seconds, note=str(error), hosts=error.hosts)
    return of_outcome(outcome.replace(job_name=job_name))


def is_one(report: Any) -> bool:
    """Whether data that was read is a report: every field is present and of the right type."""
    if not _has_fields(report, Outcome(exit_code=0, cause="ok", seconds=0.0)):
        return False
    ends = [*report["ends"], *([] if report["first"] is None else [report["first"]])]
    if report["cause"] == "rank failed" and not report["first"]:
        return False
    words = all(isinstance(word, str) for name in ("stuck", "logs", "hosts", "history") for word in report[name])
    return words and all(_has_fields(end, _END) for end in ends)


_END = RankEnd(rank=0, host="", device="", pid=0, code=0, by_signal=False, seconds=0.0, stopped=False)


def _has_fields(data: Any, example: Value) -> bool:
    """Whether ``data`` has the fields of the example, with the same types; ``None`` in the example allows any."""
    if not isinstance(data, dict):
        return False
    for name, value in example.as_dict().items():
        kind = type(data.get(name))
        right = kind is type(value) or value is None or (kind is int and isinstance(value, float))
        if name != "recorded" and (name not in data or not right):
            return False
    return True
