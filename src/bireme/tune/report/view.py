"""The one view of a study: what is known of it now, as values that every output renders; likely secrets are hidden.

The screen, ``tune status``, the page, JSON, CSV and MLflow say the same because they are made of the same view.
"""

from __future__ import annotations

import itertools
import json
import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from bireme.regular_file import read_regular
from bireme.tune.metrics.numbers import scaled, shown_ratio
from bireme.tune.report.secrets import Secrets
from bireme.tune.space.points import Point, key_of
from bireme.tune.store.records import Record, StudyRecords
from bireme.tune.study.trial import Answer, Forecast
from bireme.value import Value

State = Literal["running", "over", "stopped"]

MEASURED = "ok"
OUT_OF_MEMORY = "out of memory"
RUNNING = "running"
INTERRUPTED = "interrupted"
"""The cause of a trial that began and has no end, in a study that no longer runs."""

PHASES = {"known": "known", "noise": "baseline", "screen": "again", "confirm": "round"}
"""What a trial is for, in a word; others are called as in the journal."""

COMMANDS = {"program": "cmd_best.txt", "deepspeed": "cmd_optimal.txt"}
"""The file with the command of the job with the best configuration."""


_SHOWN = 60
"""Characters of a value that are shown."""


class ParameterView(Value):
    """A parameter: its values in order, the default's value, whether more of it needs more memory."""

    name: str
    choices: tuple[object, ...] = ()
    default: object = None
    memory: bool = False


class GoalView(Value):
    """What is maximized or minimized, with the unit of its values if that is known."""

    name: str
    direction: str = "maximize"
    unit: str = ""

    @property
    def title(self) -> str:
        """The name with its unit."""
        return f"{self.name}, {self.unit}" if self.unit else self.name

    @property
    def maximized(self) -> bool:
        """Whether more is better."""
        return self.direction != "minimize"


class Configuration(Value):
    """A point, and its number in the order in which points were first tried; 0: the baseline.

    Attributes:
        words: its values as the user would type them.
        text: what it is called.
    """

    number: int
    point: Mapping[str, object]
    words: Mapping[str, str]
    text: str


class TrialView(Value):
    """One run of one configuration.

    Attributes:
        phase: what it was for, as the journal says; ``known``: it was measured before the study, or of the program
            before it was edited; "": unknown.
        round: the number of its paired round; 0: none.
        block: trials of one block ran one after the other on the same slots.
        place: the slots, as ``node1:0,1``.
        began: seconds since the epoch; None: unknown.
        ended: likewise; None also while it runs.
        cause: why it ended, ``running``, or ``interrupted``.
        warm_up: how many values at the beginning of a series do not count.
        parts: seconds of the run by what they went into: ``launch``, ``warm_up``, ``measuring``.
        elapsed: seconds that the study had taken when it ended, by the study's own time; None: unknown.
    """

    name: str
    config: int
    point: Mapping[str, object]
    phase: str = ""
    round: int = 0
    block: str = ""
    place: str = ""
    began: float | None = None
    ended: float | None = None
    cause: str = RUNNING
    reason: str = ""
    seconds: float = 0.0
    figures: Mapping[str, float] = {}
    series: Mapping[str, Sequence[float]] = {}
    warm_up: Mapping[str, int] = {}
    parts: Mapping[str, float] = {}
    elapsed: float | None = None


class Finalist(Value):
    """A configuration compared with the baseline by paired rounds; the ratio is above 1 if it is better.

    Attributes:
        config: its number.
        low: the ratio is at least this; None: unknown.
        high: the ratio is at most this; None: unknown.
        rounds: the ratio of each round.
        count: how many rounds there were; the ratios of some may be unknown.
        verdict: ``better``, ``worse``, ``equivalent``, ``not distinguishable``, ``undecided`` while the interval says
            nothing, or ``left out`` after the first rounds.
    """

    config: int
    goal: str
    ratio: float
    low: float | None
    high: float | None
    rounds: tuple[float, ...]
    count: int
    verdict: str


class AnswerView(Value):
    """The answer, with numbers of configurations; see `bireme.tune.study.trial.Answer`."""

    best: int | None = None
    baseline: int = 0
    promising: int | None = None
    confirmed: bool = False
    ratio: float = 1.0
    low: float | None = None
    high: float | None = None
    rounds: int = 0
    runs: int = 0
    ties: tuple[int, ...] = ()
    front: tuple[int, ...] = ()
    noise: float | None = None
    default_failed: str = ""
    text: str = ""


