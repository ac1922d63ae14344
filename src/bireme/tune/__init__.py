"""The tuner: searches, schedules and runs experiments, and records their results."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bireme.tune.store.stored_study import Study

__all__ = ["Study"]


def __getattr__(name: str) -> object:
    """``bireme.tune.Study``, imported when it is used."""
    if name == "Study":
        from bireme.tune.store.stored_study import Study

        return Study
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
