"""Decides why a run has ended: out of memory, by a failure of the program, or by one of the infrastructure.

A pure function from what ``bireme run`` left behind to a `TrialResult`. Of a traceback only the exceptions are
examined: not the lines of source code that it shows, and not any line that merely contains a word such as "error" or
"memory", since programs also warn of both and go on.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from typing import Any

from bireme.errors import BAD_INPUT, OK, TIME_LIMIT
from bireme.result import report_record
from bireme.result.failure_words import CHAIN, GROUP, HEADER
from bireme.result.outcome import RankEnd, describe
from bireme.tune.execution.experiment import End
from bireme.tune.study.trial import Cause, TrialResult

_LINES = 20
"""Lines of a traceback that are kept."""

_OUTSIDE = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
"""Signals that come from outside the program: its node is shutting down, or someone ended it."""

_OURS = "bireme: "
_PORT_IS_TAKEN = re.compile(r"--master_port: port \d+ is taken")

_MOST_LINES = 12
"""Lines of an exception's message that are examined; NCCL names the reason in the fourth."""

_LONGEST = 200
_LOOKED_AT = 4096
"""Characters of a line that are examined, so that a hostile line cannot slow the patterns down."""

_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?::?$|:\s)")
_IN_GROUP = re.compile(r"^ +(?:\| ?|\+[-+ ]*)")
"""The prefix of lines in an exception group."""

_NAMES = ("OutOfMemoryError", "MemoryError", "_ArrayMemoryError")
"""Exceptions of torch and cupy; of Python; of NumPy."""

_MEMORY = re.compile(
    "|".join(
        (
            # torch's allocators, each with its device
            r"\b(?:CUDA|HIP|XPU|NPU|MPS|MUSA|MLU|GPU)(?: backend)? out of memory",
            r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory)",
            r"c10::(?:Cuda)?OutOfMemoryError",
            # what CUDA, HIP, oneAPI, CANN and Gaudi say themselves
            r"\b(?:CUDA|HIP)(?: driver)? error: out of memory",
            r"(?i:\bcuda failure(?: \d+)?:? '?out of memory)",
            r"\b(?:cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY|hipErrorOutOfMemory|HIP_ERROR_OutOfMemory)\b",
            r"\b(?:CU|HIP)(?:BLAS|DNN|SOLVER|SPARSE)_STATUS_ALLOC_FAILED\b|\bCUFFT_ALLOC_FAILED\b",
            r"\b(?:UR_RESULT|PI)_ERROR_OUT_OF_(?:(?:DEVICE|HOST)_MEMORY|RESOURCES)\b",
            r"\bMemory_Allocation_Failure\b",
            r"\bPT_DEVMEM Allocation failed\b",
            # XLA; TensorFlow
            r"(?i:\bresource[ _]exhausted\b.*out of memory)|\bOOM when allocating tensor\b",
            # C++; the kernel, for mmap and fork
            r"std::bad_alloc\b",
            r"\[Errno 12\]|\bCannot allocate memory\b",
            # a worker of torch's DataLoader that the kernel has killed, or that found /dev/shm full
            r"DataLoader worker .* is killed by signal: Killed|workers are out of shared memory",
        )
    )
)

_ABSURD = "more than 1EB"
"""torch's message for a wrong size: a smaller batch would not help."""

_PORT = re.compile(r"\bEADDRINUSE\b|\baddress already in use\b", re.IGNORECASE)

_DISK = re.compile(r"\[Errno (?:28|122)\]")
"""Python's form. Not "No space left on device", which torch also says of shared memory, where a smaller batch helps."""

_ANOTHER = re.compile(
    r"[Cc]onnection (?:was )?(?:closed|reset|refused)|Broken pipe|ncclRemoteError|remote process exited"
    r"|[Ss]ocket [Tt]imeout|recvValue failed|Timed out (?:waiting|after)|Application timeout"
)


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
    if end.end_reason and end.exit_code != OK and (figures or not reason):
        result = TrialResult(cause="pruned", reason=end.end_reason, metrics=dict(figures))
    elif end.end_reason and end.exit_code != OK:
        result = TrialResult(cause="no metric", reason=reason)
    elif end.exit_code == OK and reason and end.report is None:
        words = _our_words(stderr) or "no report, though the run exited with 0: is the disk full?"
        result = TrialResult(cause="infrastructure", reason=clip(words.partition("\n")[0]))
    elif end.exit_code == OK:
        result = (
            TrialResult(cause="no metric", reason=reason) if reason else TrialResult(cause="ok", metrics=dict(figures))
        )
    elif end.stopped:
        result = TrialResult(cause="stopped", reason="stopped by the tuner")  # whatever its ranks made of that
    elif end.report is None or not report_record.is_report(end.report):
        result = _without_report(end.exit_code, stderr)
    else:
        result = _of_report(end.report)
        if result.cause == "failed" and not reason:
            result = result.replace(reason=f"{result.reason} (after it had reported its metrics)")
    return result.replace(seconds=end.seconds)


def _without_report(code: int, stderr: str) -> TrialResult:
    """The result of a run without a report: it refused its command line, was killed, or could not write."""
    words = _our_words(stderr)
    if code == BAD_INPUT and not _PORT_IS_TAKEN.match(words):
        return TrialResult(cause="failed", reason=clip(words) or "bireme run refused its command line", detail=words)
    if code == TIME_LIMIT:
        return TrialResult(cause="timed out", reason="stopped after the time limit")
    if code == BAD_INPUT:
        return TrialResult(cause="infrastructure", reason=clip(words.partition("\n")[0]))
    how = describe(code, by_signal=code > 128)
    return TrialResult(cause="infrastructure", reason=f"bireme run left no report: {how}", detail=words)


