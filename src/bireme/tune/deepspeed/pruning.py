"""Pruning: whether a ZeRO stage can still win.

A higher stage buys memory with communication. It can win only by what the memory is good for: a larger
micro-batch. So when larger micro-batches have ceased to help, and the last step up already cost speed, no
further step up can pay (the rule of DeepSpeed, which compares micro-batches only, with its threshold).
"""

from __future__ import annotations

from collections.abc import Mapping

PLATEAU = 0.05
"""A gain of less than this part is none (``METRIC_PERCENT_DIFF_CONST`` of DeepSpeed)."""

APART = 1.5
"""Micro-batches of which one is less than so many times the other tell nothing of what larger ones bring."""

LEEWAY = 0.25
"""What other choices than micro-batch and stage may bring at most: 1.22 is the largest gain over configurations tuned
by hand that is published of DeepSpeed (GPT2-large, in DeepSpeed's autotuning tutorial)."""

Costs = Mapping[int, Mapping[int, float]]
"""What was measured: stage → micro-batch → speed, more is better."""


def cannot_win(stage: int, speeds: Costs, largest: Mapping[int, int]) -> str:
    """Why this stage cannot win any more, or "".

    Args:
        stage: the stage in question.
        speeds: what was measured in the others; more is better.
        largest: the largest micro-batch that a stage can have, where it is known.
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
        return f"stage {below[-1]} was slower than stage {below[-2]}, and larger micro-batches bring nothing more"
    return ""


def _slower(one: Mapping[int, float], other: Mapping[int, float]) -> bool:
    """Whether one is clearly slower at every micro-batch that both were measured at."""
    common = set(one) & set(other)
    return bool(common) and all(one[micro] < other[micro] * (1 - PLATEAU) for micro in common)


def flat(speeds: Mapping[int, float]) -> bool:
    """Whether the last step up in micro-batch gained nothing."""
    below = below_top(speeds)
    return below is not None and speeds[max(speeds)] < speeds[below] * (1 + PLATEAU)


def below_top(speeds: Mapping[int, float]) -> int | None:
    """The size with which the largest is to be compared; None: there is none."""
    return max((size for size in speeds if size * APART <= max(speeds)), default=None)
