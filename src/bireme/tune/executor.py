"""Starts the experiments that the scheduler chose, and decides when one is retried or given up, and when a host rests.

An experiment that the infrastructure failed is started again, on other hosts if there are any. Everything happens in
events of the loop: the next experiment starts in the same turn in which one has ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from bireme.errors import UNFIT
from bireme.loop import Loop, Timer
from bireme.process import open_files
from bireme.tune.experiment import End, Experiment, Order
from bireme.tune.scheduler import Scheduler, StartTask, Task
from bireme.tune.slots import Shape, SlotReservation
from bireme.tune.trial_result import TrialResult
from bireme.value import Value

ATTEMPTS = 4
"""How often an experiment is started at most when the infrastructure fails it; also how often a host may fail before
it counts as dead while nothing has worked yet."""

BACK_OFF = 15.0
"""Seconds for which a failed host gets no experiments; doubled at each failure, up to `LONGEST_BACK_OFF`."""

LONGEST_BACK_OFF = 600.0

_FILES = 2
"""File descriptors that a running experiment needs."""


class Job(Value):
    """An experiment to run: a unique name and the slots that it needs. ``seconds``: predicted, None if unknown."""

    name: str
    shape: Shape
    seconds: float | None = None


class Client(Protocol):
    """The executor's caller, which knows what an experiment is."""

    def order(self, name: str, reservation: SlotReservation, place: int) -> Order:
        """Return what to start.

        Args:
            name: the experiment's name.
            reservation: its slots.
            place: a low number that no other running experiment has, another one at each attempt.
        """

    def judge(self, name: str, end: End) -> TrialResult:
        """The result of a run that has ended."""

    def settling(self, reservation: SlotReservation, end: End) -> float:
        """Seconds until the experiment has certainly left nothing on other nodes; 0.0 if nothing is left now."""

    def started(self, name: str, reservation: SlotReservation) -> None:
        """Called when an experiment has started."""

    def ended(self, name: str, ending: TrialResult, *, again: bool) -> None:
        """Called when an experiment has ended.

        Args:
            name: its name.
            ending: its result.
            again: whether it was queued for another attempt.
        """


class _Attempt(Value):
    """A queued or running attempt. Each has its own key, because an earlier attempt may still hold slots."""

    job: Job
    number: int
    avoid: frozenset[str]

    @property
    def key(self) -> str:
        return f"{self.job.name}#{self.number}"

    def task(self) -> Task:
        return Task(self.key, self.job.shape, self.job.seconds, self.avoid)


