"""The report, as text (headline, a rank's last lines, stopped ranks, log files) and as data."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from bireme.errors import BiremeError, UnfitError
from bireme.result.failure_words import last_lines
from bireme.result.outcome import Outcome, RankEnd
from bireme.result.report import summary
from bireme.result.report_record import of_error, of_outcome
from bireme.validate import build


def end(rank=1, code=1, **more):
    fields = {"by_signal": False, "seconds": 12.34, "stopped": False, **more}
    return RankEnd(rank, "node7", "cuda:GPU-1", 4711, code, **fields)


def stopped(rank):
    return end(rank, 143, by_signal=True, stopped=True)


def failed(first, *others, **more):
    return Outcome(first.code, "rank failed", 20.0, (first, *others), first, **more)


def lines(outcome):
    return summary(outcome).splitlines()


def test_nothing_is_said_when_all_went_well():
    assert summary(Outcome(0, "ok", 1.0, (end(code=0),))) == ""


def test_everything_that_one_wants_to_know():
    first = end(3, 139, by_signal=True, detail="a\nb")
    report = lines(failed(first, stopped(0), stopped(1), logs=("/l/a", "/l/b", "/l/c")))
    assert report == [
        "rank 3 on node7 (cuda:GPU-1), pid 4711, failed first: SIGSEGV (exit code 139), after 12.3 s",
        "  | a",
        "  | b",
        "  2 other ranks were stopped because of it",
        "  logs: /l/a … /l/c",
    ]


def test_an_outcome_that_has_travelled_says_the_same():
    """As that of a job of functions: the one that failed is not one of those that were stopped."""
    first = end(0, code=3)
    outcome = Outcome(exit_code=3, cause="rank failed", seconds=1.0, ends=(first,), first=first)
    assert summary(build(Outcome, json.loads(json.dumps(outcome.as_dict())))) == summary(outcome)
    assert "other rank" not in summary(outcome)


def test_out_of_memory_is_said():
    report = lines(failed(end(code=137, by_signal=True, out_of_memory=True)))
    assert report[1].endswith("out-of-memory killer: the node has too little memory for the job")
    limit = "the limit of 512 MiB of systemd's user-1000.slice"
    report = lines(failed(end(code=137, by_signal=True, out_of_memory=True, memory_limit=limit)))
    assert report[1].endswith(f"out-of-memory killer: it has reached {limit}")


def test_ranks_that_had_to_be_killed():
    report = lines(failed(end(), stopped(0), killed=1))
    assert report[-1] == "  1 other rank was stopped because of it, by SIGKILL"


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        (Outcome(130, "signal", 3.0, (stopped(0), stopped(1)), signum=2), "stopped by SIGINT after 3.0 s"),
        (Outcome(141, "reader gone", 3.0), "stopped because the reader of its output went away"),
        (Outcome(75, "agent lost", 3.0, note="agent on b"), "agent on b"),
    ],
)
def test_other_ends(outcome, text):
    assert lines(outcome)[0] == text
    if outcome.ends:
        assert lines(outcome)[1] == "  2 ranks were stopped because of it"


def test_what_the_kernel_holds_is_named():
    report = lines(Outcome(0, "ok", 1.0, stuck=("17 (nfs, state D)",)))
    assert report[0] == "some processes could not be killed"
    assert "17 (nfs, state D)" in report[1]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (59.94, "59.9 s"), (60, "1 min 00 s"), (3599, "59 min 59 s"), (7619, "2 h 06 min")],
)
def test_durations(seconds, text):
    assert lines(failed(end(seconds=seconds)))[0].endswith(f"after {text}")


# -- last words ----------------------------------------------------------------------------------


def stderr_of(program):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True)
    assert done.returncode != 0
    return done.stderr


def words(stderr, recorded="", *, by_signal=False):
    return last_lines(stderr, recorded, by_signal=by_signal)


def test_from_the_traceback_on():
    text = words(b"noise\n" * 30 + stderr_of("1/0"))
    assert text.startswith("Traceback (most recent call last):")
    assert text.endswith("ZeroDivisionError: division by zero")
    assert "noise" not in text


CAUSE = "try:\n  {}['x']\nexcept KeyError as e:\n  raise RuntimeError('wrapped') from e"
CONTEXT = "try:\n  {}['x']\nexcept KeyError:\n  1/0"


@pytest.mark.parametrize(
    ("program", "parts"),
    [
        (CAUSE, ["KeyError: 'x'", "direct cause", "RuntimeError: wrapped"]),
        (CONTEXT, ["KeyError: 'x'", "another exception occurred", "ZeroDivisionError"]),
        (f"try:\n  exec({CAUSE!r})\nexcept RuntimeError:\n  open('/no/such')", ["KeyError", "wrapped", "FileNotFound"]),
    ],
    ids=["cause", "context", "three"],
)
def test_chained_tracebacks_are_whole(program, parts):
    text = words(b"noise\n" + stderr_of(program))
    assert text.startswith("Traceback")
    positions = [text.index(part) for part in parts]
    assert positions == sorted(positions)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.11 has exception groups")
def test_a_group_of_exceptions_is_whole():
    program = (
        "def f(n):\n"
        "  try: raise ValueError('inner %d' % n)\n"
        "  except ValueError as e: return e\n"
        "raise ExceptionGroup('many', [f(1), f(2)])"
    )
    text = words(b"noise\n" + stderr_of(program))
    for part in ("Exception Group Traceback", "ExceptionGroup: many (2 sub-exceptions)", "inner 1", "inner 2"):
        assert part in text
    assert "noise" not in text


def test_what_torch_puts_before_each_line_of_a_traceback():
    """Once there is a process group; the rank stands in the headline anyway."""
    lines = stderr_of("def f(n): return 1 / n if n < 30 else f(n - 1)\ntry: f(2) / 0\nexcept Exception: {}['x']")
    marked = b"".join(b"[rank12]: " + line if line.strip() else line for line in lines.splitlines(keepends=True))
    assert words(b"noise\n" * 9 + marked) == words(lines)
    assert words(b"[rank12]: one\n[rank]: two\n[rankle]: three\n") == "one\n[rank]: two\n[rankle]: three"


def test_a_syntax_error_has_no_traceback():
    assert "SyntaxError" in words(stderr_of("x = = 1"))


def test_only_the_last_of_independent_tracebacks():
    text = words(stderr_of("1/0") + b"recovered\n" + stderr_of("{}['x']"))
    assert "ZeroDivisionError" not in text
    assert "KeyError" in text


def test_the_last_lines_where_there_is_no_traceback():
    text = words(b"".join(b"line %d\n\n" % number for number in range(50)))
    assert text.splitlines() == [f"line {number}" for number in range(40, 50)]


def test_a_death_by_signal_is_not_explained_by_an_older_traceback():
    text = words(stderr_of("1/0") + b"".join(b"line %d\n" % n for n in range(10)), by_signal=True)
    assert "Traceback" not in text


def test_progress_bars_and_foreign_bytes():
    assert words(b"10%\r20%\r\n\xffbad\r\n").splitlines() == ["10%", "20%", "\N{REPLACEMENT CHARACTER}bad"]
    assert words(b"") == ""


def test_a_very_long_traceback_keeps_its_end():
    text = words(b"Traceback (most recent call last):\n" + b"  frame\n" * 1000 + b"ValueError: this\n")
    assert len(text.splitlines()) < 100
    assert text.startswith("Traceback")
    assert text.endswith("ValueError: this")


RECORDED = {"message": {"message": "ValueError: v", "extraInfo": {"py_callstack": "Traceback …\nValueError: v\n"}}}


def test_what_torch_has_recorded():
    assert words(b"plain\n", json.dumps(RECORDED)) == "Traceback …\nValueError: v"
    assert words(b"plain\n", json.dumps({"message": "in short"})) == "in short"


def test_the_ranks_own_stderr_is_better_than_the_record():
    assert "ZeroDivisionError" in words(stderr_of("1/0"), json.dumps(RECORDED))


@pytest.mark.parametrize("broken", ["", "{", "[]", "7", '{"message": 7}', '{"message": {"extraInfo": []}}', '{"a": 1}'])
def test_a_broken_record_is_survived(broken):
    assert words(b"plain\n", broken) in ("plain", "7")


# -- as data ---------------------------------------------------------------------------------------


def test_of_an_outcome():
    first = end(0, recorded="{}" * 1000, detail="ValueError: boom\nsecond line")
    record = json.loads(json.dumps(of_outcome(Outcome(1, "rank failed", 2.5, (first, end(1, 143)), first))))
    assert record["first"] == record["ends"][0]
    assert record["first"]["detail"] == "ValueError: boom\nsecond line"
    assert "recorded" not in record["first"] and "recorded" not in record["ends"][1]
    assert (record["exit_code"], record["cause"], record["seconds"]) == (1, "rank failed", 2.5)


def test_without_a_first():
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
def test_of_an_error(error, code, cause, note):
    record = of_error(error, 0.5)
    assert (record["exit_code"], record["cause"], record["note"]) == (code, cause, note)
    assert (record["seconds"], record["hosts"]) == (0.5, [])


def test_of_an_error_of_a_host():
    error = UnfitError("cannot start a process")
    error.hosts = ("localhost",)
    assert of_error(error, 0.5)["hosts"] == ["localhost"]