class StudyView(Value):
    """A study.

    Attributes:
        state: whether it runs, is over, or was stopped before.
        command: the command line of the program that is tuned.
        best_command: the command of the job with the best configuration; "": not known yet.
        hidden: whether ``best_command`` shows less than the file has.
        goals: one or two; the first decides the order of trials.
        limits: as the user wrote them.
        effect: the smallest relative difference that matters.
        most: how many trials there may be at most; None: unknown.
        budget: seconds that the study may take; None: any.
        trials: in the order of their starts.
        forecast: how much longer the best run again.
        over: why the study ended; "": it has not.
        why: why the command ended that ran it last; "": it was killed, or runs.
        skipped: what was not tried, and why.
    """

    folder: str
    kind: Literal["program", "deepspeed"] = "program"
    state: State = "over"
    command: str = ""
    best_command: str = ""
    hidden: bool = False
    parameters: tuple[ParameterView, ...] = ()
    goals: tuple[GoalView, ...] = ()
    limits: tuple[str, ...] = ()
    units: Mapping[str, str] = {}
    confidence: float = 0.95
    effect: float = 0.02
    most: int | None = None
    budget: float | None = None
    configurations: tuple[Configuration, ...] = ()
    trials: tuple[TrialView, ...] = ()
    answer: AnswerView = AnswerView()
    forecast: Forecast | None = None
    finalists: tuple[Finalist, ...] = ()
    over: str = ""
    why: str = ""
    skipped: tuple[str, ...] = ()
    given_up: tuple[str, ...] = ()

    @property
    def ended(self) -> list[TrialView]:
        """The trials that have ended by themselves."""
        return [trial for trial in self.trials if trial.cause not in (RUNNING, INTERRUPTED)]

    @property
    def phase(self) -> str:
        """What the latest trial is for, one that runs if any does."""
        latest = (self.running or list(self.trials))[-1:]
        return latest[0].phase if latest else ""

    @property
    def running(self) -> list[TrialView]:
        """The trials that run now."""
        return [trial for trial in self.trials if trial.cause == RUNNING]

    @property
    def leader(self) -> str:
        """The trial with the best figure so far, the earliest of equals; runs of paired rounds do not count."""
        own = [trial for trial in self.ended if trial.phase != "confirm" and self.figure(trial) is not None]
        sign = -1.0 if self.goals and self.goals[0].maximized else 1.0
        own.sort(key=lambda trial: (sign * (self.figure(trial) or 0.0), trial.ended or 0.0))
        return own[0].name if own else ""

    def measured(self, trial: TrialView) -> str:
        """A trial's figure with its unit; "" if it has none."""
        figure = self.figure(trial)
        if figure is None:
            return ""
        name = "" if self.kind == "deepspeed" else f"{self.goals[0].name} "
        return f"{name}{scaled(figure, self.goals[0].unit)}"

    @property
    def best(self) -> int | None:
        """The configuration of the answer; None: nothing worked yet."""
        return self.answer.best

    @property
    def promising(self) -> int | None:
        """What looks better than the best by what matters, but is not confirmed; None also where two goals decide."""
        known = self.answer
        if known.confirmed or known.front or known.promising is None or known.promising == known.best:
            return None
        ratio = self.ratio(known.promising)
        return None if ratio is not None and ratio <= 1 + self.effect else known.promising

    @property
    def ties(self) -> tuple[int, ...]:
        """What cannot be told from the best, without what is promising, and what was compared too little."""
        others = {each.config for each in self.finalists if each.verdict == "undecided"} | {self.promising}
        return tuple(each for each in self.answer.ties if each not in others)

    @property
    def reference(self) -> str:
        """What configuration 0 is called: a study of DeepSpeed has no default, and compares with the best."""
        if self.kind == "deepspeed":
            return "the best"
        return "the baseline" if self.answer.default_failed else "the default"

    @property
    def sure(self) -> str:
        """The confidence of the answer, such as ``95%``."""
        return f"{100 * self.confidence:.4g}%"

    @property
    def interval(self) -> str:
        """Where the ratio of a confirmed answer is: ``1.8 to 2.65``, or ``at least 1.8``."""
        low, high = self.answer.low, self.answer.high
        if low is None or high is None:
            return "" if low is None else f"at least {shown_ratio(low)}"
        return f"{shown_ratio(low)} to {shown_ratio(high)}"

    def has(self, cause: str) -> bool:
        """Whether any trial ended so."""
        return any(trial.cause == cause for trial in self.trials)

    @property
    def tried(self) -> int:
        """How many configurations have been tried."""
        return len({trial.config for trial in self.ended if trial.phase != "profile"})

    def figure(self, trial: TrialView, name: str = "") -> float | None:
        """A figure of a trial, that of the first goal by default; None if it was not measured."""
        return trial.figures.get(name or self.goals[0].name) if self.goals and trial.cause == MEASURED else None

    def means(self, name: str = "") -> dict[int, float]:
        """The mean of a figure of each configuration, over all its runs; over earlier ones if it has no others."""
        return {**self._means(name, earlier=True), **self._means(name, earlier=False)}

    def _means(self, name: str, *, earlier: bool) -> dict[int, float]:
        found: dict[int, list[float]] = {}
        for trial in self.trials:
            if (trial.phase == "known") == earlier and (figure := self.figure(trial, name)) is not None:
                found.setdefault(trial.config, []).append(figure)
        return {config: sum(figures) / len(figures) for config, figures in found.items()}

    def mean(self, config: int, name: str = "") -> float | None:
        """The mean of a figure of a configuration; None if it has none."""
        return self.means(name).get(config)

    def ratio(self, config: int) -> float | None:
        """How many times as good as the baseline a configuration is: the answer, else by rounds, else by its mean."""
        if config == self.answer.best and self.answer.runs:
            return self.answer.ratio
        for each in self.finalists:
            if each.config == config and each.goal == self.goals[0].name:
                return each.ratio
        earlier, now = self._means("", earlier=True), self._means("", earlier=False)
        kinds = (now, earlier, {**earlier, **now})
        mean, base = next(((means[config], means[0]) for means in kinds if {config, 0} <= means.keys()), (0.0, 0.0))
        if not mean or not base:
            return None
        return mean / base if self.goals[0].maximized else base / mean


