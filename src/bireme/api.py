"""What a Python program imports: :func:`run` and :func:`plan`."""

from __future__ import annotations

import os

from bireme.runner import launch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from bireme.job import JobSpec
    from bireme.planning.start import StartPlan
    from bireme.supervise.outcome import Outcome


def run(spec: JobSpec, environ: Mapping[str, str] | None = None) -> Outcome:
    """Run a job and wait for its end; the ranks write to this process's stdout and stderr.

    Call it in the main thread: while it runs, SIGINT, SIGTERM, SIGHUP and the like stop the job.

    Args:
        spec: the job.
        environ: what the ranks inherit; this process's environment when not given.

    Returns:
        What happened. A job that fails is not an exception.

    Raises:
        BadInputError: the job cannot be run as described; nothing was started.
    """
    return launch.run(spec, os.environ if environ is None else environ)


def plan(spec: JobSpec, environ: Mapping[str, str] | None = None) -> StartPlan:
    """What :func:`run` would start, without starting it.

    Raises:
        BadInputError: as :func:`run`.
    """
    return launch.plan(spec, os.environ if environ is None else environ)
