"""Writes the report on a failed job: which rank failed first, where, how, and its last lines or traceback. Pure."""

from __future__ import annotations

from bireme import jsontext
from bireme.errors import counted
from bireme.result.wait_status import describe, signal_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bireme.result.outcome import Outcome, RankEnd


def summary(outcome: Outcome) -> str:
    """The report, in several lines; empty if the job succeeded."""
    lines = _headline(outcome)
    if lines and outcome.job_name:
        lines[0] = f"{outcome.job_name}: {lines[0]}"
    first = outcome.first
    if first is not None:
        if first.out_of_memory:
            limit = first.memory_limit and f"it has reached {first.memory_limit}"
            why = limit or "the node has too little memory for the job"
            lines.append(f"  killed by the kernel's out-of-memory killer: {why}")
        lines += [f"  | {line}" for line in first.detail.splitlines()]
    lines += _others(outcome)
    if outcome.cause == "rank failed" and outcome.note:
        lines.append(f"  {outcome.note}")
    if outcome.stuck:
        lines.append(f"  still alive after SIGKILL (held by the kernel) and left behind: {', '.join(outcome.stuck)}")
    if lines and outcome.logs:
        lines.append(f"  logs: {_shorten(outcome.logs)}")
    return "\n".join(lines)


def headline(outcome: Outcome) -> str:
    """How the job ended, in one line."""
    return "".join(_headline(outcome)[:1]).partition("\n")[0]


def story(history: tuple[str, ...], most: int = 20) -> str:
    """The history of an elastic job: one line for each of the last ``most`` changes."""
    head = f"{counted(len(history), 'change')} during the job:"
    earlier = [f"  … {len(history) - most} earlier changes"] if len(history) > most else []
    return "\n".join((head, *earlier, *(f"  {line}" for line in history[-most:])))


def _headline(outcome: Outcome) -> list[str]:
    first = outcome.first
    if first is not None:
        how = describe(first.code, by_signal=first.by_signal)
        return [f"{_who(first)} failed first: {how}, after {duration(first.seconds)}"]
    if outcome.cause == "signal":
        return [f"stopped by {signal_name(outcome.signum)} after {duration(outcome.seconds)}"]
    if outcome.cause == "reader gone":
        return ["stopped because the reader of its output went away"]
    if outcome.cause in ("agent lost", "unfit", "time limit", "membership", "too few nodes", "not fetched"):
        return [outcome.note]
    return ["some processes could not be killed"] if outcome.stuck else []


def _who(end: RankEnd) -> str:
    device = f" ({end.device})" if end.device else ""
    return f"rank {end.rank} on {end.host}{device}, pid {end.pid},"


def _others(outcome: Outcome) -> list[str]:
    stopped = sum(1 for end in outcome.ends if end.stopped or (end.code and end is not outcome.first))
    if not stopped or outcome.cause == "ok":
        return []
    ranks = counted(stopped, "rank" if outcome.first is None else "other rank")
    killed = ""
    if outcome.killed:
        killed = ", by SIGKILL" if outcome.killed == stopped else f", {outcome.killed} of them by SIGKILL"
    return [f"  {ranks} {'was' if stopped == 1 else 'were'} stopped because of it{killed}"]


def _shorten(paths: tuple[str, ...]) -> str:
    return ", ".join(paths) if len(paths) <= 2 else f"{paths[0]} … {paths[-1]}"


def duration(seconds: float) -> str:
    """``0.8 s``, ``12.4 s``, ``3 min 05 s``, ``2 h 07 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def last_lines(stderr: bytes, error_file: str, *, by_signal: bool, lines: int = 10) -> str:
    """What to quote of a failed rank: its traceback if there is one, else the last lines of its stderr.

    Args:
        error_file: the content (JSON) of the file that torch's ``record`` decorator writes; "": none. A traceback on
            stderr is preferred: it is the user's own exception, where it happened.
        by_signal: whether it died by a signal, so that an older traceback is not the reason.
    """
    traceback = "" if by_signal else last_traceback(stderr)
    if traceback:
        return traceback
    if error_file:
        recorded = _recorded(error_file)
        if recorded:
            return _clip(recorded)
    return "\n".join([line for line in _text(stderr).splitlines() if line.strip()][-lines:])


def last_traceback(stderr: bytes) -> str:
    """The last traceback in a rank's stderr, and what follows it; "" if there is none."""
    text = _text(stderr)
    start = _last_traceback(text)
    return _clip(text[start:]) if start >= 0 else ""


def _text(stderr: bytes) -> str:
    text = stderr.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")
    if "\x1b" in text:
        import re

        text = re.sub(r"\x1b\[[0-9;:]*m", "", text)  # colours; the console shows other escapes by their numbers
    if "[rank" not in text:
        return text
    return "".join(map(_without_rank, text.splitlines(keepends=True)))


def _without_rank(line: str) -> str:
    """Remove the ``[rank1]: `` that torch puts before each line of a traceback once its process group exists."""
    rank, colon, rest = line.partition("]: ")
    return rest if colon and rank.startswith("[rank") and rank[5:].isdecimal() else line


_TRACEBACK = ("Traceback (most recent call last):", "  + Exception Group Traceback (most recent call last):")
_CHAIN = ("direct cause of the following exception", "another exception occurred")


def _last_traceback(text: str) -> int:
    """The offset of the last traceback, including those that it is chained to; -1: there is none.

    An indented traceback belongs to an exception group, which begins earlier.
    """
    starts = _line_starts(text)
    while len(starts) > 1:
        before = text[: starts[-1]].rstrip().rpartition("\n")[2]
        if not any(phrase in before for phrase in _CHAIN):
            break
        starts.pop()
    return starts[-1] if starts else -1


def _line_starts(text: str) -> list[int]:
    """The offsets of the lines that begin a traceback."""
    starts = []
    place = 0
    for line in text.splitlines(keepends=True):
        if line.startswith(_TRACEBACK):
            starts.append(place)
        place += len(line)
    return starts


def _recorded(text: str) -> str:
    try:
        message = jsontext.loads(text)["message"]
        if isinstance(message, dict):
            stack = message.get("extraInfo", {}).get("py_callstack", "")
            return str(stack or message.get("message", ""))
        return str(message)
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""


def _clip(text: str, most: int = 60) -> str:
    """Shorten to ``most`` lines: a quarter from the beginning, the rest from the end."""
    lines = text.rstrip().splitlines()
    if len(lines) <= most:
        return "\n".join(lines)
    left_out = len(lines) - most
    return "\n".join([*lines[: most // 4], f"  … {left_out} lines …", *lines[-(most - most // 4) :]])
