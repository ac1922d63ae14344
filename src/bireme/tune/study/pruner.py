"""Decides when a running trial is stopped because it cannot win any more."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from bireme.tune.samplers.sampler import Observation
from bireme.tune.study.observations import CLOCK, Measurements

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
        return "slower than the best already" if measured.score(0, max(seconds, 1e-9)) < bound else ""
    if len(series) < 8 or min(series) <= 0:
        return ""
    # Neighbours in a series are not independent: means of quarters nearly are.
    size = len(series) // 4
    parts = [statistics.fmean(series[start : start + size]) for start in range(0, 4 * size, size)]
    scores = [measured.score(0, part) for part in parts]
    may_be = statistics.fmean(scores) + _CAREFUL * statistics.stdev(scores) / math.sqrt(len(scores))
    return "worse than the best for certain" if may_be < bound else ""
