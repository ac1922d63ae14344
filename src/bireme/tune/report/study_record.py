"""The values of a study as its folder records it; likely secrets are hidden already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from bireme.value import Value

State = Literal["running", "over", "stopped"]

MEASURED = "ok"
OUT_OF_MEMORY = "out of memory"
RUNNING = "running"
INTERRUPTED = "interrupted"
"""The cause of a trial that began and has no end, in a study that no longer runs."""


class ParameterRecord(Value):
    """A parameter: its values in order, the default's value, whether more of it needs more memory."""

    name: str
    choices: tuple[object, ...] = ()
    default: object = None
    memory: bool = False


class GoalRecord(Value):
    """What is maximized or minimized, with the unit of its figures if that is known."""

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
    """A point, and its number in the order in which points were first tried; 0: the baseline."""

    number: int
    point: Mapping[str, object]
    text: str


class TrialRecord(Value):
    """One run of one configuration.

    Attributes:
        name: the trial's name; its files are in ``trials/NAME``.
        config: the number of its configuration.
        point: the configuration.
        phase: ``noise``, ``search`` or ``confirm``; "": unknown.
        round: the number of its paired round; 0: none.
        block: trials of one block ran one after the other on the same slots.
        place: the slots, as ``node1:0,1``.
        began: seconds since the epoch; None: unknown.
        ended: likewise; None also while it runs.
        cause: why it ended, ``running``, or ``interrupted``.
        reason: the cause in one line.
        seconds: wall time.
        figures: by name.
        series: the values of a figure over the run.
        warm_up: how many values at the beginning of a series do not count.
        parts: seconds of the run by what they went into: ``launch``, ``warm_up``, ``measuring``.
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


class Finalist(Value):
    """A configuration compared with the baseline by paired rounds; the ratio is above 1 if it is better.

    Attributes:
        config: its number.
        goal: the figure.
        ratio: how many times as good as the baseline.
        low: the ratio is at least this; None: unknown.
        high: the ratio is at most this; None: unknown.
        rounds: the ratio of each round.
        count: how many rounds there were; the ratios of some may be unknown.
        verdict: ``better``, ``worse``, ``equivalent`` or ``not distinguishable``.
    """

    config: int
    goal: str
    ratio: float
    low: float | None
    high: float | None
    rounds: tuple[float, ...]
    count: int
    verdict: str


class AnswerRecord(Value):
    """The answer of a study that is over; see `bireme.tune.study.trial.Answer`."""

    best: int | None = None
    baseline: int = 0
    promising: int | None = None
    confirmed: bool = False
    ratio: float = 1.0
    low: float | None = None
    high: float | None = None
    rounds: int = 0
    ties: tuple[int, ...] = ()
    front: tuple[int, ...] = ()
    noise: float | None = None
    default_failed: str = ""
    text: str = ""


class StudyRecord(Value):
    """A study.

    Attributes:
        folder: its results folder.
        state: whether it runs, is over, or was stopped before.
        command: the command line of the program that is tuned.
        best_command: the command of the job with the best configuration; "": not known yet.
        hidden: whether ``best_command`` shows less than the file has.
        parameters: what varies.
        goals: one or two; the first decides the order of trials.
        limits: as the user wrote them.
        confidence: of the answer, such as 0.95.
        effect: the smallest relative difference that matters.
        most: how many trials there may be at most; None: unknown.
        budget: seconds that the study may take; None: any.
        configurations: by number.
        trials: in the order of their starts.
        answer: None while the study runs.
        finalists: compared with the baseline.
        noise: the relative standard deviation of a run; None: unknown.
        over: why the study ended; "": it has not.
    """

    folder: str
    state: State
    command: str = ""
    best_command: str = ""
    hidden: bool = False
    parameters: tuple[ParameterRecord, ...] = ()
    goals: tuple[GoalRecord, ...] = ()
    limits: tuple[str, ...] = ()
    confidence: float = 0.95
    effect: float = 0.02
    most: int | None = None
    budget: float | None = None
    configurations: tuple[Configuration, ...] = ()
    trials: tuple[TrialRecord, ...] = ()
    answer: AnswerRecord | None = None
    finalists: tuple[Finalist, ...] = ()
    noise: float | None = None
    over: str = ""

    @property
    def ended(self) -> list[TrialRecord]:
        """The trials that have ended by themselves."""
        return [trial for trial in self.trials if trial.cause not in (RUNNING, INTERRUPTED)]

    @property
    def running(self) -> list[TrialRecord]:
        """The trials that run now."""
        return [trial for trial in self.trials if trial.cause == RUNNING]

    def figure(self, trial: TrialRecord) -> float | None:
        """The trial's figure of the first goal; None if it was not measured."""
        return trial.figures.get(self.goals[0].name) if self.goals and trial.cause == MEASURED else None

    def mean(self, config: int) -> float | None:
        """The mean figure of a configuration's trials, on the first goal."""
        figures = [figure for trial in self.trials if trial.config == config if (figure := self.figure(trial))]
        return sum(figures) / len(figures) if figures else None

    @property
    def best(self) -> int | None:
        """The configuration of the answer; without one, that of the best single figure so far."""
        if self.answer is not None and self.answer.best is not None:
            return self.answer.best
        measured = [(figure, trial) for trial in self.trials if (figure := self.figure(trial)) is not None]
        if not measured:
            return None
        choose = max if self.goals[0].maximized else min
        return choose(measured, key=lambda pair: pair[0])[1].config
