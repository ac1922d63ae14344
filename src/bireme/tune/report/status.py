"""A study on one screen: what runs where, the best so far, how many are done of what, and the time left if known."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from bireme.errors import counted
from bireme.result.report import duration
from bireme.tune.metrics.numbers import scaled, shown_ratio
from bireme.tune.report.time_use import StudyClock
from bireme.tune.report.view import MEASURED, StudyView, TrialView
from bireme.value import Value

_PHASES = {
    "noise": "measuring the noise",
    "search": "searching",
    "profile": "profiling the model",
    "limits": "searching what fits in memory",
    "rest": "searching",
    "screen": "running the best again",
    "confirm": "comparing the finalists",
}
_MOST = 40
"""Running trials that are listed."""


class Status(Value):
    """What the screen shows; times in seconds."""

    folder: str
    state: str
    phase: str
    done: int
    most: int | None
    causes: dict[str, int]
    running: tuple[dict[str, Any], ...]
    best: dict[str, Any] | None
    promising: dict[str, Any] | None
    noise: float | None
    seconds: float
    left: float | None


def status(study: StudyView, now: float) -> Status:
    """The state of a study; ``now``: seconds since the epoch."""
    clock = StudyClock(study.trials, now)
    latest = (study.running or list(study.trials))[-1:]
    best = study.best
    return Status(
        folder=study.folder,
        state=study.state,
        phase=latest[0].phase if latest and study.state != "over" else "",
        done=len(study.ended),
        most=study.most,
        causes=dict(Counter(trial.cause for trial in study.ended).most_common()),
        running=tuple(_running(study, trial, now) for trial in study.running),
        best=None if best is None else _best(study, best),
        promising=None if study.promising is None else _best(study, study.promising),
        noise=study.answer.noise,
        seconds=clock.wall,
        left=_left(study, clock.wall),
    )


def _running(study: StudyView, trial: TrialView, now: float) -> dict[str, Any]:
    return {
        "trial": trial.name,
        "configuration": study.configurations[trial.config].text,
        "on": trial.place,
        "phase": trial.phase,
        "since": trial.began,
        "seconds": None if trial.began is None else round(now - trial.began, 3),
    }


def _best(study: StudyView, config: int) -> dict[str, Any]:
    """A configuration in figures: the best, or one that is promising."""
    answer = study.answer
    sure = answer.best == config and answer.confirmed and study.kind == "program"
    return {
        "configuration": study.configurations[config].text,
        "default": config == 0 and study.kind == "program",
        "figure": study.goals[0].name if study.goals else "",
        "value": study.mean(config),
        "ratio": answer.ratio if sure else study.ratio(config),
        "low": answer.low if sure else None,
        "high": answer.high if sure else None,
        "confirmed": answer.best == config and answer.confirmed,
    }


def _left(study: StudyView, wall: float) -> float | None:
    """Seconds to go at most: of the budget, or for the trials that are left at the pace so far."""
    if study.state != "running":
        return None
    done, limits = len(study.ended), []
    if study.budget is not None:
        limits.append(max(0.0, study.budget - wall))
    if study.most is not None and done:
        limits.append(max(0.0, study.most - done) * wall / done)
    return min(limits) if limits else None


def status_text(study: StudyView, now: float) -> str:
    """The screen."""
    known = status(study, now)
    state = {"running": "running", "over": "over", "stopped": "stopped; the same command continues it"}[known.state]
    if known.state == "stopped" and not known.done:
        state = "stopped before its first trial ended"
    lines = [f"{known.folder}: {state}", f"  {study.command}" if study.command else ""]
    if known.phase and known.state == "running":
        lines.append(f"{_PHASES.get(known.phase, known.phase)}, for {duration(known.seconds)}{_left_words(known)}")
    elif known.seconds:
        lines.append(f"took {duration(known.seconds)}{f': {study.over}' if study.over else ''}")
    of = f" of at most {known.most}" if known.most and known.state != "over" else ""
    causes = ", ".join(f"{count} {'measured' if name == MEASURED else name}" for name, count in known.causes.items())
    lines.append(f"{counted(known.done, 'trial')} done{of}{f': {causes}' if causes else ''}")
    if known.noise is not None:
        lines.append(f"noise of a run: {100 * known.noise:.1f} %")
    lines += _best_words(study, known)
    for running in known.running[:_MOST]:
        since = ""
        if running["since"] is not None:
            clock = time.strftime("%H:%M:%S", time.localtime(running["since"]))
            since = f"since {clock} ({duration(running['seconds'])})"
        lines.append(f"  on {running['on']}  {since}  {running['configuration'] or running['trial']}")
    if len(known.running) > _MOST:
        lines.append(f"  and {len(known.running) - _MOST} more")
    return "\n".join(line for line in lines if line) + "\n"


def _left_words(known: Status) -> str:
    return "" if known.left is None else f", at most about {duration(known.left)} left"


def _best_words(study: StudyView, known: Status) -> list[str]:
    """The best configuration so far, and one that looks better, in a line each."""
    if known.best is None:
        if known.state == "running":
            return ["nothing was measured yet"]
        return [study.answer.text if known.done else "nothing was measured"]
    so_far = "" if known.state == "over" else " so far"
    lines = [f"best{so_far}: {_described(study, known.best)}"]
    if known.promising is not None:
        lines.append(f"promising, but not confirmed: {_described(study, known.promising)}")
    return lines


def _described(study: StudyView, one: dict[str, Any]) -> str:
    value = "" if one["value"] is None else f"  {one['figure']} {scaled(one['value'], study.goals[0].unit)}"
    if study.kind == "deepspeed":
        return f"{one['configuration']}{value}, {study.answer.text}"
    ratio = "" if one["ratio"] is None else f", {shown_ratio(one['ratio'])} x the default"
    if one["default"]:
        ratio = " (the default)"
    elif one["confirmed"] and one["low"] is not None:
        high = shown_ratio(one["high"]) if one["high"] is not None else "unknown"
        ratio += f" ({study.confidence:.0%}: {shown_ratio(one['low'])} to {high})"
    return f"{one['configuration']}{value}{ratio}"
