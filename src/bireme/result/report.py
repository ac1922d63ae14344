"""Writes the report on a failed job: which rank failed first, where and how. Pure."""

from __future__ import annotations

from bireme.errors import counted
from bireme.result.outcome import describe, signal_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bireme.result.outcome import Outcome


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
    if lines and outcome.stacks:
        lines += ["  before they were stopped:", *(f"    {line}" for line in outcome.stacks.splitlines())]
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
        device = f" ({first.device})" if first.device else ""
        who = f"rank {first.rank} on {first.host}{device}, pid {first.pid},"
        return [f"{who} failed first: {how}, after {duration(first.seconds)}"]
    if outcome.cause == "signal":
        return [f"stopped by {signal_name(outcome.signum)} after {duration(outcome.seconds)}"]
    if outcome.cause == "reader gone":
        return ["stopped because the reader of its output went away"]
    if outcome.cause not in ("ok", "internal error"):
        return [outcome.note]
    return ["some processes could not be killed"] if outcome.stuck else []


def _others(outcome: Outcome) -> list[str]:
    alone = outcome.cause == "preempted"  # who saves may end with any code
    first = -1 if outcome.first is None else outcome.first.rank
    stopped = sum(end.stopped or bool(end.code and end.rank != first and not alone) for end in outcome.ends)
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
