"""Results of experiments as DeepSpeed's scheduler reports them: the error of each, and the best one."""

from __future__ import annotations

from bireme.tune.deepspeed.results import METRICS, Metric

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from bireme.tune.study.trial_result import TrialResult


def error_of(result: TrialResult) -> str | None:
    """What DeepSpeed calls an error: why there is no figure; None if there is no error."""
    if result.cause == "ok":
        return None
    if not result.reason or result.reason.startswith(f"{result.cause}:"):
        return result.reason or result.cause
    return f"{result.cause}: {result.reason}"


def best_of(exps: Iterable[dict[str, Any]], metric: str) -> tuple[dict[str, Any] | None, float | None]:
    """The experiment with the best ``results`` by a metric, and its figure; (None, None) if none has one.

    For an unknown metric, more is better.
    """
    known = METRICS.get(metric, Metric(metric, "maximize", ""))
    # Zero means not measured. It would win where less is better.
    measured = [(value, exp) for exp in exps if (value := exp["results"].get(known.key)) is not None and value > 0]
    if not measured:
        return None, None
    value, best = (max if known.direction == "maximize" else min)(measured, key=lambda each: each[0])
    return best, value
