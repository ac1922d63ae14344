"""The values that go in and out of a study: trials, what became of them, and the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

from bireme.result.report import duration
from bireme.tune.samplers.sampler import Direction
from bireme.tune.space.points import Point
from bireme.value import Value

Phase = Literal["known", "noise", "search", "screen", "confirm", "profile", "limits", "rest"]
"""What a trial is for: nothing, as it was measured before the study began; the default against itself, the search, a
point that may be the best again, a paired round; the last three are for DeepSpeed: the model's profile, what fits, the
default choices of a stage."""


Cause = Literal[
    "ok", "out of memory", "failed", "timed out", "no metric", "over limit", "pruned", "stopped", "infrastructure"
]
"""``over limit``: it broke a limit of the user's. ``pruned``: it was ended because it could not win any more."""

NOT_THE_CONFIGURATION = ("stopped", "infrastructure")
"""Causes that say nothing about the configuration: the experiment has to be run again."""


class TrialResult(Value):
    """The result of one experiment.

    Attributes:
        cause: why it ended.
        reason: the cause in one line; "" if it succeeded.
        detail: the last lines of the traceback.
        seconds: wall time of the run, start-up included.
        metrics: the figures by name.
        samples: samples per second of wall time by our own clock; None if unknown.
        hosts: the hosts at fault if the cause is ``infrastructure``.
    """

    cause: Cause = "ok"
    reason: str = ""
    detail: str = ""
    seconds: float = 0.0
    metrics: Mapping[str, float] = {}
    samples: float | None = None
    hosts: tuple[str, ...] = ()

    @property
    def counts(self) -> bool:
        """Whether it says something about the configuration, so the experiment need not be run again."""
        return self.cause not in NOT_THE_CONFIGURATION

    @classmethod
    def from_record(cls, record: Mapping[str, object]) -> TrialResult:
        """Read back what ``as_dict`` returned; unknown fields of a newer version are ignored."""
        known = {name: record[name] for name in cls._fields if name in record}
        hosts = known.pop("hosts", ())
        assert isinstance(hosts, (list, tuple))
        return cls(**known, hosts=tuple(hosts))  # type: ignore[arg-type]  # as they were written


class Goal(Protocol):
    """What is maximized or minimized: the name of a figure. ``time`` is the wall time of a trial."""

    @property
    def name(self) -> str:
        """The figure's name."""

    @property
    def direction(self) -> Direction:
        """``maximize`` or ``minimize``."""


class Objective(Value):
    """A goal by its name and direction only."""

    name: str
    direction: Direction = "maximize"


class Trial(Value):
    """One run of one point.

    Attributes:
        name: unique in the study, and a valid file name.
        point: what is run.
        phase: what for.
        round: the number of the paired round, from 1; 0 in other phases.
        block: trials of one block run one after the other on the same slots; "": anywhere.
    """

    name: str
    point: Point
    phase: Phase = "search"
    round: int = 0
    block: str = ""

    @property
    def paired(self) -> bool:
        """Whether it is a run of a paired round."""
        return self.phase == "confirm"


class FinishedTrial(Value):
    """A trial that has ended.

    Attributes:
        result: how it ended, and what it measured. A pruned trial has a bound: it could not have been better.
        values: of the metrics that are the goals, one for each goal; None if it has none.
        earlier: whether it was measured before the study began, or before the program was edited.
    """

    trial: Trial
    result: TrialResult
    values: tuple[float, ...] | None = None
    earlier: bool = False

    @property
    def bounded(self) -> bool:
        """Whether it was stopped early, so its values are only bounds."""
        return self.result.cause == "pruned"


class Compared(Value):
    """A finalist against the baseline, on one goal.

    Attributes:
        point: the finalist.
        goal: the goal's name.
        ratio: how many times as good as the baseline: its figure divided by the baseline's if that is maximized, the
            other way round if it is minimized.
        low: the ratio is at least this,
        high: and at most this (None: unknown), with the confidence of the study, for all finalists at once.
        rounds: the paired rounds behind it.
    """

    point: Point
    goal: str
    ratio: float
    low: float
    high: float | None
    rounds: int


class Forecast(Value):
    """How much longer a study runs its best points again.

    Attributes:
        seconds: of wall time that is expected until it ends,
        low: at least,
        high: and at most, with 80 %.
        sure: seconds until it would be sure, whatever bounds it.
        advice: one line: what to do if it ends before it is sure; "" if it does not.
    """

    seconds: float
    low: float
    high: float
    sure: float
    advice: str = ""

    @property
    def text(self) -> str:
        """In a few words, such as ``about 3 min (1 min to 8 min)``."""
        low, high = duration(self.low), duration(self.high)
        return f"about {duration(self.seconds)}{f' ({low} to {high})' if low != high else ''}"


class Answer(Value):
    """What a study found; while it runs, what it knows so far.

    Attributes:
        best: the point to use; None if nothing worked. It is the one that is confirmed to be better than the baseline;
            if none is, the best by estimate, or the baseline if no other seems to be better by what matters.
        baseline: what the ratios refer to: the default, or the first point that worked if the default does not; without
            any default it is ``best``.
        confirmed: whether ``best`` is better than the baseline with the confidence of the study.
        ratio: how many times as good as the baseline ``best`` is (see `Compared`); ``low`` and ``high`` likewise, if it
            is confirmed.
        runs: how often ``best`` and the baseline were measured, at least.
        rounds: the paired rounds of ``best`` and the baseline.
        ties: points that cannot be distinguished from ``best``, those with the shortest runs first.
        promising: ``best``, or, of two goals without rounds, the point with the best estimate of the first one; None if
            nothing worked.
        noise: the relative standard deviation of a run; None if unknown.
        default_failed: why the default has no figure; "" if it has one.
        front: with two goals, the points that no other is shown to beat in one without a loss in the other.
        compared: all finalists against the baseline.
        seconds: the mean wall time of a run of ``best``.
        text: one sentence that says what is certain and what is not.
    """

    best: Point | None
    baseline: Point
    confirmed: bool = False
    ratio: float = 1.0
    low: float = 1.0
    high: float | None = 1.0
    rounds: int = 0
    runs: int = 0
    ties: tuple[Point, ...] = ()
    promising: Point | None = None
    noise: float | None = None
    default_failed: str = ""
    front: tuple[Point, ...] = ()
    compared: tuple[Compared, ...] = ()
    seconds: float = 0.0
    text: str = ""

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Answer:
        """Read back what ``as_dict`` returned; what it lacks, or a newer version added, is left out."""
        known = {name: record[name] for name in cls._fields if record.get(name) is not None}
        several = {name: tuple(known.pop(name, ())) for name in ("ties", "front", "compared")}
        several["compared"] = tuple(Compared(**each) for each in several["compared"])
        high = {"high": record["high"]} if "high" in record else {}
        return cls(**{"best": None, "baseline": {}, **known, **several, **high})