class Executor:
    """Runs queued experiments on one event loop.

    Args:
        loop: the event loop.
        scheduler: decides which experiment starts when and where.
        client: knows what an experiment is.
        keep: file descriptors that the guardians hold as long as any process of an experiment lives.
        back_off: seconds, see `BACK_OFF`.
        on_room: called when slots become free other than by the end of an experiment: a host is back, or a lost
            experiment has certainly left nothing.

    Attributes:
        stopping: whether no more experiments are started.
        hopeless: why nothing can run, in the words of ``bireme run``; "" otherwise. Set when no experiment has ever run
            to its end and the hosts that have not failed `ATTEMPTS` times could not carry one.
    """

    def __init__(
        self,
        loop: Loop,
        scheduler: Scheduler,
        client: Client,
        *,
        keep: Sequence[int] = (),
        back_off: float = BACK_OFF,
        on_room: Callable[[], object] = lambda: None,
    ) -> None:
        self._loop, self._scheduler, self._client = loop, scheduler, client
        self._keep, self._back_off, self._on_room = keep, back_off, on_room
        self._attempts: dict[str, _Attempt] = {}  # queued and running, by key
        self._running: dict[str, Experiment] = {}
        self._places: dict[str, int] = {}
        self._failures: dict[str, int] = {}  # of hosts, since something ran to its end there
        self._resting: dict[str, Timer] = {}
        self._worked = False
        self._limits: tuple[int, int] | None = None
        self.stopping = False
        self.hopeless = ""

    @property
    def idle(self) -> bool:
        """Whether no experiment is running."""
        return not self._running

    @property
    def waiting(self) -> bool:
        """Whether an experiment is queued."""
        return len(self._attempts) > len(self._running)

    @property
    def ahead(self) -> bool:
        """Whether an experiment is queued for its first attempt. (A retry may be waiting for a particular host.)"""
        return any(attempt.number == 1 for key, attempt in self._attempts.items() if key not in self._running)

    def rest(self, name: str) -> float:
        """Seconds until a host is back, if this experiment waits for lack of hosts; else 0.0."""
        stuck = any(self._attempts[key].job.name == name for key in self._scheduler.stuck)
        if not (stuck and self._resting):
            return 0.0
        return max(0.0, min(timer.due for timer in self._resting.values()) - time.monotonic())

    def submit(self, job: Job) -> None:
        """Queue an experiment; `start_ready` starts it."""
        self._queue(_Attempt(job, 1, frozenset()))

    def _queue(self, attempt: _Attempt) -> None:
        self._attempts[attempt.key] = attempt
        self._scheduler.submit(attempt.task())

    def withdraw(self) -> tuple[str, ...]:
        """Remove the experiments that are queued for their first attempt; return their names.

        Retries stay queued, unless the executor is stopping.
        """
        queued = {
            key: attempt.job.name
            for key, attempt in self._attempts.items()
            if key not in self._running and (attempt.number == 1 or self.stopping)
        }
        for key in queued:
            self._scheduler.withdraw(key)
            del self._attempts[key]
        return tuple(queued.values())

    def start_ready(self) -> int:
        """Start every experiment that can start now; return how many."""
        if self.stopping:
            return 0
        starts = self._scheduler.decide(time.monotonic())
        for start in starts:
            self._start(start)
        return len(starts)

    def stop(self) -> None:
        """End all experiments with SIGTERM and the grace time, and start no more."""
        self.stopping = True
        self._each(Experiment.stop)

    def kill(self) -> None:
        """Kill all experiments at once, and start no more."""
        self.stopping = True
        self._each(Experiment.kill)

    def signal(self, signum: int) -> None:
        """Pass SIGTSTP or SIGCONT on to all experiments."""
        self._each(lambda experiment: experiment.signal(signum))

    def close(self) -> None:
        """Restore this process's limits of open files. Nothing may be running any more."""
        open_files.give_back(self._limits)

    def _each(self, do: Callable[[Experiment], None]) -> None:
        for experiment in list(self._running.values()):
            do(experiment)

    # -- one experiment ------------------------------------------------------------------------------

    def _start(self, start: StartTask) -> None:
        attempt, reservation = self._attempts[start.task.key], start.reservation
        taken, first = set(self._places.values()), attempt.number - 1  # another port than the one that was taken
        place = next(number for number in range(first, first + len(taken) + 1) if number not in taken)
        order = self._client.order(attempt.job.name, reservation, place)
        self._allow_files()
        self._running[attempt.key] = Experiment(
            self._loop, order, lambda end: self._ended(attempt, reservation, end), self._keep, self._limits
        )
        self._places[attempt.key] = place
        self._client.started(attempt.job.name, reservation)

    def _allow_files(self) -> None:
        """Raise the limit of open files: the usual 1024 are too few for several hundred experiments at once."""
        before = open_files.allow_files(_FILES * (len(self._running) + 1))
        self._limits = self._limits or before

    def _ended(self, attempt: _Attempt, reservation: SlotReservation, end: End) -> None:
        del self._running[attempt.key], self._places[attempt.key], self._attempts[attempt.key]
        settling = self._client.settling(reservation, end)
        if settling:
            self._loop.after(settling, lambda: self._settled(attempt.key))
        else:
            self._scheduler.ended(attempt.key)
        ending = self._client.judge(attempt.job.name, end)
        again = False
        if ending.cause == "infrastructure":
            again = self._failed_by_infrastructure(attempt, ending, end.exit_code, settling)
        elif ending.counts:
            self._ran_to_its_end(reservation)
        self._client.ended(attempt.job.name, ending, again=again)
        self.start_ready()

    def _settled(self, key: str) -> None:
        self._scheduler.ended(key)
        self._more_room()

    def _more_room(self) -> None:
        self.start_ready()
        self._on_room()

    # -- failures of the infrastructure ---------------------------------------------------------------

    def _failed_by_infrastructure(self, attempt: _Attempt, ending: TrialResult, code: int, settling: float) -> bool:
        """Queue the experiment again, on other hosts if they can carry it. Returns whether it was queued."""
        for host in ending.hosts:
            self._suspect(host, settling)
        if self.stopping:
            return False
        if self._cannot_begin(attempt.job.shape, code):
            self.hopeless = ending.reason
        if self.hopeless or attempt.number >= ATTEMPTS:
            return False
        self._queue(_Attempt(attempt.job, attempt.number + 1, attempt.avoid | set(ending.hosts)))
        return True

    def _cannot_begin(self, shape: Shape, code: int) -> bool:
        """Whether nothing has ever run to its end, and nothing can.

        Losing a node in mid-run does not count: the configuration may have brought it down, and the next may run.
        """
        if self._worked or code != UNFIT:
            return False
        dead = [host for host, failures in self._failures.items() if failures >= ATTEMPTS]
        return bool(self._scheduler.impossible(shape, without=dead))

    def _ran_to_its_end(self, reservation: SlotReservation) -> None:
        """Forget the failures of its hosts: they work."""
        self._worked = True
        for host, _ in reservation.places:
            self._failures.pop(host, None)

    def _suspect(self, host: str, settling: float) -> None:
        """Take a failed host out of use until it has had its rest and nothing of its experiments is left there."""
        try:
            self._scheduler.lost(host)
        except KeyError:  # not in the pool: known here by another name
            return
        resting = self._resting.get(host)
        # An experiment that fails while its host rests was started before: those lost with one node are one failure.
        failures = self._failures[host] = max(1, self._failures.get(host, 0) + (resting is None))
        wait = max(settling, min(self._back_off * 2 ** (failures - 1), LONGEST_BACK_OFF))
        if resting is not None:
            wait = max(wait, resting.due - time.monotonic())
            resting.cancel()
        self._resting[host] = self._loop.after(wait, lambda: self._forgive(host))

    def _forgive(self, host: str) -> None:
        del self._resting[host]
        self._scheduler.back(host)
        self._more_room()
