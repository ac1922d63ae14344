"""Bireme launches distributed jobs and finds the configuration in which they run fastest.

The public Python interface: :func:`launch`, :func:`start` and :class:`Executor` run functions and jobs from any program
(:mod:`bireme.calls`), :func:`run` and :func:`plan` are the command (:mod:`bireme.api`). In ranks, :func:`rank` and its
kin tell their place, and :func:`report` is for scripts that are tuned. All are imported on first use, so that importing
a submodule does not import the others.
"""

# no ``from __future__`` here: under ``python -m``, Python would look for that module in the working directory
TYPE_CHECKING = False
if TYPE_CHECKING:
    from bireme.api import plan, run
    from bireme.calls.functions import (
        JobError,
        NodeLostError,
        RankKilledError,
        Results,
        StoppedError,
        TimeLimitError,
        launch,
        start,
    )
    from bireme.calls.rank_pool import Executor
    from bireme.calls.running_job import Job
    from bireme.errors import BadInputError, BiremeError
    from bireme.figure_report import report
    from bireme.job import JobSpec, Program
    from bireme.rank_numbers import local_rank, node, rank, world_size
    from bireme.result.outcome import Outcome

__version__ = "0.1.0"
_HOME = {
    "bireme.api": ("plan", "run"),
    "bireme.calls.functions": (
        *("JobError", "NodeLostError", "RankKilledError", "Results", "StoppedError", "TimeLimitError"),
        *("launch", "start"),
    ),
    "bireme.calls.rank_pool": ("Executor",),
    "bireme.calls.running_job": ("Job",),
    "bireme.errors": ("BadInputError", "BiremeError"),
    "bireme.figure_report": ("report",),
    "bireme.job": ("JobSpec", "Program"),
    "bireme.rank_numbers": ("local_rank", "node", "rank", "world_size"),
    "bireme.result.outcome": ("Outcome",),
}
__all__ = [
    "BadInputError",
    "BiremeError",
    "Executor",
    "Job",
    "JobError",
    "JobSpec",
    "NodeLostError",
    "Outcome",
    "Program",
    "RankKilledError",
    "Results",
    "StoppedError",
    "TimeLimitError",
    "__version__",
    "launch",
    "local_rank",
    "node",
    "plan",
    "rank",
    "report",
    "run",
    "start",
    "world_size",
]


def __getattr__(name: str) -> object:
    home = next((home for home, names in _HOME.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'bireme' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(home), name)


def __dir__() -> "list[str]":  # ranks may have an older Python
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
