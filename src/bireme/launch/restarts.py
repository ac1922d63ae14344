"""``--restarts``: a job that has failed is started again as a whole, for scripts that go on from a checkpoint."""

from __future__ import annotations

import time

from bireme.agent.session import limit_note
from bireme.errors import UNFIT, BadInputError
from bireme.launch import placement
from bireme.launch.restart_budget import RestartBudget

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bireme.job import JobSpec
    from bireme.result.outcome import Outcome

CURABLE = ("rank failed", "agent lost")
"""Ends after which another attempt may do better. Who has stopped a job wants no other, nor does a time limit."""


def run(
    spec: JobSpec, environ: Mapping[str, str], on_restart: Callable[[Outcome, JobSpec], object] = lambda *_: None
) -> Outcome:
    """Run the job, at most ``spec.restarts`` times again; the outcome is that of the last attempt.

    Restarts are forgiven after ``spec.restart_window`` seconds without a failure. Nodes that were lost, or turned out
    not to be fit, are left out of the next attempt where the pool has others. The time limit is that of all attempts
    together.

    Args:
        spec: the job.
        environ: what the ranks inherit.
        on_restart: called before each restart, with how the attempt ended and with the next one.

    Raises:
        BadInputError: as `launch.run`.
    """
    begin, limit = time.monotonic(), spec.time_limit
    budget = RestartBudget(spec.restarts, spec.restart_window)
    last: Outcome | None = None
    while True:
        budget.begin(time.monotonic())
        try:
            outcome = placement.run(spec, environ)
        except BadInputError as error:
            if last is None:
                raise
            note = f"{last.note}\n" if last.note else ""
            return last.replace(note=f"{note}it cannot be started again: {error}")
        last = outcome
        again = _next_attempt(spec, outcome, budget)
        if again is None:
            return outcome.replace(note=limit_note(limit)) if limit and outcome.cause == "time limit" else outcome
        if spec.time_limit is not None:
            left = spec.time_limit - (time.monotonic() - begin)
            if left <= 0:
                return outcome
            again, begin = again.replace(time_limit=left), time.monotonic()
        on_restart(outcome, again)
        spec = again


def _next_attempt(spec: JobSpec, outcome: Outcome, budget: RestartBudget) -> JobSpec | None:
    """The job that is to be tried next; None: this was the last one."""
    # At the first attempt, a node that is not fit is a mistake to be mended; later it is one that was lost.
    unfit = outcome.exit_code == UNFIT and spec.attempt > 0 and bool(outcome.hosts)
    if outcome.interrupted or not (outcome.cause in CURABLE or unfit) or not budget.spend(time.monotonic()):
        return None
    avoid = (*spec.avoid, *(host for host in outcome.hosts if host not in spec.avoid))
    return spec.replace(attempt=spec.attempt + 1, avoid=avoid)
