"""Searches by a sampler of Optuna, where that is installed.

Optuna's samplers propose the same point again and know no constraints. So what a sampler proposes is moved to the
nearest point that may be tried.
"""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from bireme.errors import BadInputError
from bireme.tune.samplers.sampler import Direction, Observation, Search
from bireme.tune.space.points import Parameter, Point, Points, key_of

_SCANNED = 1024

_SAMPLERS = ("cmaes", "gp", "nsgaii", "nsgaiii", "qmc", "random", "tpe")
"""The others need arguments, or a space without conditions."""

_NEEDS = {"cmaes": ("cmaes",), "gp": ("scipy", "torch"), "qmc": ("scipy",)}
"""Packages that samplers import when they are used, and that Optuna does not install."""


def sampler_kind(name: str) -> Any:
    """The class of a sampler.

    Raises:
        BadInputError: Optuna or a package that the sampler needs is not installed, or the sampler is not one that works
            here.
    """
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


class OptunaSearch(Search):
    """The points that a sampler of Optuna proposes.

    Args:
        sampler: the name of its class, with or without "Sampler", in any case: ``TPE``, ``gp``, ``CmaEsSampler``.

    Raises:
        BadInputError: see `sampler_kind`.
    """

    def __init__(self, space: Points, direction: Direction = "maximize", seed: int = 0, *, sampler: str) -> None:
        super().__init__(space, direction, seed)
        self._sampler = sampler_kind(sampler)
        import optuna

        self._optuna: Any = optuna
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
        self._scales = {each.name: _scale(optuna, each) for each in space.parameters if len(each.choices) > 1}
        self._indices = {
            each.name: {key_of({"": choice}): index for index, choice in enumerate(each.choices)}
            for each in space.parameters
        }

    def _candidates(self) -> Iterator[dict[str, object]]:
        if self._scales:
            proposed = self._propose()
            points = [point for point in self._scan() if self.open(point)]
            yield from sorted(points, key=lambda point: self._apart(proposed, self._place(point)))
        yield from self.space.points()

    def _propose(self) -> dict[str, int]:
        """What the sampler says after all results, as numbers of choices."""
        optuna = self._optuna
        sampler = self._sampler(seed=self._draw())
        study = optuna.create_study(sampler=sampler, direction="minimize")
        failed = optuna.trial.TrialState.FAIL
        for each in self.observations.values():
            place = self._place(each.point)
            options = {"value": self._logarithm(each)} if each.value is not None else {"state": failed}
            distributions = {name: self._scales[name] for name in place}
            trial = optuna.trial.create_trial(params=place, distributions=distributions, **options)
            study.add_trial(trial)
        trial = study.ask(self._scales)
        return dict(trial.params)

    def _logarithm(self, observation: Observation) -> float:
        """The cost; its logarithm if it has one, so that figures which differ by a factor are compared by it."""
        cost = self.cost(observation.value or 0.0)
        return math.copysign(1.0, cost) * math.log(abs(cost)) if self._positive else cost

    @property
    def _positive(self) -> bool:
        return all(each.value is None or each.value > 0 for each in self.observations.values())

    def _scan(self) -> list[dict[str, object]]:
        return self.space.sample(_SCANNED, self._draw())

    def _draw(self) -> int:
        """Of each proposal another one. Those of two searches with seeds beside each other have nothing in common."""
        return random.Random(f"{self.seed} {len(self.observations)} {len(self.pending)}").getrandbits(32)

    def _place(self, point: Point) -> dict[str, int]:
        return {name: self._indices[name][key_of({"": point[name]})] for name in self._scales if name in point}

    def _apart(self, one: dict[str, int], other: dict[str, int]) -> float:
        """How far two points are apart."""
        ordered = {each.name: each.ordered for each in self.space.parameters}
        steps = (
            abs(one[name] - place) / len(self._indices[name]) if ordered[name] else float(one[name] != place)
            for name, place in other.items()
        )
        return sum(steps)


def _scale(optuna: Any, parameter: Parameter) -> Any:
    """A parameter as Optuna sees it: the numbers of its choices."""
    last = len(parameter.choices) - 1
    if parameter.ordered:
        return optuna.distributions.IntDistribution(0, last)
    return optuna.distributions.CategoricalDistribution(list(range(last + 1)))