def _of_report(report: Mapping[str, Any]) -> TrialResult:
    """The result of a run whose report says that it did not end well."""
    cause, note = report["cause"], clip(str(report["note"]))
    if cause == "rank failed":
        return _of_ranks(report)
    if cause == "time limit":
        return TrialResult(cause="timed out", reason=note)
    if cause == "signal":
        how = describe(report["exit_code"], by_signal=True)
        return TrialResult(cause="infrastructure", reason=f"bireme run received {how} from outside")
    return TrialResult(cause="infrastructure", reason=note or str(cause), hosts=tuple(map(str, report["hosts"])))


def _of_ranks(report: Mapping[str, Any]) -> TrialResult:
    """The result when a rank has failed.

    Out of memory takes precedence: the rank that ran out of memory is not always the first to fail.
    """
    first, *others = _failed(report)
    for end in (first, *others):
        if end.out_of_memory:
            limit = f" at {end.memory_limit}" * bool(end.memory_limit)
            return _ending("out of memory", end, f"the kernel's out-of-memory killer ended it{limit}")
    for end in (first, *others):
        if said := of_memory(end.detail):
            return _ending("out of memory", end, said)
    for end in (first, *others):
        if said := of_port(end.detail) or of_disk(end.detail):
            return _ending("infrastructure", end, said)
    if first.by_signal and first.code - 128 in _OUTSIDE:
        return _ending("infrastructure", first, f"{describe(first.code, by_signal=True)}, from outside")
    told = [end for end in others if end.detail and not of_another(end.detail)]
    blamed = told[0] if told and of_another(first.detail) else first
    return _ending("failed", blamed, _why(blamed))


def _failed(report: Mapping[str, Any]) -> list[RankEnd]:
    """The ranks that failed: the first one, then others that failed by themselves, then stopped ones with a message."""
    first = _end(report["first"])
    others = [end for end in map(_end, report["ends"]) if end.code != OK and end.rank != first.rank]
    return [first, *sorted((end for end in others if end.detail or not end.stopped), key=lambda end: end.stopped)]


def _end(fields: Mapping[str, Any]) -> RankEnd:
    return RankEnd(**{name: fields[name] for name in RankEnd._fields if name in fields})


def _why(end: RankEnd) -> str:
    """How a rank ended, in one line: what it raised, or its exit status."""
    if is_traceback(end.detail):
        return headline(end.detail)
    how, said = describe(end.code, by_signal=end.by_signal), "" if end.by_signal else headline(end.detail)
    return f"{how}: {said}" if said else how


def _ending(cause: Cause, end: RankEnd, why: str) -> TrialResult:
    detail = "\n".join(end.detail.splitlines()[-_LINES:])
    return TrialResult(cause=cause, reason=f"rank {end.rank} on {end.host}: {why}", detail=detail)


def _our_words(stderr: str) -> str:
    """The last message of ``bireme run`` itself."""
    lines = stderr.splitlines()
    begin = next((place for place in range(len(lines) - 1, -1, -1) if lines[place].startswith(_OURS)), len(lines))
    return "\n".join(line.removeprefix(_OURS).rstrip() for line in lines[begin:][:_LINES])


# -- tracebacks --------------------------------------------------------------------------------------


def exceptions(detail: str) -> tuple[str, ...]:
    """The exceptions of a traceback and of those chained to it, each with its message, in their order.

    A text without a traceback counts as one exception: from a program that is not Python, or a ``sys.exit``.
    """
    lines = detail.splitlines()
    if not is_traceback(detail):
        return (detail.strip(),) if detail.strip() else ()
    if GROUP in detail:
        lines = [_IN_GROUP.sub("", line) for line in lines]
    found: list[list[str]] = []
    place = "outside"
    for line in lines:
        if HEADER in line:
            place = "frames"
        elif line.startswith(CHAIN):
            place = "outside"
        elif place == "frames" and _EXCEPTION.match(line):
            found.append([line])
            place = "message"
        elif place == "message":
            found[-1].append(line)
    return tuple("\n".join(message[:_MOST_LINES]).strip() for message in found)


def is_traceback(detail: str) -> bool:
    """Whether this text contains a traceback."""
    return HEADER in detail


def headline(detail: str) -> str:
    """The line that says best what happened: that of the last exception, else the last line."""
    said = exceptions(detail)
    if not said:
        return ""
    return clip(said[-1].splitlines()[0 if is_traceback(detail) else -1])


def of_memory(detail: str) -> str:
    """The line that reports that memory ran out; "" if there is none."""
    return next((clip(line) for line in _lines(detail) if _is_of_memory(line)), "")


def of_port(detail: str) -> str:
    """The line that reports a port in use; "" if there is none."""
    return next((clip(line) for line in _lines(detail) if _PORT.search(line)), "")


def of_disk(detail: str) -> str:
    """The line that reports a full disk; "" if there is none."""
    return next((clip(line) for line in _lines(detail) if _DISK.search(line)), "")


def of_another(detail: str) -> bool:
    """Whether it only reports that another rank is gone."""
    return bool(_ANOTHER.search(headline(detail)))


def clip(line: str) -> str:
    """The text as one line, shortened to fit a table."""
    line = " ".join(line.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


def _lines(detail: str) -> tuple[str, ...]:
    """The lines of all exceptions, those of the last exception first, since that is the one people look at."""
    return tuple(line[:_LOOKED_AT] for said in reversed(exceptions(detail)) for line in said.splitlines())


def _is_of_memory(line: str) -> bool:
    if _ABSURD in line:
        return False
    name = line.partition(":")[0].rpartition(".")[2]
    return name in _NAMES or _MEMORY.search(line) is not None
