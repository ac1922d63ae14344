"""Bireme launches distributed jobs and finds the configuration in which they run fastest.

The public Python interface is :func:`run` and :func:`plan`, see :mod:`bireme.api`, and :func:`report` for scripts that
are tuned. They are imported on first use, so that importing a submodule does not import the others.
"""

# no ``from __future__`` here: under ``python -m``, Python would look for that module in the working directory
TYPE_CHECKING = False
if TYPE_CHECKING:
    from bireme.api import plan, run
    from bireme.errors import BadInputError, BiremeError
    from bireme.figure_report import report
    from bireme.job import JobSpec, Program
    from bireme.result.outcome import Outcome

__version__ = "0.1.0"
__all__ = ["BadInputError", "BiremeError", "JobSpec", "Outcome", "Program", "__version__", "plan", "report", "run"]

_HOME = {
    "run": "bireme.api",
    "plan": "bireme.api",
    "report": "bireme.figure_report",
    "JobSpec": "bireme.job",
    "Program": "bireme.job",
    "Outcome": "bireme.result.outcome",
    "BiremeError": "bireme.errors",
    "BadInputError": "bireme.errors",
}


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'bireme' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