def view(
    folder: str,
    known: StudyRecords,
    answer: Answer,
    *,
    running: bool,
    hide: bool = True,
    forecast: Forecast | None = None,
) -> tuple[StudyView, Secrets]:
    """Make the view of a study; also returns what hides secrets in its logs.

    Args:
        folder: its results folder.
        known: what its journal says.
        answer: what is known of its best.
        running: whether it runs.
        forecast: how much longer the best run again; None: unknown.
        hide: whether likely secrets are hidden; not on the screen of who runs it, for whom they may be the answer.
    """
    identity = known.identity
    program = [identity.get("program") or identity.get("script") or "", *identity.get("args", ())]
    command = [str(word) for word in identity.get("command") or program if word != ""]
    best_words = _words(os.path.join(folder, COMMANDS[known.kind]))
    parameters = identity.get("parameters") or ()
    choices = {str(each["name"]): each.get("choices") or () for each in parameters}
    secrets = Secrets.of([*command, *best_words], choices) if hide else Secrets(frozenset(), ())
    catalogue = _Catalogue(secrets, known, answer.baseline)
    earlier = {name: {**end, "phase": "known"} for name, end in known.ends.items() if known.is_earlier(end)}
    ends = {**known.gave_up, **known.ends, **earlier}
    trials = tuple(
        _trial(name, known.starts.get(name, {}), ends.get(name), catalogue, running)
        for name in {**known.starts, **ends}
    )
    goals = tuple(
        GoalView(each["name"], each.get("direction", "maximize"), known.units.get(each["name"], ""))
        for each in identity.get("goals") or ()
    )
    effect, best = float(identity.get("effect") or 0.02), shlex.join(secrets.words(best_words)) if best_words else ""
    return StudyView(
        folder=folder,
        kind=known.kind,
        state="running" if running else "over" if known.over else "stopped",
        command=shlex.join(secrets.words(command)),
        best_command=best,
        hidden=bool(best) and best != shlex.join(best_words),
        parameters=tuple(_parameter(each, secrets, answer.baseline) for each in parameters),
        goals=goals,
        limits=tuple(secrets.text(_limit(each)) for each in identity.get("limits") or ()),
        units=known.units,
        confidence=float(identity.get("confidence") or 0.95),
        effect=effect,
        most=_whole(identity.get("trials")) or _whole(identity.get("points")),
        budget=_number(identity.get("seconds")),
        answer=_answer(answer, catalogue, secrets),
        forecast=forecast,
        finalists=_finalists(answer, catalogue, trials, goals, effect, known.kind),
        configurations=catalogue.configurations(),
        trials=tuple(trial.replace(reason=secrets.text(trial.reason)) for trial in trials),
        over=known.over,
        why=str(known.conclusion.get("why") or ""),
        skipped=tuple(map(secrets.text, known.conclusion.get("skipped") or ())),
        given_up=tuple(known.gave_up or known.conclusion.get("given up") or ()),
    ), secrets


