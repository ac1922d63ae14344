"""The report as data, and its validation."""

from __future__ import annotations

import json

import pytest

from bireme.errors import BiremeError, UnfitError
from bireme.result.outcome import Outcome, RankEnd
from bireme.result.report_record import of_error, of_outcome


def end(rank: int = 0, code: int = 1, **more: object) -> RankEnd:
    fields = {"by_signal": False, "seconds": 1.5, "stopped": False, **more}
    return RankEnd(rank, "node7", "cuda:1", 4711, code, **fields)  # type: ignore[arg-type]


def test_of_an_outcome() -> None:
    first = end(recorded="{}" * 1000, detail="ValueError: boom\nsecond line")
    record = json.loads(json.dumps(of_outcome(Outcome(1, "rank failed", 2.5, (first, end(1, 143)), first))))
    assert record["first"] == record["ends"][0]
    assert record["first"]["detail"] == "ValueError: boom\nsecond line"
    assert "recorded" not in record["first"] and "recorded" not in record["ends"][1]
    assert (record["exit_code"], record["cause"], record["seconds"]) == (1, "rank failed", 2.5)


def test_without_a_first() -> None:
    record = of_outcome(Outcome(69, "unfit", 0.5, note="two are bad", hosts=("a", "b")))
    assert (record["first"], record["ends"], record["hosts"]) == (None, [], ["a", "b"])


@pytest.mark.parametrize(
    ("error", "code", "cause", "note"),
    [
        (UnfitError("too few files", hint="ulimit -n 4096"), 69, "unfit", "too few files\n  ulimit -n 4096"),
        (BiremeError("what"), 125, "internal error", "what"),
        (ZeroDivisionError("division by zero"), 125, "internal error", "ZeroDivisionError: division by zero"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_of_an_error(error: Exception, code: int, cause: str, note: str) -> None:
    record = of_error(error, 0.5)
    assert (record["exit_code"], record["cause"], record["note"]) == (code, cause, note)
    assert (record["seconds"], record["hosts"]) == (0.5, [])


def test_of_an_error_of_a_host() -> None:
    error = UnfitError("cannot start a process")
    error.hosts = ("localhost",)
    assert of_error(error, 0.5)["hosts"] == ["localhost"]
