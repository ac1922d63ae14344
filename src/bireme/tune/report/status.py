"""A study on one screen: what runs where, the best so far, how many are done of what, and the time left if known."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from bireme.errors import counted
from bireme.result.report import duration
from bireme.tune.metrics.numbers import scaled, shown_ratio
from bireme.tune.report.study_record import MEASURED, StudyRecord, TrialRecord
from bireme.tune.report.time_use import StudyClock
from bireme.value import Value

_PHASES = {
    "noise": "measuring the noise",
    "search": "searching",
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
    noise: float | None
    seconds: float
    left: float | None


def status(study: StudyRecord, now: float) -> Status:
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
        noise=study.noise,
        seconds=clock.wall,
        left=_left(study, clock.wall),
    )


def _running(study: StudyRecord, trial: TrialRecord, now: float) -> dict[str, Any]:
    return {
        "trial": trial.name,
        "configuration": study.configurations[trial.config].text,
        "on": trial.place,
        "phase": trial.phase,
        "since": trial.began,
        "seconds": None if trial.began is None else round(now - trial.began, 3),
    }


def _best(study: StudyRecord, config: int) -> dict[str, Any]:
    mean, base = study.mean(config), study.mean(0)
    ratio = None if not mean or not base else mean / base if study.goals[0].maximized else base / mean
    answer = study.answer
    sure = answer is not None and answer.best == config and answer.confirmed
    return {
        "configuration": study.configurations[config].text,
        "default": config == 0,
        "figure": study.goals[0].name if study.goals else "",
        "value": mean,
        "ratio": answer.ratio if answer is not None and sure else ratio,
        "low": answer.low if answer is not None and sure else None,
        "high": answer.high if answer is not None and sure else None,
        "confirmed": sure,
    }


def _left(study: StudyRecord, wall: float) -> float | None:
    """Seconds to go at most: of the budget, or for the trials that are left at the pace so far."""
    if study.state != "running":
        return None
    done, limits = len(study.ended), []
    if study.budget is not None:
        limits.append(max(0.0, study.budget - wall))
    if study.most is not None and done:
        limits.append(max(0.0, study.most - done) * wall / done)
    return min(limits) if limits else None


def status_text(study: StudyRecord, now: float) -> str:
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
        lines.append(f"noise of a run: {known.noise:.1%}")
    lines.append(_best_words(study, known))
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


def _best_words(study: StudyRecord, known: Status) -> str:
    """The best configuration so far in a line."""
    best = known.best
    if best is None:
        return "nothing was measured yet" if known.state == "running" else "nothing was measured"
    value = "" if best["value"] is None else f"  {best['figure']} {scaled(best['value'], study.goals[0].unit)}"
    ratio = "" if best["ratio"] is None else f", {shown_ratio(best['ratio'])} x the default"
    sure = ""
    if best["default"]:
        ratio = " (the default)"
    elif best["confirmed"] and best["low"] is not None:
        high = shown_ratio(best["high"]) if best["high"] is not None else "unknown"
        sure = f" ({study.confidence:.0%}: {shown_ratio(best['low'])} to {high})"
    elif best["ratio"] is not None:
        sure = " (not confirmed)"
    return f"best{'' if known.state == 'over' else ' so far'}: {best['configuration']}{value}{ratio}{sure}"