class _Catalogue:
    """Numbers the points of a study; two that differ only in a hidden value have different numbers."""

    def __init__(self, secrets: Secrets, known: StudyRecords, baseline: Point) -> None:
        self._secrets, self._numbers = secrets, dict[str, int]()
        self._points: list[Mapping[str, object]] = []
        self._texts = {
            str(each["name"]): dict(zip(map(repr, each["choices"]), each["texts"], strict=False))
            for each in known.identity.get("parameters") or ()
            if each.get("texts") and isinstance(each.get("choices"), list)
        }
        self._names: dict[str, str] = {}
        if known.kind == "deepspeed":
            for name, record in {**known.starts, **known.ends}.items():
                self._names[key_of(record.get("point", {"trial": name}))] = name.partition("@")[0]
        self.number(baseline)

    def number(self, point: Point) -> int:
        """The number of a point."""
        key = key_of(point)
        if key not in self._numbers:
            self._numbers[key] = len(self._points)
            self._points.append(self._secrets.point(point))
        return self._numbers[key]

    def point(self, number: int) -> Mapping[str, object]:
        """The point of a number."""
        return self._points[number]

    def configurations(self) -> tuple[Configuration, ...]:
        """All of them; one of DeepSpeed is called by its name, another by its values: ``batch=64 compile=on``."""
        found = []
        for (key, number), point in zip(self._numbers.items(), self._points, strict=True):
            words = {name: self._word(name, value) for name, value in point.items()}
            text = self._names.get(key) or " ".join(f"{name}={word}" for name, word in words.items())
            found.append(Configuration(number, point, words, text))
        return tuple(found)

    def _word(self, name: str, value: object) -> str:
        return short(self._texts.get(name, {}).get(repr(value), shown_value(value)))


def short(value: str) -> str:
    """A value without its middle if it is long, so that it does not fill the screen."""
    return value if len(value) <= _SHOWN else f"{value[: _SHOWN - 20]}…{value[-19:]}"


