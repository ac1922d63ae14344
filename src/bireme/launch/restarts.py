"""``--restarts``: decides after which failures to restart a whole job, for scripts that resume from a checkpoint."""

from __future__ import annotations

import time

from bireme.errors import UNFIT, BadInputError
from bireme.launch import placement
from bireme.launch.restart_budget import RestartBudget
from bireme.runner.session import limit_note

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bireme.job import JobSpec
    from bireme.launch.placement import Placement
    from bireme.result.outcome import Outcome
    from bireme.ship.source import SourceTree

CURABLE = ("rank failed", "agent lost")
"""Causes after which another attempt may succeed. A signal or a time limit ends the job for good."""


def run(
    spec: JobSpec, environ: Mapping[str, str], place: Placement, on_restart: Callable[[Outcome, JobSpec], object]
) -> Outcome:
    """Run the job, restart it up to ``spec.restarts`` times, and return the outcome of the last attempt.

    Restarts are forgiven after ``spec.restart_window`` seconds without a failure. The next attempt avoids nodes that
    were lost or unfit where the pool has others. The time limit covers all attempts together.

    Args:
        on_restart: called before each restart, with the outcome of the attempt and the job of the next one.
    """
    begin, limit = time.monotonic(), spec.time_limit
    budget = RestartBudget(spec.restarts, spec.restart_window)
    last: Outcome | None = None
    tree: SourceTree | None = None
    while True:
        budget.begin(time.monotonic())
        try:
            place = place if last is None else placement.resolve(spec, environ)
            if spec.ship is not None and isinstance(place, placement.Agents):
                from bireme.cluster.cluster_job import ClusterJob

                tree = tree or ClusterJob.find_tree(spec, environ)  # once: all attempts run in the same copy
            outcome = placement.run(spec, environ, place, tree, _is_last(spec, budget))
            tree = tree and tree.replace(notes=())  # said once
        except BadInputError as error:
            if last is None:
                raise
            note = f"{last.note}\n" if last.note else ""
            return last.replace(note=f"{note}cannot restart it: {error}")
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


def _is_curable(spec: JobSpec, outcome: Outcome) -> bool:
    # In the first attempt an unfit node is the user's mistake; later it is a node that was lost.
    unfit = outcome.exit_code == UNFIT and spec.attempt > 0 and bool(outcome.hosts)
    return not outcome.interrupted and (outcome.cause in CURABLE or unfit)


def _is_last(spec: JobSpec, budget: RestartBudget) -> Callable[[Outcome], bool]:
    """Tells whether `_next_attempt` will find that an attempt was the last one."""
    return lambda outcome: not (_is_curable(spec, outcome) and budget.is_left(time.monotonic()))


def _next_attempt(spec: JobSpec, outcome: Outcome, budget: RestartBudget) -> JobSpec | None:
    """The job of the next attempt; None: there is none."""
    if not _is_curable(spec, outcome) or not budget.spend(time.monotonic()):
        return None
    avoid = (*spec.avoid, *(host for host in outcome.hosts if host not in spec.avoid))
    return spec.replace(attempt=spec.attempt + 1, avoid=avoid)
