"""What happened, as a program reads it: the object of ``--report``. Pure: an outcome or an error in, plain data out."""

from __future__ import annotations

from bireme.errors import LOST, UNFIT, BiremeError
from bireme.supervise.outcome import Outcome

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from bireme.supervise.outcome import Cause


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
