"""The next point of a search: the samplers by name."""

from __future__ import annotations

from collections.abc import Callable

from bireme.errors import BadInputError
from bireme.tune.samplers.sampler import Grid, Random, Sampler
from bireme.tune.space.points import Point

KINDS = ("gridsearch", "random", "model_based")

OPTUNA = "optuna:"
"""What the name of a sampler of Optuna begins with, such as ``optuna:TPE``."""


def check(kind: str, where: str = "") -> None:
    """Raise BadInputError if there is no such search, or a package that it needs is not installed."""
    if kind.startswith(OPTUNA):
        from bireme.tune.samplers.optuna_sampler import sampler_kind

        try:
            sampler_kind(kind.removeprefix(OPTUNA))
        except BadInputError as error:
            raise BadInputError(error.what, hint=error.hint, where=where) from None
    elif kind not in KINDS:
        hint = f"choose one of {', '.join(KINDS)}, {OPTUNA}SAMPLER"
        raise BadInputError(f"unknown search: {kind!r}", hint=hint, where=where)


def make(kind: str, seed: int = 0, excluded: Callable[[Point], bool] | None = None, **options: object) -> Sampler:
    """Create a sampler by its name (in DeepSpeed's configuration, its ``tuner_type``).

    Args:
        kind: one of `KINDS`, or a sampler of Optuna where that is installed.
        excluded: whether a point must not be tried; None: all may.
    """
    check(kind)
    if kind == "model_based":
        from bireme.tune.samplers.model_based import ModelBased

        return ModelBased(seed, excluded, **options)  # type: ignore[arg-type]  # as its class takes them
    if kind.startswith(OPTUNA):
        from bireme.tune.samplers.optuna_sampler import Optuna

        return Optuna(seed, excluded, sampler=kind.removeprefix(OPTUNA))
    return Grid(seed, excluded) if kind == "gridsearch" else Random(seed, excluded)
