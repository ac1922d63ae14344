"""Decides which experiment is tried again, and for how long a host that failed gets none. Pure: seconds in.

Only an experiment that the infrastructure failed is tried again, on other hosts if there are any: that says nothing
about its configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from bireme.errors import UNFIT
from bireme.tune.execution.slot_scheduler import Shape, Task
from bireme.tune.study.trial import TrialResult
from bireme.value import Value

ATTEMPTS = 4
"""How often an experiment is started, at most, if the infrastructure fails it; also how often a host may fail, while no
experiment has run to its end, before it counts as dead."""

BACK_OFF = 15.0
"""Seconds for which a failed host gets no experiments; doubled at each failure, up to `LONGEST_BACK_OFF`."""

LONGEST_BACK_OFF = 600.0


class Attempt(Value):
    """One attempt of an experiment. ``avoid``: the hosts that failed earlier attempts."""

    experiment: Task
    number: int = 1
    avoid: frozenset[str] = frozenset()

    @property
    def task(self) -> Task:
        """What the scheduler gets. Its key is the attempt's own, because an earlier attempt may still hold slots."""
        return self.experiment.replace(key=f"{self.experiment.key}#{self.number}", avoid=self.avoid)


class Retries:
    """The failures so far, and what follows from them.

    Args:
        impossible: why the pool could never carry a shape without these hosts; "" if it could.
        back_off: seconds, see `BACK_OFF`.

    Attributes:
        cannot_run: why nothing can run, in the words of ``bireme run``; "" otherwise. Set when no experiment has ever
            run to its end and the hosts that have not failed `ATTEMPTS` times could not carry one.
    """

    def __init__(self, impossible: Callable[[Shape, Collection[str]], str], back_off: float = BACK_OFF) -> None:
        self._impossible, self._back_off = impossible, back_off
        self._failures: dict[str, int] = {}  # of hosts, since something ran to its end there
        self._rests_until: dict[str, float] = {}
        self._worked = False
        self.cannot_run = ""

    def rest(self, host: str, now: float, *, at_least: float = 0.0) -> float:
        """Record that a host failed an experiment.

        Args:
            now: seconds of a monotonic clock.
            at_least: seconds until nothing of the experiment is left on the host.

        Returns:
            The seconds from now for which the host gets no experiments.
        """
        # An experiment that fails while its host rests was started before: those lost with one node are one failure.
        rests_until = self._rests_until.get(host, now)
        failures = self._failures[host] = max(1, self._failures.get(host, 0) + (rests_until <= now))
        back_off = min(self._back_off * 2 ** (failures - 1), LONGEST_BACK_OFF)
        self._rests_until[host] = max(rests_until, now + max(at_least, back_off))
        return self._rests_until[host] - now

    def ran_to_its_end(self, hosts: Collection[str]) -> None:
        """Record that an experiment ran to its end on these hosts: they work, and their failures are forgotten."""
        self._worked = True
        for host in hosts:
            self._failures.pop(host, None)

    def next_attempt(self, attempt: Attempt, result: TrialResult, exit_code: int) -> Attempt | None:
        """The next attempt after one that has ended; None: it has succeeded, failed by itself, or is given up.

        Args:
            attempt: the attempt that has ended; the failures of its hosts are recorded already.
            exit_code: of its ``bireme run``.
        """
        if result.cause != "infrastructure":
            return None
        # Losing a node in mid-run is no proof: the configuration may have brought it down, and the next may run.
        if not self._worked and exit_code == UNFIT:
            dead = [host for host, failures in self._failures.items() if failures >= ATTEMPTS]
            if self._impossible(attempt.experiment.shape, dead):
                self.cannot_run = result.reason
        if self.cannot_run or attempt.number >= ATTEMPTS:
            return None
        return attempt.replace(number=attempt.number + 1, avoid=attempt.avoid | set(result.hosts))
