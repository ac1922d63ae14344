"""Proposals of a sampler of Optuna, where that is installed.

Optuna's samplers propose the same point again and know no constraints. So what a sampler proposes is moved to the
nearest point that may be tried.
"""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

from bireme.errors import BadInputError
from bireme.tune.samplers.sampler import Finished, Pending, Sampler
from bireme.tune.space.points import Parameter, Point, Points

_SCANNED = 1024

_SAMPLERS = ("cmaes", "gp", "nsgaii", "nsgaiii", "qmc", "random", "tpe")
"""The others need arguments, or a space without conditions."""

_NEEDS = {"cmaes": ("cmaes",), "gp": ("scipy", "torch"), "qmc": ("scipy",)}
"""Packages that samplers import when they are used, and that Optuna does not install."""


def sampler_kind(name: str) -> Any:
    """The class of a sampler; BadInputError if a package for it is not installed, or it does not work here."""
    try:
        import optuna
    except ImportError:
        raise BadInputError("optuna is not installed", hint="type: pip install optuna") from None
    there = {each.removesuffix("Sampler").lower(): each for each in optuna.samplers.__all__ if each.endswith("Sampler")}
    kinds = {each: getattr(optuna.samplers, there[each]) for each in _SAMPLERS if each in there}
    word = name.lower().removesuffix("sampler")
    if word not in kinds:
        raise BadInputError(f"cannot search by optuna:{name}", hint=f"choose one of {', '.join(kinds)}")
    if missing := [each for each in _NEEDS.get(word, ()) if find_spec(each) is None]:
        raise BadInputError(f"optuna:{name} needs {', '.join(missing)}", hint=f"type: pip install {' '.join(missing)}")
    return kinds[word]


class Optuna(Sampler):
    """The points that a sampler of Optuna proposes.

    ``sampler``: the name of its class, with or without "Sampler", in any case: ``TPE``, ``gp``, ``CmaEsSampler``.
    """

    def __init__(self, seed: int = 0, excluded: Callable[[Point], bool] | None = None, *, sampler: str) -> None:
        super().__init__(seed, excluded)
        self._sampler = sampler_kind(sampler)
        import optuna

        self._optuna: Any = optuna
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)

    def propose(self, space: Points, finished: Finished, pending: Pending) -> Point | None:
        """The open point that is nearest to what the sampler says; None if there is none."""
        known = self.known(space, finished, pending)
        scales = {each.name: _scale(self._optuna, each) for each in space.parameters if len(each.choices) > 1}
        if scales:
            seed = random.Random(f"{self.seed} {len(finished)} {len(pending)}").getrandbits(32)
            asked = self._ask(space, scales, finished, seed)
            point = {each.name: each.choices[asked.get(each.name, 0)] for each in space.parameters}
            if point in space and known.open(point):
                return point
            near = [point for point in space.sample(_SCANNED, seed) if known.open(point)]
            if near:
                return min(near, key=lambda point: _apart(space, asked, _place(space, point)))
        return next(filter(known.open, space.points()), None)

    def _ask(self, space: Points, scales: Mapping[str, Any], finished: Finished, seed: int) -> dict[str, int]:
        """What the sampler says after all results, as numbers of choices."""
        optuna = self._optuna
        study = optuna.create_study(sampler=self._sampler(seed=seed), direction="minimize")
        positive = all(each.value is None or each.value > 0 for each in finished.values())
        for each in finished.values():
            place = _place(space, each.point)
            options: dict[str, Any] = {"state": optuna.trial.TrialState.FAIL}
            if each.value is not None:
                options = {"value": -math.log(each.value) if positive else -each.value}
            distributions = {name: scales[name] for name in place}
            study.add_trial(optuna.trial.create_trial(params=place, distributions=distributions, **options))
        return dict(study.ask(dict(scales)).params)


def _place(space: Points, point: Point) -> dict[str, int]:
    """The numbers of a point's choices."""
    varying = (each for each in space.parameters if len(each.choices) > 1 and each.name in point)
    return {each.name: each.index(point[each.name]) for each in varying}


def _apart(space: Points, one: Mapping[str, int], other: Mapping[str, int]) -> float:
    """How far two points are apart."""
    return sum(
        abs(one[each.name] - other[each.name]) / len(each.choices)
        if each.ordered
        else float(one[each.name] != other[each.name])
        for each in space.parameters
        if each.name in other
    )


def _scale(optuna: Any, parameter: Parameter) -> Any:
    """A parameter as Optuna sees it: the numbers of its choices."""
    last = len(parameter.choices) - 1
    if parameter.ordered:
        return optuna.distributions.IntDistribution(0, last)
    return optuna.distributions.CategoricalDistribution(list(range(last + 1)))
