"""Finds the configuration that may have had a poor run by chance: the others let expect that it is among the best.

A run measures a few steps, and one hiccup of the machine may halve its figure. Such a configuration would never run
again. A model of all others shows it: what a Gaussian process expects of a place without its own measurement.
"""

from __future__ import annotations

from collections.abc import Sequence

from bireme.tune.deepspeed.rounds import CompletedTrial
from bireme.tune.model_search import ModelBased
from bireme.tune.parameter import Parameter, among
from bireme.tune.space import Space, key_of

_LEAST = 6
"""Of fewer configurations, the others say little about one."""


def overlooked(rated: Sequence[tuple[CompletedTrial, float]], near: float) -> CompletedTrial | None:
    """The one whose figure is the poorest run by chance, if any; it is none of the best.

    Args:
        rated: configurations with their figures, of which more is better.
        near: the part of the best figure that makes a configuration one of the best.
    """
    if len(rated) < _LEAST:
        return None
    points = [done.trial.point for done, _ in rated]
    names = dict.fromkeys(name for point in points for name in point)
    search = ModelBased(Space(tuple(_parameter(name, [point.get(name) for point in points]) for name in names)))
    for point, (_, figure) in zip(points, rated, strict=True):
        search.tell(point, figure)
    best = max(figure for _, figure in rated)
    poor = {key_of(done.trial.point): done for done, figure in rated if figure < near * best}
    found = max(
        ((ratio, poor[key]) for ratio, point in search.by_the_others() if (key := key_of(point)) in poor),
        key=lambda each: each[0],
        default=None,
    )
    return found[1] if found is not None and found[0] >= near else None


def _parameter(name: str, values: Sequence[object]) -> Parameter:
    choices: list[object] = []
    for value in values:
        if not among(value, choices):
            choices.append(value)
    return Parameter(name=name, choices=tuple(choices))
