"""What happened, as a program reads it: the object of ``--report``. Pure: an outcome or an error in, plain data out."""

from __future__ import annotations

from bireme.errors import LOST, UNFIT, BiremeError
from bireme.result.outcome import Outcome, RankEnd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from bireme.result.outcome import Cause
    from bireme.value import Value


def of_outcome(outcome: Outcome) -> dict[str, Any]:
    """The fields of the outcome; of ranks, those of their ends.

    Without ``recorded``: what is of use in it stands in ``detail``, and the whole may be a megabyte for each rank.
    """
    record = outcome.as_dict()
    for end in (*record["ends"], record["first"]):
        if end is not None:
            end.pop("recorded", None)
    return record


def of_error(error: Exception, seconds: float) -> dict[str, Any]:
    """The same for a job that an error of ours has ended."""
    if not isinstance(error, BiremeError):
        return of_outcome(Outcome(BiremeError.code, "internal error", seconds, note=f"{type(error).__name__}: {error}"))
    causes: dict[int, Cause] = {UNFIT: "unfit", LOST: "agent lost"}
    cause = causes.get(error.code, "internal error")
    return of_outcome(Outcome(error.code, cause, seconds, note=str(error), hosts=error.hosts))


def is_one(report: Any) -> bool:
    """Whether what was read back is such an object: every field there, and of its type."""
    if not _has_fields(report, Outcome(0, "ok", 0.0)):
        return False
    ends = [*report["ends"], *([] if report["first"] is None else [report["first"]])]
    if report["cause"] == "rank failed" and not report["first"]:
        return False
    words = all(isinstance(word, str) for name in ("stuck", "logs", "hosts", "history") for word in report[name])
    return words and all(_has_fields(end, _END) for end in ends)


_END = RankEnd(0, "", "", 0, 0, False, 0.0, False)


def _has_fields(data: Any, example: Value) -> bool:
    """Whether this has the fields of the example, each of the same type; ``None`` there stands for any."""
    if not isinstance(data, dict):
        return False
    for name, value in example.as_dict().items():
        kind = type(data.get(name))
        right = kind is type(value) or value is None or (kind is int and isinstance(value, float))
        if name != "recorded" and (name not in data or not right):
            return False
    return True
