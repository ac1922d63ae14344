"""Decides what the end of a run means: out of memory, a failure of the program, or one of the infrastructure.

A pure function from what ``bireme run`` left behind to a `TrialResult`.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping

from bireme.errors import BAD_INPUT, OK, TIME_LIMIT
from bireme.result import report_record
from bireme.result.outcome import RankEnd
from bireme.result.wait_status import describe
from bireme.tune.execution import tracebacks
from bireme.tune.execution.experiment import End
from bireme.tune.study.trial_result import Cause, TrialResult

_LINES = 20
"""Lines of a traceback that are kept."""

_OUTSIDE = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
"""Signals that come from outside the program: its node is shutting down, or someone ended it."""

_OURS = "bireme: "
_PORT_IS_TAKEN = re.compile(r"--master_port: port \d+ is taken")


def diagnose(end: End, figures: Mapping[str, float], reason: str, stderr: str) -> TrialResult:
    """Decide how an experiment ended.

    An experiment is ``ok`` if it measured all figures and its run exited with 0. If a rank fails after measuring, the
    experiment has failed: a real job with this configuration would fail too, and the figures of a failed process cannot
    be trusted.

    Without evidence against the configuration, the infrastructure is blamed: a run without a report was itself killed.

    Args:
        figures: what it measured, by name; none if the figure of its first goal is missing.
        reason: why a required figure is missing; "" if none is.
        stderr: the end of the run's stderr.
    """
    if end.hopeless and end.exit_code != OK and (figures or not reason):
        result = TrialResult(cause="pruned", reason=end.hopeless, metrics=dict(figures))
    elif end.hopeless and end.exit_code != OK:
        result = TrialResult(cause="no metric", reason=reason)
    elif end.exit_code == OK and reason and end.report is None:
        words = _our_words(stderr) or "no report, though the run exited with 0: is the disk full?"
        result = TrialResult(cause="infrastructure", reason=tracebacks.clip(words.partition("\n")[0]))
    elif end.exit_code == OK:
        result = (
            TrialResult(cause="no metric", reason=reason) if reason else TrialResult(cause="ok", metrics=dict(figures))
        )
    elif end.stopped:
        result = TrialResult(cause="stopped", reason="stopped by the tuner")  # whatever its ranks made of that
    elif end.report is None or not report_record.is_one(end.report):
        result = _without_report(end.exit_code, stderr)
    else:
        result = _of_report(end.report)
        if result.cause == "failed" and not reason:
            result = result.replace(reason=f"{result.reason} (after it had measured)")
    return result.replace(seconds=end.seconds)


def _without_report(code: int, stderr: str) -> TrialResult:
    """The result of a run without a report: it refused its command line, was killed, or could not write."""
    words = _our_words(stderr)
    if code == BAD_INPUT and not _PORT_IS_TAKEN.match(words):
        return TrialResult(
            cause="failed", reason=tracebacks.clip(words) or "bireme run refused its command line", detail=words
        )
    if code == TIME_LIMIT:
        return TrialResult(cause="timed out", reason="stopped after the time limit")
    if code == BAD_INPUT:
        return TrialResult(cause="infrastructure", reason=tracebacks.clip(words.partition("\n")[0]))
    how = describe(code, by_signal=code > 128)
    return TrialResult(cause="infrastructure", reason=f"bireme run left no report: {how}", detail=words)


def _of_report(report: Mapping[str, object]) -> TrialResult:
    """The result of a run whose report says that it did not end well."""
    cause, note = report["cause"], tracebacks.clip(str(report["note"]))
    if cause == "rank failed":
        return _of_ranks(report)
    if cause == "time limit":
        return TrialResult(cause="timed out", reason=note)
    if cause == "signal":
        how = describe(_exit_code(report), by_signal=True)
        return TrialResult(cause="infrastructure", reason=f"bireme run received {how} from outside")
    return TrialResult(cause="infrastructure", reason=note or str(cause), hosts=_hosts(report))


def _of_ranks(report: Mapping[str, object]) -> TrialResult:
    """The result when a rank has failed.

    Out of memory takes precedence: the rank that ran out of memory is not always the first to fail.
    """
    first, *others = _failed(report)
    for end in (first, *others):
        if end.out_of_memory:
            limit = f" at {end.memory_limit}" * bool(end.memory_limit)
            return _ending("out of memory", end, f"the kernel's out-of-memory killer ended it{limit}")
    for end in (first, *others):
        if said := tracebacks.of_memory(end.detail):
            return _ending("out of memory", end, said)
    for end in (first, *others):
        if said := tracebacks.of_port(end.detail) or tracebacks.of_disk(end.detail):
            return _ending("infrastructure", end, said)
    if first.by_signal and first.code - 128 in _OUTSIDE:
        return _ending("infrastructure", first, f"{_how(first)}, from outside")
    told = [end for end in others if end.detail and not tracebacks.of_another(end.detail)]
    blamed = told[0] if told and tracebacks.of_another(first.detail) else first
    return _ending("failed", blamed, _why(blamed))


def _failed(report: Mapping[str, object]) -> list[RankEnd]:
    """The ranks that failed: the first one, then others that failed by themselves, then stopped ones with a message."""
    first, ends = _end(report["first"]), report["ends"]
    assert isinstance(ends, list)
    others = [end for end in map(_end, ends) if end.code != OK and end.rank != first.rank]
    return [first, *sorted((end for end in others if end.detail or not end.stopped), key=lambda end: end.stopped)]


def _end(fields: object) -> RankEnd:
    assert isinstance(fields, dict)
    return RankEnd(**{name: fields[name] for name in RankEnd._fields if name in fields})


def _why(end: RankEnd) -> str:
    """How a rank ended, in one line: what it raised, or its exit status."""
    if tracebacks.is_traceback(end.detail):
        return tracebacks.headline(end.detail)
    said = "" if end.by_signal else tracebacks.headline(end.detail)
    return f"{_how(end)}: {said}" if said else _how(end)


def _how(end: RankEnd) -> str:
    return describe(end.code, by_signal=end.by_signal)


def _ending(cause: Cause, end: RankEnd, why: str) -> TrialResult:
    detail = "\n".join(end.detail.splitlines()[-_LINES:])
    return TrialResult(cause=cause, reason=f"rank {end.rank} on {end.host}: {why}", detail=detail)


def _exit_code(report: Mapping[str, object]) -> int:
    code = report["exit_code"]
    assert isinstance(code, int)
    return code


def _hosts(report: Mapping[str, object]) -> tuple[str, ...]:
    hosts = report["hosts"]
    assert isinstance(hosts, list)
    return tuple(map(str, hosts))


def _our_words(stderr: str) -> str:
    """The last message of ``bireme run`` itself."""
    lines = stderr.splitlines()
    begin = next((place for place in range(len(lines) - 1, -1, -1) if lines[place].startswith(_OURS)), len(lines))
    return "\n".join(line.removeprefix(_OURS).rstrip() for line in lines[begin:][:_LINES])
