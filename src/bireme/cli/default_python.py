"""Decides the default of ``--python``: torchrun's variable ``PYTHON_EXEC``, or the Python of the active environment.

The second counts if Bireme is installed in another environment.
"""

from __future__ import annotations

import sys

from bireme.job import BY_LABELS, CONTAINERS
from bireme.logs.console import complain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from bireme.cli.parser import Parsed


def in_active_environment(parsed: Parsed, environ: Mapping[str, str]) -> Parsed:
    """Add ``--python`` to a command line for ``PYTHON_EXEC``, or for an active environment without Bireme."""
    options = parsed.options
    if options.get("python") or options.get("venv_script"):
        return parsed
    if named := environ.get("PYTHON_EXEC"):
        return parsed.replace(options={**options, "python": named, "python_from": "PYTHON_EXEC"})
    if options.get("launcher") in CONTAINERS or str(options.get("hosts")).startswith(BY_LABELS):
        return parsed  # an environment of this machine is in no container
    from bireme.resources.active_environment import active_prefix, other_python

    python = other_python(environ, sys.argv[0])
    if not python:
        return parsed
    if options.get("log_level") in ("debug", "info") and not options.get("quiet"):
        complain(f"ranks run in the active environment {active_prefix(environ)}")
    return parsed.replace(options={**options, "python": python, "python_from": "the active environment"})
