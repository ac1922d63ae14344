"""The public Python interface: :func:`run` starts a job, :func:`plan` returns its plan."""

from __future__ import annotations

from bireme.errors import BadInputError
from bireme.launching import placement
from bireme.runner import session
from bireme.signal_numbers import SIGINT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from bireme.job import JobSpec
    from bireme.planning.start import StartPlan
    from bireme.result.outcome import Outcome


def run(
    spec: JobSpec,
    environ: Mapping[str, str] | None = None,
    on_restart: Callable[[Outcome, JobSpec], object] = lambda *_: None,
    on_change: Callable[[Outcome, str], object] = lambda *_: None,
    on_event: Callable[[dict[str, Any]], object] | None = None,
) -> Outcome:
    """Run a job and wait for its end; the ranks write to stdout and stderr of this process.

    Call it in the main thread: while it runs, SIGINT, SIGTERM, SIGHUP and SIGQUIT stop the job. After SIGINT (Ctrl+C)
    it raises KeyboardInterrupt; the others are the cause in the outcome.

    Args:
        spec: the job.
        environ: the environment that the ranks inherit; by default that of this process.
        on_restart: called before each restart, with the outcome of the last attempt and the job that is started next.
        on_change: called between two epochs of an elastic job, with the outcome of the old and the reason for the new.
        on_event: called with each event of the job, as ``docs/jobs.md`` lists them. The job waits meanwhile.

    Returns:
        The outcome of the last attempt. A job that fails raises no exception.

    Raises:
        BadInputError: the job cannot be run as described; nothing has been started.
        TypeError: a field of the job has a value of another type.
        KeyboardInterrupt: Ctrl+C has stopped the job, of which nothing is left.
    """
    if not session.in_main_thread():
        raise BadInputError(
            "bireme.run() works only in the main thread, where signals arrive; in another thread, start the command "
            "bireme run as a process"
        )
    from bireme.options import python_interface

    if on_event is not None:
        from bireme.runner import event_log

        event_log.listener = on_event
    try:
        with python_interface.with_names_of_fields():
            python_interface.check(spec)
            outcome = placement.launch(spec, environ, on_restart, on_change)
    finally:
        if on_event is not None:
            event_log.listener = None
    if outcome.interrupted == SIGINT:
        raise KeyboardInterrupt
    return outcome


def plan(spec: JobSpec, environ: Mapping[str, str] | None = None) -> StartPlan:
    """The plan of a job: what :func:`run` would start with the same arguments.

    Raises:
        BadInputError: the job cannot be run as described.
        TypeError: a field of the job has a value of another type.
    """
    from bireme.options import python_interface

    with python_interface.with_names_of_fields():
        python_interface.check(spec)
        return placement.preview(spec, environ)[0].whole()
