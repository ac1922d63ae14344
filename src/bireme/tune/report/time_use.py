"""What the time of a study went into, and its clock: time in which no tuner ran does not count."""

from __future__ import annotations

from collections.abc import Sequence

from bireme.tune.report.view import INTERRUPTED, MEASURED, TrialView
from bireme.value import Value

PARTS = ("measuring", "repeating", "warm-up", "launch", "without a figure", "idle slots")
"""``repeating``: measuring again, for the noise and in paired rounds; ``without a figure``: trials that gave none."""

_PAUSE = 60.0
"""Seconds in which nothing ran, after which the tuner is taken to have been stopped."""


class TimeUse(Value):
    """Seconds of all slots together, by what they went into; slots; and wall time."""

    parts: dict[str, float]
    slots: int
    wall: float


class StudyClock:
    """Seconds of a study since its first start; pauses of the tuner are left out.

    Args:
        trials: of the study.
        now: the end of those that run; seconds since the epoch.
    """

    def __init__(self, trials: Sequence[TrialView], now: float) -> None:
        spans = sorted((each.began, end_of(each, now)) for each in trials if each.began is not None)
        self._pauses: list[tuple[float, float]] = []
        self._begin = last = spans[0][0] if spans else now
        for began, ended in spans:
            if began - last > _PAUSE:
                self._pauses.append((last, began))
            last = max(last, ended)
        self.wall = self.at(last)

    def at(self, when: float) -> float:
        """The study's time at a moment."""
        paused = sum(max(0.0, min(when, end) - begin) for begin, end in self._pauses)
        return max(0.0, when - self._begin - paused)


def end_of(trial: TrialView, now: float) -> float:
    """When a trial ended, as far as it is known."""
    if trial.ended is not None:
        return trial.ended
    return (trial.began or now) if trial.cause == INTERRUPTED else now


def time_use(trials: Sequence[TrialView], now: float) -> TimeUse:
    """What the time went into; ``now``: seconds since the epoch."""
    used = dict.fromkeys(PARTS, 0.0)
    places: set[str] = set()
    for trial in trials:
        own = slots_of(trial.place)
        places |= own
        width = len(own) or 1
        seconds = trial.seconds or (end_of(trial, now) - (trial.began or now))
        if trial.cause != MEASURED:
            used["without a figure"] += width * seconds
            continue
        launch, warm_up = trial.parts.get("launch", 0.0), trial.parts.get("warm_up", 0.0)
        used["launch"] += width * launch
        used["warm-up"] += width * warm_up
        rest = "measuring" if trial.phase not in ("noise", "screen", "confirm") else "repeating"
        used[rest] += width * max(0.0, seconds - launch - warm_up)
    wall = StudyClock(trials, now).wall
    used["idle slots"] = max(0.0, len(places) * wall - sum(used.values()))
    return TimeUse(used, len(places), wall)


def slots_of(place: str) -> set[str]:
    """The slots of ``node1:0,1@node2:3``, each as ``node1:0``."""
    found = set()
    for node in place.split("@"):
        host, colon, slots = node.rpartition(":")
        if colon:
            found |= {f"{host}:{slot}" for slot in slots.split(",")}
    return found
