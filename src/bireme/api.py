"""The public Python interface: :func:`run` starts a job, :func:`plan` returns its plan."""

from __future__ import annotations

import os

from bireme.errors import BadInputError
from bireme.launch import placement
from bireme.logs.console import open_closed_streams
from bireme.resources import program
from bireme.runner import session
from bireme.signal_numbers import SIGINT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bireme.cluster.cluster_job import LauncherCommands
    from bireme.job import JobSpec
    from bireme.planning.start import Sketch, StartPlan
    from bireme.result.outcome import Outcome


def run(
    spec: JobSpec,
    environ: Mapping[str, str] | None = None,
    on_restart: Callable[[Outcome, JobSpec], object] = lambda *_: None,
    on_change: Callable[[Outcome, str], object] = lambda *_: None,
) -> Outcome:
    """Run a job and wait for its end; the ranks write to stdout and stderr of this process.

    Call it in the main thread: while it runs, SIGINT, SIGTERM, SIGHUP and SIGQUIT stop the job. After SIGINT (Ctrl+C)
    it raises KeyboardInterrupt; the others are the cause in the outcome.

    Args:
        spec: the job.
        environ: the environment that the ranks inherit; by default that of this process.
        on_restart: called before each restart, with the outcome of the last attempt and the job that is started next.
        on_change: called between two epochs of an elastic job, with the outcome of the old and the reason for the new.

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

    try:
        python_interface.check(spec)
        outcome = run_command(spec, environ, on_restart, on_change)
    except BadInputError as error:
        raise python_interface.in_python(error) from None
    if outcome.interrupted == SIGINT:
        raise KeyboardInterrupt
    return outcome


def run_command(
    spec: JobSpec,
    environ: Mapping[str, str] | None = None,
    on_restart: Callable[[Outcome, JobSpec], object] = lambda *_: None,
    on_change: Callable[[Outcome, str], object] = lambda *_: None,
) -> Outcome:
    """Run a job for the command line: unlike with :func:`run`, errors name options, and Ctrl+C is an outcome.

    The arguments are those of :func:`run`.

    Raises:
        BadInputError: the job cannot be run as described; nothing has been started.
    """
    opened = open_closed_streams()
    try:
        spec, environ = program.recognized(spec), _inherited() if environ is None else environ
        place = placement.resolve(spec, environ)
        if not spec.restarts or place.restarts_itself:
            return placement.run(spec, environ, place, on_change=on_change)
        from bireme.launch import restarts

        return restarts.run(spec, environ, place, on_restart)
    finally:
        for fd in opened:
            os.close(fd)


def plan(spec: JobSpec, environ: Mapping[str, str] | None = None) -> StartPlan:
    """The plan of a job: what :func:`run` would start with the same arguments.

    Raises:
        BadInputError: the job cannot be run as described.
        TypeError: a field of the job has a value of another type.
    """
    from bireme.options import python_interface

    try:
        python_interface.check(spec)
        return preview(spec, environ)[0].whole()
    except BadInputError as error:
        raise python_interface.in_python(error) from None


def preview(spec: JobSpec, environ: Mapping[str, str] | None = None) -> tuple[Sketch, LauncherCommands | None]:
    """The plan, whose nodes are made on demand, and the command lines of the launcher (``None``: none is used).

    Raises:
        BadInputError: the job cannot be run as described.
    """
    return placement.preview(program.recognized(spec), _inherited() if environ is None else environ)


def _inherited() -> Mapping[str, str]:
    """The environment that this process was started with.

    In the C locale, Python sets ``LC_CTYPE`` in ``os.environ`` (:pep:`538`); ranks must not inherit that.
    """
    if os.environ.get("LC_CTYPE") not in ("C.UTF-8", "C.utf8", "UTF-8"):
        return os.environ
    try:
        with open("/proc/self/environ", "rb") as file:
            ours = any(entry.startswith(b"LC_CTYPE=") for entry in file.read().split(b"\0"))
    except OSError:
        return os.environ
    return os.environ if ours else {name: value for name, value in os.environ.items() if name != "LC_CTYPE"}
