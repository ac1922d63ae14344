"""``--restarts``: decides after which failures a job is restarted, and how often; its script has checkpoints."""

from __future__ import annotations

import time

from bireme.errors import PREEMPTED, UNFIT, BadInputError
from bireme.result.outcome import signal_name
from bireme.result.report import headline
from bireme.runner.session import limit_note
from bireme.runner.signals import DeferredSignals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from bireme.job import JobSpec
    from bireme.result.outcome import Outcome

CURABLE = ("rank failed", "agent lost", "hang")
"""Causes after which another attempt may succeed. A signal or a time limit ends the job for good."""


class RestartBudget:
    """Counts restarts; after a time without a failure, all of them are available again."""

    def __init__(self, most: int, window: float) -> None:
        self.most, self._window = most, window
        self.used = 0
        self._healthy_since: float | None = None

    def begin(self, now: float) -> None:
        """Note that the job runs from now on; does nothing if it has run since its last failure."""
        if self._healthy_since is None:
            self._healthy_since = now

    def is_left(self, now: float) -> bool:
        """Whether `spend` would find one."""
        return self.most > (0 if self._is_forgiven(now) else self.used)

    def spend(self, now: float) -> bool:
        """Use up a restart after a failure; return whether one was left."""
        left = self.is_left(now)
        if self._is_forgiven(now):
            self.used = 0
        self._healthy_since = None
        self.used += left
        return left

    def _is_forgiven(self, now: float) -> bool:
        return self._healthy_since is not None and now - self._healthy_since >= self._window


def run(
    spec: JobSpec,
    attempt: Callable[[JobSpec, Callable[[Outcome], bool]], Outcome],
    on_restart: Callable[[Outcome, JobSpec], object],
) -> Outcome:
    """Run the job, restart it up to ``spec.restarts`` times, and return the outcome of the last attempt.

    Restarts are forgiven after ``spec.restart_window`` seconds without a failure. The next attempt avoids nodes that
    were lost or unfit where the pool has others. The time limit covers all attempts together. A signal between
    two attempts ends the job as well.

    Args:
        attempt: runs an attempt of the job; its second argument tells whether an outcome is the last.
        on_restart: called before each restart, with the outcome of the attempt and the job of the next one.
    """
    with DeferredSignals() as between:
        return _run(spec, attempt, on_restart, between)


def _run(
    spec: JobSpec,
    attempt: Callable[[JobSpec, Callable[[Outcome], bool]], Outcome],
    on_restart: Callable[[Outcome, JobSpec], object],
    between: DeferredSignals,
) -> Outcome:
    begin, limit = time.monotonic(), spec.time_limit
    budget = RestartBudget(spec.restarts, spec.restart_window)
    last: Outcome | None = None
    while True:
        budget.begin(time.monotonic())
        try:
            outcome = attempt(spec, _is_last(spec, budget))
        except BadInputError as error:
            if last is None:
                raise
            note = f"{last.note}\n" if last.note else ""
            return last.replace(note=f"{note}cannot restart it: {error}")
        outcome = last = outcome.replace(interrupted=outcome.interrupted or between.signum)
        if outcome.interrupted and outcome.cause in CURABLE and budget.is_left(time.monotonic()):
            outcome = preempted(spec, outcome, outcome.interrupted) or outcome
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


def preempted(spec: JobSpec, outcome: Outcome, signum: int) -> Outcome | None:
    """The outcome of a job that would go on after this one, had a preemption not come; None: the signal was another."""
    if not spec.checkpoint_signal or signum != spec.preemption[0]:
        return None
    note = f"preempted: {signal_name(signum)}, when an attempt had failed: {headline(outcome)}"
    return outcome.replace(cause="preempted", exit_code=PREEMPTED, first=None, note=note)


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
