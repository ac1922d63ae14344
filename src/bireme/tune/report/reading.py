"""Reads a study's folder, also while the study runs: its journal, the best command, and the ends of its logs."""

from __future__ import annotations

import json
import math
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bireme.errors import BadInputError
from bireme.regular_file import open_regular, read_regular
from bireme.tune.report.finalists import compared_by_answer, compared_by_rounds
from bireme.tune.report.secrets import Secrets
from bireme.tune.report.study_record import (
    INTERRUPTED,
    RUNNING,
    AnswerRecord,
    Configuration,
    GoalRecord,
    ParameterRecord,
    State,
    StudyRecord,
    TrialRecord,
)
from bireme.tune.store import journal
from bireme.tune.tables import short

JOURNAL, BEST_COMMAND = "journal", "cmd_best.txt"
DEFAULT = "tuning"
_TAIL = 4096
"""Bytes at the end of a log that are looked at."""

Record = Mapping[str, Any]


def read_study(folder: str) -> tuple[StudyRecord, Secrets]:
    """Read the last study in a folder; also returns what hides secrets in its logs.

    Raises:
        BadInputError: there is no study, or its journal is damaged.
    """
    path = os.path.join(os.path.expanduser(folder), JOURNAL)
    if not os.path.exists(path):
        raise BadInputError(
            f"no study in {folder}: there is no {path}",
            hint="name the results folder of a study, which holds its journal",
        )
    running = journal.is_open(path)  # first: a study that ends now has written its last record
    return _study(os.path.abspath(os.path.dirname(path)), _last_study(journal.read(path)), running)


class _Journaled:
    """The records of the last study of a journal."""

    def __init__(self) -> None:
        self.identity: Record = {}
        self.starts: dict[str, Record] = {}
        self.ends: dict[str, Record] = {}
        self.over: Record = {}


def _last_study(records: Iterable[Record]) -> _Journaled:
    """Sort the records; of a trial that was run again, the last start and the last end count."""
    found = _Journaled()
    for record in records:
        if "study" in record:
            found = _Journaled()
            found.identity = record["study"]
        elif "run" in record:  # what may differ from one start of the command to the next
            found.identity = {**found.identity, **record["run"]}
        elif "start" in record:
            found.starts.pop(record["start"], None)
            found.starts[record["start"]] = record
            found.ends.pop(record["start"], None)
            found.over = {}  # it goes on
        elif "end" in record:
            found.ends[record["end"]] = record
        elif "over" in record:
            found.over = record
    return found


def _study(folder: str, found: _Journaled, running: bool) -> tuple[StudyRecord, Secrets]:
    identity = found.identity
    command = identity.get("command") or [
        identity.get("program") or identity.get("script") or "",
        *identity.get("args", ()),
    ]
    command = [str(word) for word in command if word != ""]
    best, best_words = "", _words(os.path.join(folder, BEST_COMMAND))
    values = {str(each["name"]): each.get("choices") or () for each in identity.get("parameters") or ()}
    secrets = Secrets.of([*command, *best_words], values)
    catalogue = _Catalogue(secrets)
    answer = found.over.get("answer")
    baseline = (answer or {}).get("baseline") or _baseline(found)
    catalogue.number(baseline or {})  # without a default, number 0 is a point that no trial has
    state: State = "running" if running else "over" if found.over else "stopped"
    trials = [
        _trial(name, found.starts.get(name, {}), found.ends.get(name), catalogue, running)
        for name in {**found.starts, **found.ends}
    ]
    units = {name: str(unit) for each in found.ends.values() for name, unit in (each.get("units") or {}).items()}
    goals = tuple(
        GoalRecord(str(each["name"]), str(each.get("direction", "maximize")), units.get(str(each["name"]), ""))
        for each in identity.get("goals") or ()
    ) or _guessed_goals(trials)
    if best_words:
        best = shlex.join(secrets.words(best_words))
    confidence, effect = float(identity.get("confidence") or 0.95), float(identity.get("effect") or 0.02)
    read = None if answer is None else _answer(answer, catalogue, secrets)
    by_rounds = compared_by_rounds(trials, goals, 1 - confidence, effect)
    finalists = compared_by_answer(answer or {}, catalogue.number, by_rounds, effect)
    return StudyRecord(
        folder=folder,
        state=state,
        command=shlex.join(secrets.words(command)),
        best_command=best,
        hidden=bool(best) and best != shlex.join(best_words),
        parameters=tuple(_parameter(each, secrets, baseline or {}) for each in identity.get("parameters") or ()),
        goals=goals,
        limits=tuple(secrets.text(_limit(each)) for each in identity.get("limits") or ()),
        confidence=confidence,
        effect=effect,
        most=_whole(identity.get("trials")) or _whole(identity.get("points")),
        budget=_number(identity.get("seconds")),
        configurations=catalogue.configurations(),
        trials=tuple(secrets.trial(trial) for trial in trials),
        answer=read,
        finalists=finalists,
        noise=read.noise if read is not None and read.noise is not None else _noise(trials, goals),
        over=str(found.over.get("over") or ""),
    ), secrets


