"""The searches by name."""

from __future__ import annotations

from bireme.errors import BadInputError
from bireme.tune.samplers.sampler import Direction, Grid, Random, Search
from bireme.tune.space.points import Points

KINDS = ("gridsearch", "random", "model_based")

OPTUNA = "optuna:"
"""What the name of a sampler of Optuna begins with, such as ``optuna:TPE``."""


def check(kind: str, where: str = "") -> None:
    """Check that there is such a search.

    Raises:
        BadInputError: there is none, or a package that it needs is not installed.
    """
    if kind.startswith(OPTUNA):
        from bireme.tune.samplers.optuna_sampler import sampler_kind

        try:
            sampler_kind(kind.removeprefix(OPTUNA))
        except BadInputError as error:
            raise BadInputError(error.what, hint=error.hint, where=where) from None
    elif kind not in KINDS:
        hint = f"choose one of {', '.join(KINDS)}, {OPTUNA}SAMPLER"
        raise BadInputError(f"unknown search: {kind!r}", hint=hint, where=where)


def make(kind: str, space: Points, direction: Direction = "maximize", seed: int = 0, **options: object) -> Search:
    """Create a search by its name (in DeepSpeed's configuration, its ``tuner_type``).

    Args:
        kind: one of `KINDS`, or a sampler of Optuna where that is installed.
        options: further arguments of its class.

    Raises:
        BadInputError: no such search.
    """
    check(kind)
    if kind == "model_based":
        from bireme.tune.samplers.model_based import ModelBased

        return ModelBased(space, direction, seed, **options)  # type: ignore[arg-type]  # as its class takes them
    if kind.startswith(OPTUNA):
        from bireme.tune.samplers.optuna_sampler import OptunaSearch

        return OptunaSearch(space, direction, seed, sampler=kind.removeprefix(OPTUNA))
    return Grid(space, direction, seed) if kind == "gridsearch" else Random(space, direction, seed)
