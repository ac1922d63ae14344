"""Carries out what the scheduler decides: experiments start when their slots are free, and are started again, elsewhere
if there is another place, when it was not their fault.

Everything is an event of the loop: the next experiment starts in the same turn in which one has ended.
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
"""How often an experiment is started at most, where the infrastructure fails it; and a host tried, where none works."""

BACK_OFF = 15.0
"""Seconds for which a host that has failed gets no experiments; doubled each time, up to `LONGEST_BACK_OFF`."""

LONGEST_BACK_OFF = 600.0

_FILES = 2
"""Descriptors that an experiment takes as long as it runs."""


class Job(Value):
    """What is to run: a name that no other has, and the slots that it needs. ``seconds``: predicted, if it is known."""

    name: str
    shape: Shape
    seconds: float | None = None


class Client(Protocol):
    """Who knows what an experiment is; the executor asks and tells it."""

    def order(self, name: str, reservation: SlotReservation, place: int) -> Order:
        """What to start; ``place`` is a low number that no other running experiment has, another at each attempt."""

    def judge(self, name: str, end: End) -> TrialResult:
        """What a run's end means."""

    def settling(self, reservation: SlotReservation, end: End) -> float:
        """Seconds until nothing of the experiment can be left on other nodes; 0.0 where nothing is."""

    def started(self, name: str, reservation: SlotReservation) -> None:
        """An experiment runs."""

    def ended(self, name: str, ending: TrialResult, *, again: bool) -> None:
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
        on_room: called when slots have become free without an end of an experiment: a host is back, or nothing can be
            left of one that was lost.

    Attributes:
        stopping: nothing is started any more.
        hopeless: why nothing can be run, as ``bireme run`` has it; "" as long as there is hope. No experiment has
            ever run to its end, and without the hosts that have failed `ATTEMPTS` times none could.
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
        """Whether nothing runs."""
        return not self._running

    @property
    def waiting(self) -> bool:
        """Whether something is queued."""
        return len(self._attempts) > len(self._running)

    @property
    def ahead(self) -> bool:
        """Whether something is queued for the first time. What is to be retried may wait for a certain host."""
        return any(attempt.number == 1 for key, attempt in self._attempts.items() if key not in self._running)

    def rest(self, name: str) -> float:
        """Seconds until a host is back, where this one is queued and those that are left cannot carry it; else 0.0."""
        stuck = any(self._attempts[key].job.name == name for key in self._scheduler.stuck)
        if not (stuck and self._resting):
            return 0.0
        return max(0.0, min(timer.due for timer in self._resting.values()) - time.monotonic())

    def submit(self, job: Job) -> None:
        """Queue an experiment; `start_ready` starts it."""
        self._queue(_Attempt(job, 1, frozenset()))

    def _queue(self, attempt: _Attempt) -> None:
        self._attempts[attempt.key] = attempt
        self._scheduler.submit(attempt.task(), time.monotonic())

    def withdraw(self) -> tuple[str, ...]:
        """Take back whatever is queued for the first time; return the names.

        What is to be retried stays, unless nothing is started any more.
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

    def close(self) -> None:
        """Leave the limits of this process as they were found; nothing runs any more."""
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
        """Often 1024 files may be open: too few for some hundred experiments side by side."""
        before = open_files.allow_files(_FILES * (len(self._running) + 1))
        self._limits = self._limits or before

    def _ended(self, attempt: _Attempt, reservation: SlotReservation, end: End) -> None:
        del self._running[attempt.key], self._places[attempt.key], self._attempts[attempt.key]
        settling = self._client.settling(reservation, end)
        if settling:
            self._loop.after(settling, lambda: self._settled(attempt.key))
        else:
            self._scheduler.ended(attempt.key, time.monotonic())
        ending = self._client.judge(attempt.job.name, end)
        again = False
        if ending.cause == "infrastructure":
            again = self._failed_by_infrastructure(attempt, ending, end.exit_code, settling)
        elif ending.counts:
            self._ran_to_its_end(reservation)
        self._client.ended(attempt.job.name, ending, again=again)
        self.start_ready()

    def _settled(self, key: str) -> None:
        self._scheduler.ended(key, time.monotonic())
        self._more_room()

    def _more_room(self) -> None:
        self.start_ready()
        self._on_room()

    # -- what fails through no fault of its own ------------------------------------------------------

    def _failed_by_infrastructure(self, attempt: _Attempt, ending: TrialResult, code: int, settling: float) -> bool:
        """Queue it again, elsewhere if others can carry it; return whether."""
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
        """Whether nothing has ever run, nor will.

        A node that is lost in mid-run may have been brought down by its configuration: there is hope for the next one.
        """
        if self._worked or code != UNFIT:
            return False
        dead = [host for host, failures in self._failures.items() if failures >= ATTEMPTS]
        return bool(self._scheduler.impossible(shape, without=dead))

    def _ran_to_its_end(self, reservation: SlotReservation) -> None:
        """Its hosts are sound, whatever has been there before."""
        self._worked = True
        for host, _ in reservation.places:
            self._failures.pop(host, None)

    def _suspect(self, host: str, settling: float) -> None:
        """Give a host that has failed a rest, until nothing is left there of what it ran."""
        try:
            self._scheduler.lost(host, time.monotonic())
        except KeyError:  # not of the pool: known under another name here
            return
        resting = self._resting.get(host)
        # What fails while it rests was started before: several that are lost with their node are one failure.
        failures = self._failures[host] = max(1, self._failures.get(host, 0) + (resting is None))
        wait = max(settling, min(self._back_off * 2 ** (failures - 1), LONGEST_BACK_OFF))
        if resting is not None:
            wait = max(wait, resting.due - time.monotonic())
            resting.cancel()
        self._resting[host] = self._loop.after(wait, lambda: self._forgive(host))

    def _forgive(self, host: str) -> None:
        del self._resting[host]
        self._scheduler.back(host, time.monotonic())
        self._more_room()
