"""Carries out what the scheduler decides: experiments start when their slots are free, and are started again elsewhere
when it was not their fault.

Everything is an event of the loop: the next experiment starts in the same turn in which one has ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from bireme.loop import Loop
from bireme.tune.ending import Ending
from bireme.tune.experiment import End, Experiment, Order
from bireme.tune.scheduler import Scheduler, Start, Task
from bireme.tune.slots import Reservation, Shape
from bireme.value import Value

ATTEMPTS = 4
"""How often an experiment is started at most, where the infrastructure fails it."""

BACK_OFF = 15.0
"""Seconds for which a host that has failed gets no experiments; doubled each time, up to `LONGEST_BACK_OFF`."""

LONGEST_BACK_OFF = 600.0


class Job(Value):
    """What is to run: a name that no other has, and the slots that it needs. ``seconds``: predicted, if it is known."""

    name: str
    shape: Shape
    seconds: float | None = None


class Client(Protocol):
    """Who knows what an experiment is; the executor asks and tells it."""

    def order(self, name: str, reservation: Reservation, place: int) -> Order:
        """What to start; ``place`` is a low number that no other running experiment has, another at each attempt."""

    def judge(self, name: str, end: End) -> Ending:
        """What a run's end means."""

    def settling(self, reservation: Reservation, end: End) -> float:
        """Seconds until nothing of the experiment can be left on other nodes; 0.0 where nothing is."""

    def started(self, name: str, reservation: Reservation) -> None:
        """An experiment runs."""

    def ended(self, name: str, ending: Ending, *, again: bool) -> None:
        """An experiment has ended; ``again``: it is queued once more."""


class _Attempt(Value):
    """An experiment in the queue or running; each attempt has a key of its own, since the one before may hold slots."""

    job: Job
    number: int
    avoid: frozenset[str]

    @property
    def key(self) -> str:
        return f"{self.job.name}#{self.number}"

    def task(self) -> Task:
        return Task(self.key, self.job.shape, self.job.seconds, self.avoid)


class Executor:
    """Scheduler and experiments on one loop.

    Args:
        loop: the event loop.
        scheduler: who decides.
        client: who knows what an experiment is.
        keep: descriptors that the guardians hold as long as anything of an experiment lives.
        back_off: see `BACK_OFF`.
    """

    def __init__(
        self,
        loop: Loop,
        scheduler: Scheduler,
        client: Client,
        *,
        keep: Sequence[int] = (),
        back_off: float = BACK_OFF,
    ) -> None:
        self._loop, self._scheduler, self._client = loop, scheduler, client
        self._keep, self._back_off = keep, back_off
        self._attempts: dict[str, _Attempt] = {}  # queued and running, by key
        self._running: dict[str, Experiment] = {}
        self._places: dict[str, int] = {}
        self._failures: dict[str, int] = {}
        self.stopping = False

    @property
    def idle(self) -> bool:
        """Whether nothing runs."""
        return not self._running

    @property
    def waiting(self) -> bool:
        """Whether something is queued."""
        return len(self._attempts) > len(self._running)

    def submit(self, job: Job) -> None:
        """Queue an experiment; `start_ready` starts it."""
        self._queue(_Attempt(job, 1, frozenset()))

    def _queue(self, attempt: _Attempt) -> None:
        self._attempts[attempt.key] = attempt
        self._scheduler.submit(attempt.task(), time.monotonic())

    def withdraw(self) -> tuple[str, ...]:
        """Take back whatever is queued for the first time; return the names. What is to be retried stays."""
        queued = {
            key: attempt.job.name
            for key, attempt in self._attempts.items()
            if key not in self._running and attempt.number == 1
        }
        for key in queued:
            self._scheduler.withdraw(key)
            del self._attempts[key]
        return tuple(queued.values())

    def start_ready(self) -> int:
        """Start whatever can be started now; return how many were."""
        if self.stopping:
            return 0
        starts = self._scheduler.decide(time.monotonic())
        for start in starts:
            self._start(start)
        return len(starts)

    def stop(self) -> None:
        """End all experiments in order, and start no more."""
        self.stopping = True
        self._each(Experiment.stop)

    def kill(self) -> None:
        """End all experiments at once."""
        self.stopping = True
        self._each(Experiment.kill)

    def signal(self, signum: int) -> None:
        """Pass SIGTSTP or SIGCONT on to all experiments."""
        self._each(lambda experiment: experiment.signal(signum))

    def _each(self, do: Callable[[Experiment], None]) -> None:
        for experiment in list(self._running.values()):
            do(experiment)

    # -- one experiment ------------------------------------------------------------------------------

    def _start(self, start: Start) -> None:
        attempt, reservation = self._attempts[start.task.key], start.reservation
        taken, first = set(self._places.values()), attempt.number - 1  # another port than the one that was taken
        place = next(number for number in range(first, first + len(taken) + 1) if number not in taken)
        order = self._client.order(attempt.job.name, reservation, place)
        self._running[attempt.key] = Experiment(
            self._loop, order, lambda end: self._ended(attempt, reservation, end), self._keep
        )
        self._places[attempt.key] = place
        self._client.started(attempt.job.name, reservation)

    def _ended(self, attempt: _Attempt, reservation: Reservation, end: End) -> None:
        del self._running[attempt.key], self._places[attempt.key], self._attempts[attempt.key]
        settling = self._client.settling(reservation, end)
        if settling:
            self._loop.after(settling, lambda: self._settled(attempt.key))
        else:
            self._scheduler.ended(attempt.key, time.monotonic())
        ending = self._client.judge(attempt.job.name, end)
        again = self._failed_by_infrastructure(attempt, ending) if ending.cause == "infrastructure" else False
        self._client.ended(attempt.job.name, ending, again=again)
        self.start_ready()

    def _settled(self, key: str) -> None:
        self._scheduler.ended(key, time.monotonic())
        self.start_ready()

    # -- what fails through no fault of its own ------------------------------------------------------

    def _failed_by_infrastructure(self, attempt: _Attempt, ending: Ending) -> bool:
        """Queue it again, elsewhere; return whether."""
        for host in ending.hosts:
            self._suspect(host)
        if self.stopping or attempt.number >= ATTEMPTS:
            return False
        self._queue(_Attempt(attempt.job, attempt.number + 1, attempt.avoid | set(ending.hosts)))
        return True

    def _suspect(self, host: str) -> None:
        """Give a host that has failed a rest."""
        try:
            self._scheduler.lost(host, time.monotonic())
        except KeyError:  # not of the pool: known under another name here
            return
        failures = self._failures[host] = self._failures.get(host, 0) + 1
        wait = min(self._back_off * 2 ** (failures - 1), LONGEST_BACK_OFF)
        self._loop.after(wait, lambda: self._forgive(host, failures))

    def _forgive(self, host: str, failures: int) -> None:
        if self._failures[host] == failures:  # else a later failure has begun a longer rest
            self._scheduler.back(host, time.monotonic())
            self.start_ready()