def shown_value(value: object) -> str:
    """A value as the user would type it."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _parameter(record: Record, secrets: Secrets, baseline: Point) -> ParameterView:
    name, choices = str(record["name"]), record.get("choices")
    return ParameterView(
        name=name,
        choices=tuple(secrets.value(name, each) for each in choices) if isinstance(choices, list) else (),
        default=secrets.value(name, record.get("default", baseline.get(name))),
        memory=bool(record.get("memory")),
    )


def _trial(name: str, start: Record, end: Record | None, catalogue: _Catalogue, running: bool) -> TrialView:
    point = (end or start).get("point", start.get("point"))
    config = catalogue.number({"trial": name} if point is None else point)
    trial = TrialView(
        name=name,
        config=config,
        point=catalogue.point(config),
        phase=str((end or start).get("phase") or ""),
        round=_whole((end or start).get("round")) or 0,
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
        block=str(end.get("block") or ""),
        began=trial.began if trial.began is not None or ended is None else ended - seconds,
        ended=ended,
        cause=str(ending.get("cause") or "failed"),
        reason=_one_line(str(ending.get("reason") or "")),
        seconds=seconds,
        figures=_numbers(end.get("figures") or ending.get("metrics")),
        series={str(name): _series(values) for name, values in (end.get("series") or {}).items()},
        warm_up={str(name): _whole(count) or 0 for name, count in (end.get("warm_up") or {}).items()},
        parts=_numbers(end.get("parts")),
        elapsed=_number(end.get("elapsed")),
    )


def _one_line(reason: str) -> str:
    return "; ".join(line.strip() for line in reason.splitlines())


def _series(values: Sequence[object]) -> tuple[float, ...]:
    """The values of a series, whose items may be (time, value)."""
    if all(type(each) is float for each in values):  # as today's tuner writes them
        return tuple(values)  # type: ignore[arg-type]  # floats
    plain = (each[-1] if isinstance(each, (list, tuple)) and each else each for each in values)
    return tuple(number for each in plain if (number := _number(each)) is not None)


def _answer(answer: Answer, catalogue: _Catalogue, secrets: Secrets) -> AnswerView:
    """Points as numbers; the text without secrets."""
    same = {name: getattr(answer, name) for name in ("confirmed", "ratio", "low", "high", "rounds", "runs", "noise")}
    never = {key_of(one.point) for one in answer.compared if not one.rounds}  # its rounds have only begun
    return AnswerView(
        best=None if answer.best is None else catalogue.number(answer.best),
        baseline=catalogue.number(answer.baseline),
        promising=None if answer.promising is None else catalogue.number(answer.promising),
        ties=tuple(catalogue.number(each) for each in answer.ties if key_of(each) not in never),
        front=tuple(map(catalogue.number, answer.front)),
        default_failed=secrets.text(_one_line(answer.default_failed)),
        text=secrets.text(answer.text),
        **same,
    )


def _finalists(
    answer: Answer,
    catalogue: _Catalogue,
    trials: Sequence[TrialView],
    goals: Sequence[GoalView],
    effect: float,
    kind: str,
) -> tuple[Finalist, ...]:
    """The comparisons of the answer, with the rounds behind them."""
    rounds: dict[int, dict[int, TrialView]] = {}
    for trial in trials:
        if trial.phase == "confirm" and trial.round and trial.cause == MEASURED:
            rounds.setdefault(trial.round, {})[trial.config] = trial
    minimized = {goal.name for goal in goals if not goal.maximized}
    found, ties = [], set(map(catalogue.number, answer.ties))
    most = max((each.rounds for each in answer.compared), default=0)
    for each in (one for one in answer.compared if one.rounds):
        config, ratios = catalogue.number(each.point), []
        for runs in rounds.values():
            own, base = (runs[number].figures.get(each.goal, 0) if number in runs else 0 for number in (config, 0))
            if own > 0 and base > 0:
                ratios.append(base / own if each.goal in minimized else own / base)
        low, high = _told(each.low, each.high)
        verdict = _verdict(low, high, effect)
        if verdict == "not distinguishable" and each.point == answer.best and not answer.confirmed:
            verdict = "undecided"  # it is called the best so far, so further rounds may tell it from the baseline
        if low is high is None:
            left_out = each.rounds < most and config not in ties and each.point != answer.best
            tie = kind == "deepspeed" and config in ties  # it names them so at any number of rounds
            verdict = "left out" if left_out else verdict if tie else "undecided"
        found.append(
            Finalist(
                config=config,
                goal=each.goal,
                ratio=each.ratio,
                low=low,
                high=high,
                rounds=tuple(ratios),
                count=each.rounds,
                verdict=verdict,
            )
        )
    return tuple(sorted(found, key=lambda each: (each.goal, -each.ratio)))


def _told(low: float, high: float | None) -> tuple[float | None, float | None]:
    """The ends of an interval; one from below half to above twice says nothing."""
    if low < 0.5 and (high is None or high > 2):
        return None, None
    return low if low > 0 else None, high


def _verdict(low: float | None, high: float | None, effect: float) -> str:
    """What an interval of a ratio says."""
    if low is not None and low > 1:
        return "better"
    if high is not None and high < 1:
        return "worse"
    if low is not None and high is not None and low >= 1 - effect and high <= 1 + effect:
        return "equivalent"
    return "not distinguishable"


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


def _numbers(record: Any) -> dict[str, float]:
    pairs = record.items() if isinstance(record, Mapping) else ()
    return {str(name): number for name, value in pairs if (number := _number(value)) is not None}


# -- the time ----------------------------------------------------------------------------------------

PARTS = ("measuring", "repeating", "warm-up", "launch", "without a figure", "idle slots")
"""``repeating``: measuring again, for the noise and in paired rounds; ``without a figure``: trials that gave none."""

_PAUSE = 60.0
"""Seconds in which nothing ran, after which the tuner is taken to have been stopped, if the journal does not say."""

_LOST = 1.0
"""The tuner was stopped between two ends of trials if its own time has gained so many seconds less than the clock."""


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
        known = sorted((each.ended, each.elapsed) for each in trials if each.ended is not None and each.elapsed)
        lost = [(one, two, two - one - (own - before)) for (one, before), (two, own) in itertools.pairwise(known)]
        stops = [each for each in lost if each[-1] > _LOST]
        self._pauses: list[tuple[float, float]] = []
        self._begin = last = spans[0][0] if spans else now
        for began, ended in spans:
            stopped = max((seconds for one, two, seconds in stops if one <= began < two), default=0.0)
            pause = min(began - last, stopped) if began - last <= _PAUSE else began - last
            if pause > 0:
                self._pauses.append((began - pause, began))
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