class _Catalogue:
    """Numbers the points of a study; two that differ only in a hidden value have different numbers."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self._numbers: dict[str, int] = {}
        self._points: list[Mapping[str, object]] = []

    def number(self, point: Mapping[str, object]) -> int:
        key = json.dumps(point, sort_keys=True, default=str)
        if key not in self._numbers:
            self._numbers[key] = len(self._points)
            self._points.append(self._secrets.point(point))
        return self._numbers[key]

    def point(self, number: int) -> Mapping[str, object]:
        return self._points[number]

    def configurations(self) -> tuple[Configuration, ...]:
        return tuple(Configuration(place, point, shown(point)) for place, point in enumerate(self._points))


def shown(point: Mapping[str, object]) -> str:
    """A point in a line: ``batch=64 compile=on``."""
    return " ".join(f"{name}={short(shown_value(value))}" for name, value in point.items())


def shown_value(value: object) -> str:
    """A value as the user would type it."""
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _baseline(found: _Journaled) -> Mapping[str, object] | None:
    """The default point: what the noise is measured on, else what the parameters say."""
    for record in (*found.ends.values(), *found.starts.values()):
        if record.get("phase") == "noise" and isinstance(record.get("point"), Mapping):
            return dict(record["point"])
    parameters = [each for each in found.identity.get("parameters") or () if "default" in each]
    return {str(each["name"]): each["default"] for each in parameters} if parameters else None


def _parameter(record: Record, secrets: Secrets, baseline: Record) -> ParameterRecord:
    name = str(record["name"])
    choices = record.get("choices")
    return ParameterRecord(
        name=name,
        choices=tuple(secrets.value(name, each) for each in choices) if isinstance(choices, list) else (),
        default=secrets.value(name, record.get("default", baseline.get(name))),
        memory=bool(record.get("memory")),
    )


def _trial(name: str, start: Record, end: Record | None, catalogue: _Catalogue, running: bool) -> TrialRecord:
    point = (end or {}).get("point") or start.get("point") or {"trial": name}
    config = catalogue.number(point)
    trial = TrialRecord(
        name=name,
        config=config,
        point=catalogue.point(config),
        phase=str((end or start).get("phase") or ""),
        place=str(start.get("on") or ""),
        began=_number(start.get("time")),
        cause=RUNNING if running else INTERRUPTED,
    )
    if end is None:
        return trial
    ending = end.get("ending") or {}
    seconds = _number(ending.get("seconds")) or 0.0
    ended = _number(end.get("time"))
    return trial.replace(
        round=_whole(end.get("round")) or 0,
        block=str(end.get("block") or ""),
        began=trial.began if trial.began is not None or ended is None else ended - seconds,
        ended=ended,
        cause=str(ending.get("cause") or "failed"),
        reason=str(ending.get("reason") or ""),
        seconds=seconds,
        figures=_numbers(end.get("figures") or ending.get("metrics")),
        series={str(name): _series(values) for name, values in (end.get("series") or {}).items()},
        warm_up={str(name): _whole(count) or 0 for name, count in (end.get("warm_up") or {}).items()},
        parts=_numbers(end.get("parts")),
    )


def _series(values: Sequence[object]) -> tuple[float, ...]:
    """The values of a series, whose items may be (time, value)."""
    plain = (each[-1] if isinstance(each, (list, tuple)) and each else each for each in values)
    return tuple(number for each in plain if (number := _number(each)) is not None)


def _answer(record: Record, catalogue: _Catalogue, secrets: Secrets) -> AnswerRecord:
    best, baseline, promising = (record.get(name) for name in ("best", "baseline", "promising"))
    return AnswerRecord(
        best=None if best is None else catalogue.number(best),
        baseline=0 if baseline is None else catalogue.number(baseline),
        promising=None if promising is None else catalogue.number(promising),
        confirmed=bool(record.get("confirmed")),
        ratio=_number(record.get("ratio")) or 1.0,
        low=_number(record.get("low")),
        high=_number(record.get("high")),
        rounds=_whole(record.get("rounds")) or 0,
        ties=tuple(catalogue.number(point) for point in record.get("ties") or ()),
        front=tuple(catalogue.number(point) for point in record.get("front") or ()),
        noise=_number(record.get("noise")),
        default_failed=secrets.text(str(record.get("default_failed") or "")),
        text=secrets.text(str(record.get("text") or "")),
    )


def _guessed_goals(trials: Sequence[TrialRecord]) -> tuple[GoalRecord, ...]:
    """A study that names no goals, as one of DeepSpeed's, has the first figure of its trials."""
    return next((tuple(map(GoalRecord, list(trial.figures)[:1])) for trial in trials if trial.figures), ())


def _noise(trials: Sequence[TrialRecord], goals: Sequence[GoalRecord]) -> float | None:
    """The relative standard deviation of the baseline's runs against itself."""
    if not goals:
        return None
    values = [value for trial in trials if trial.phase == "noise" if (value := trial.figures.get(goals[0].name))]
    if len(values) < 2:
        return None
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1)) / abs(mean) if mean else None


def _limit(record: object) -> str:
    return str(record.get("text") or record.get("name") or "") if isinstance(record, Mapping) else str(record)


def _words(path: str) -> list[str]:
    try:
        return shlex.split(read_regular(path, os.O_NOFOLLOW).decode(errors="replace"))
    except (OSError, ValueError):
        return []


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _numbers(record: object) -> dict[str, float]:
    pairs = record.items() if isinstance(record, Mapping) else ()
    return {str(name): number for name, value in pairs if (number := _number(value)) is not None}


def log_end(study: StudyRecord, secrets: Secrets, trial: TrialRecord, lines: int = 12) -> list[str]:
    """The last lines of a trial's log, printable and without secrets: of stderr, and of stdout if that is empty."""
    for file in ("stderr.log", "stdout.log"):
        try:
            path = os.path.join(study.folder, "trials", trial.name, file)
            with open(open_regular(path, os.O_NOFOLLOW), "rb") as log:  # the study may be another user's
                size = os.fstat(log.fileno()).st_size
                log.seek(max(0, size - _TAIL))
                found = log.read().decode("utf-8", "surrogateescape").rstrip()
        except (OSError, ValueError):
            continue
        if found:
            return [secrets.line(line)[:400] for line in found.splitlines()[-lines:]]
    return []
