"""Pruning: decides whether a ZeRO stage can still win.

A higher stage saves memory at the cost of communication, and can win only by a larger micro-batch. So if larger
micro-batches no longer help and the last stage up was already slower, no further stage can win. This is DeepSpeed's
rule, with its threshold; DeepSpeed compares only micro-batches.
"""

from __future__ import annotations

from collections.abc import Mapping

PLATEAU = 0.05
"""A smaller relative gain counts as none (``METRIC_PERCENT_DIFF_CONST`` of DeepSpeed)."""

APART = 1.5
"""Two micro-batches whose ratio is smaller than this do not show whether larger ones help."""

LEEWAY = 0.25
"""The most that choices other than micro-batch and stage are assumed to gain. The largest published gain over
hand-tuned configurations is 1.22 (GPT2-large, in DeepSpeed's autotuning tutorial)."""

Costs = Mapping[int, Mapping[int, float]]
"""Measurements: stage → micro-batch → speed (more is better)."""


def cannot_win(stage: int, speeds: Costs, largest: Mapping[int, int]) -> str:
    """Why this stage can no longer win; "" if it may.

    Args:
        speeds: measurements of the other stages; more is better.
        largest: the largest micro-batch that fits in a stage, if known.
    """
    below = sorted(other for other in speeds if other < stage and speeds[other])
    if not below:
        return ""
    limit = largest.get(stage)
    for other in below:
        best = max(speeds[other], key=lambda micro: speeds[other][micro])
        if limit is not None and limit < best:
            return f"stage {other} is fastest at micro-batch {best}, and stage {stage} holds at most {limit}"
    if len(below) >= 2 and _slower(speeds[below[-1]], speeds[below[-2]]) and flat(speeds[below[-2]]):
        return f"stage {below[-1]} was slower than stage {below[-2]}, and larger micro-batches no longer help"
    return ""


def _slower(one: Mapping[int, float], other: Mapping[int, float]) -> bool:
    """Whether ``one`` is clearly slower at every micro-batch at which both were measured."""
    common = set(one) & set(other)
    return bool(common) and all(one[micro] < other[micro] * (1 - PLATEAU) for micro in common)


def flat(speeds: Mapping[int, float]) -> bool:
    """Whether the last increase of the micro-batch gained nothing."""
    below = below_top(speeds)
    return below is not None and speeds[max(speeds)] < speeds[below] * (1 + PLATEAU)


def below_top(speeds: Mapping[int, float]) -> int | None:
    """The micro-batch to compare the largest one with; None if there is none."""
    return max((size for size in speeds if size * APART <= max(speeds)), default=None)
