"""The goals and limits of a study of a program: a study file and a command line describe the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bireme.errors import BadInputError
from bireme.tune import samplers
from bireme.tune.define.declarations import Declaration, declare
from bireme.tune.metrics.metric import Direction, Measure, parse
from bireme.value import Value

_BOUNDS = {"confidence": (50, 99.99), "effect": (0.1, 100)}
"""In percent. Those of the effect refuse a fraction (``0.05`` for 5 %): such a study would take 10,000 times as many
rounds."""


class StudySpec(Value):
    """A study of a program.

    Attributes:
        results_dir: the folder of the study; "": the usual one.
        warm_start: tables and folders of results that are known already.
        search, seed, confidence, effect, trials, confirm, pruner: see `bireme.tune.study.study.Study`.
        seconds: the budget of wall time of all runs of the study together; None: no limit.
    """

    declaration: Declaration
    measure: Measure
    results_dir: str = ""
    warm_start: tuple[str, ...] = ()
    search: str = "model_based"
    seed: int = 0
    confidence: float = 0.95
    effect: float = 0.02
    trials: int | None = None
    seconds: float | None = None
    confirm: str | None = None
    pruner: str = "certain"

    @classmethod
    def of(cls, options: Mapping[str, Any], args: Sequence[str], declaration: Declaration | None = None) -> StudySpec:
        """The study that the options of ``bireme tune`` describe.

        Args:
            args: the program's.
            declaration: what varies, if a study file says it.
        """
        goals: list[tuple[Direction, str]] = [("maximize", text) for text in options["maximize"]]
        goals += [("minimize", text) for text in options["minimize"]]
        search = options["search"] or "model_based"
        samplers.check(search, "--search")
        return cls(
            declaration=declaration or _declared(options, args),
            measure=parse(goals, options["limit"]),
            results_dir=options["results_dir"],
            warm_start=options["warm_start"],
            search=search,
            trials=options["trials"],
            seconds=options["budget"],
            confirm=options["confirm"],
            pruner=options["pruner"] or "certain",
            seed=options["seed"],
            **shares(options),
        )

    @property
    def bounds(self) -> dict[str, Any]:
        """How the study searches, and when it ends: options of `bireme.tune.study.study.Study`."""
        names = ("search", "seed", "confidence", "effect", "trials", "seconds", "confirm", "pruner")
        return {name: getattr(self, name) for name in names}


def _declared(options: Mapping[str, Any], args: Sequence[str]) -> Declaration:
    return declare(
        params=options["param"],
        envs=options["env"],
        files=options["in"],
        conditions=options["when"],
        constraints=options["constraint"],
        defaults=options["default"],
        args=args,
    )


def shares(options: Mapping[str, Any]) -> dict[str, float]:
    """Confidence and effect as shares, such as 0.95, as far as they are given in percent: ``95`` or ``2%``."""
    found = {}
    for name, (least, most) in _BOUNDS.items():
        if text := options.get(name):
            try:
                percent = float(text.strip().removesuffix("%"))
            except ValueError:
                percent = float("nan")
            if not least <= percent <= most:
                what = f"{text!r} is not a percentage from {least:g} to {most:g}"
                raise BadInputError(what, where=f"--{name}")
            found[name] = percent / 100
    return found
