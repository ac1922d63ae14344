"""What a Python program imports: :func:`run` and :func:`plan`."""

from __future__ import annotations

import os

from bireme.launch import placement

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bireme.job import JobSpec
    from bireme.planning.start import Sketch, StartPlan
    from bireme.result.outcome import Outcome


def run(
    spec: JobSpec,
    environ: Mapping[str, str] | None = None,
    on_restart: Callable[[Outcome, JobSpec], object] = lambda *_: None,
    on_change: Callable[[Outcome, str], object] = lambda *_: None,
) -> Outcome:
    """Run a job and wait for its end; the ranks write to this process's stdout and stderr.

    Call it in the main thread: while it runs, SIGINT, SIGTERM, SIGHUP and the like stop the job.

    Args:
        spec: the job.
        environ: what the ranks inherit; this process's environment when not given.
        on_restart: called before each of the job's ``restarts``, with how it has ended and with what is started now.
        on_change: called between two epochs of an elastic job, with how the one has ended and why there is another.

    Returns:
        What happened, the last time. A job that fails is not an exception.

    Raises:
        BadInputError: the job cannot be run as described; nothing was started.
    """
    environ = _inherited() if environ is None else environ
    if spec.elastic and not spec.by_hand:
        from bireme.elastic import elastic_job

        return elastic_job.run(spec, environ, on_change)
    if not spec.restarts or spec.elastic:  # by hand it is PyTorch's agent that starts again
        return placement.run(spec, environ)
    from bireme.launch import restarts

    return restarts.run(spec, environ, on_restart)


def plan(spec: JobSpec, environ: Mapping[str, str] | None = None) -> StartPlan:
    """What :func:`run` would start, without starting it.

    Raises:
        BadInputError: as :func:`run`.
    """
    return sketch(spec, environ).whole()


def sketch(spec: JobSpec, environ: Mapping[str, str] | None = None) -> Sketch:
    """The same, node by node.

    Raises:
        BadInputError: as :func:`run`.
    """
    if spec.elastic:  # the address counts only where it is the first node's
        run_id = spec.run_id or "<made at the start>"
        spec = spec.replace(master_addr=None, num_nodes=None, run_id=run_id)
    return placement.plan(spec, _inherited() if environ is None else environ)


def _inherited() -> Mapping[str, str]:
    """The environment that we were started with.

    In the C locale, Python puts an ``LC_CTYPE`` of its own into ``os.environ`` (:pep:`538`): ranks are not to find it.
    """
    if os.environ.get("LC_CTYPE") not in ("C.UTF-8", "C.utf8", "UTF-8"):
        return os.environ
    try:
        with open("/proc/self/environ", "rb") as file:
            ours = any(entry.startswith(b"LC_CTYPE=") for entry in file.read().split(b"\0"))
    except OSError:
        return os.environ
    return os.environ if ours else {name: value for name, value in os.environ.items() if name != "LC_CTYPE"}
