"""Decides when a running trial is stopped: it cannot win any more, or others were ahead of it at the same step.

Successive halving keeps of all trials that reach a step the best part, step by step, and waits for none (Li and others,
"A system for massively parallel hyperparameter tuning", MLSys 2020). A trial that would have caught up later is lost.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from bireme.errors import BadInputError, counted
from bireme.tune.samplers.sampler import Direction, Observation
from bireme.tune.study.observations import CLOCK, Measurements
from bireme.tune.study.trial import Goal

PRUNERS = ("certain", "halving", "off")
_FACTOR = 4
"""Of all trials that reach a step, halving keeps this part: the best of four, and so on."""

_CAREFUL = 14.0
"""The mean of four parts of a series is at most this many of its standard errors higher in the long run."""


def reason_to_prune(measured: Measurements, best: Observation, seconds: float, series: Sequence[float] = ()) -> str:
    """Why a trial cannot win any more; "" as long as it may, or as nothing is known of the noise.

    Args:
        measured: the runs of the study.
        best: the best point so far.
        seconds: the trial has run for.
        series: its figures of the first goal since its warm-up.
    """
    noise, freedom = measured.noise()
    if not best.value or noise is None:
        return ""
    # The best may look better than it is, and the noise of a few runs smaller.
    margin = 3 * max(noise, 0.005) * (1 + 3 / freedom) * math.sqrt(1 + 1 / len(best.values))
    bound = math.log(best.value) - margin
    goal = measured.goals[0]
    if goal.name == CLOCK and goal.direction == "minimize":
        return "already slower than the best" if measured.score(0, max(seconds, 1e-9)) < bound else ""
    if len(series) < 8 or min(series) <= 0:
        return ""
    # Neighbours in a series are not independent: means of quarters nearly are.
    size = len(series) // 4
    parts = [statistics.fmean(series[start : start + size]) for start in range(0, 4 * size, size)]
    scores = [measured.score(0, part) for part in parts]
    may_be = statistics.fmean(scores) + _CAREFUL * statistics.stdev(scores) / math.sqrt(len(scores))
    return "certainly worse than the best" if may_be < bound else ""


class Halving:
    """Successive halving at the steps 1, F, F², …; a step is a reading of the first goal.

    Args:
        factor: F: at each step, one of so many trials goes on.
        direction: of the goal.

    Attributes:
        passed: the figure of each trial at the steps that it has reached, by its name.
    """

    def __init__(self, factor: int, direction: Direction) -> None:
        self._factor, self._sign = factor, 1 if direction == "maximize" else -1
        self.passed: dict[str, dict[int, float]] = {}

    def note(self, name: str, series: Sequence[float]) -> None:
        """Note the steps that a trial has reached; what was noted once stays."""
        passed, step = self.passed.setdefault(name, {}), 1
        while step <= len(series):
            passed.setdefault(step, series[step - 1])
            step *= self._factor

    def reason(self, name: str) -> str:
        """Why a trial is stopped at the last step that it has reached; "" if it is not."""
        own = self.passed.get(name)
        if not own:
            return ""
        step = max(own)
        others = [each[step] for each in self.passed.values() if step in each]
        ahead = sum(self._sign * each > self._sign * own[step] for each in others)
        if len(others) < self._factor or ahead < len(others) // self._factor:
            return ""
        return f"not among the best {len(others) // self._factor} of {len(others)} after {counted(step, 'reading')}"


def halving(pruner: str, goals: Sequence[Goal]) -> Halving | None:
    """The pruner ``halving`` or ``halving:FACTOR``; None: it is ``certain`` or ``off``.

    Raises:
        BadInputError: there is no such pruner, or it cannot compare by several goals.
    """
    name, _, factor = pruner.partition(":")
    if name == "halving" and (not factor or (factor.isascii() and factor.isdigit() and int(factor) > 1)):
        if len(goals) > 1:
            raise BadInputError("halving compares trials by one goal", hint="leave one goal out", where="--pruner")
        return Halving(int(factor or _FACTOR), goals[0].direction)
    if pruner not in PRUNERS:
        raise BadInputError(f"no pruner {pruner!r}", hint="use certain, halving, halving:3 or off", where="--pruner")
    return None
