"""Starts the experiments that the scheduler chose, and tells its client when they end.

Everything happens in events of the loop: the next experiment starts in the same turn in which one has ended.

Which experiment is tried again, and for how long a host that failed gets none, is decided by `retries`.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from bireme.loop import Loop, Timer
from bireme.process import kernel
from bireme.tune.execution.experiment import End, Experiment, LaunchRequest
from bireme.tune.execution.retries import BACK_OFF, Attempt, Retries
from bireme.tune.execution.slot_scheduler import Scheduler, SlotReservation, StartTask, Task
from bireme.tune.study.trial import TrialResult

_FILES = 2
"""File descriptors that a running experiment needs."""


class Client(Protocol):
    """The executor's caller: knows what to start, what an end means, and what follows."""

    def launch_request(self, name: str, reservation: SlotReservation, place: int) -> LaunchRequest:
        """What to start; ``place``: a low number that no other running experiment has, another one at each attempt."""

    def judge(self, name: str, end: End) -> TrialResult:
        """The result of a run that has ended."""

    def settling(self, reservation: SlotReservation, end: End) -> float:
        """Seconds until the experiment has certainly left nothing on other nodes; 0.0 if nothing is left now."""

    def started(self, name: str, reservation: SlotReservation) -> None:
        """An experiment has started."""

    def ended(self, name: str, result: TrialResult, *, again: bool) -> None:
        """An experiment has ended; ``again``: it was queued for another attempt."""


class Executor:
    """Runs queued experiments on one event loop.

    Args:
        keep: file descriptors that the guardians hold as long as any process of an experiment lives.
        back_off: seconds, see `BACK_OFF`.
        on_room: called when slots become free other than by the end of an experiment: a host is back, or a lost
            experiment has certainly left nothing.

    Attributes:
        stopping: whether no more experiments are started.
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
        self._keep, self._on_room = keep, on_room
        self._retries = Retries(lambda shape, without: scheduler.impossible(shape, without=without), back_off)
        self._attempts: dict[str, Attempt] = {}  # queued and running, by key
        self._running: dict[str, Experiment] = {}
        self._places: dict[str, int] = {}
        self._resting: dict[str, Timer] = {}
        self._limits: tuple[int, int] | None = None
        self.stopping = False

    @property
    def cannot_run(self) -> str:
        """Why nothing can run, in the words of ``bireme run``; "" if something may."""
        return self._retries.cannot_run

    @property
    def idle(self) -> bool:
        """Whether no experiment is running; one whose end could not be read, for lack of memory, is not."""
        return not any(experiment.alive for experiment in self._running.values())

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
        stuck = any(self._attempts[key].experiment.key == name for key in self._scheduler.stuck)
        if not (stuck and self._resting):
            return 0.0
        return max(0.0, min(timer.due for timer in self._resting.values()) - time.monotonic())

    def submit(self, experiment: Task) -> None:
        """Queue an experiment, whose key is its name; `start_ready` starts it."""
        self._queue(Attempt(experiment))

    def _queue(self, attempt: Attempt) -> None:
        task = attempt.task
        self._attempts[task.key] = attempt
        self._scheduler.submit(task)

    def withdraw(self) -> tuple[str, ...]:
        """Remove the experiments that are queued for their first attempt; return their names.

        Retries stay queued, unless the executor is stopping.
        """
        queued = {
            key: attempt.experiment.key
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
        starts = self._scheduler.decide()
        for start in starts:
            self._start(start)
        return len(starts)

    def stop(self, signum: int = signal.SIGTERM) -> float:
        """End all experiments gracefully, and start no more; return how many seconds they have for that.

        Ctrl+C (SIGINT) reaches the ranks as such, any other signal as SIGTERM. Python code that is interrupted tidies
        up: a rank that compiles an extension removes PyTorch's lock.
        """
        self.stopping = True
        passed = signal.SIGINT if signum == signal.SIGINT else signal.SIGTERM
        self._each(lambda experiment: experiment.stop(passed))
        return max((experiment.grace for experiment in self._running.values()), default=0.0)

    def kill(self) -> None:
        """Kill all experiments at once, and start no more."""
        self.stopping = True
        self._each(Experiment.kill)

    def signal(self, signum: int) -> None:
        """Pass SIGTSTP or SIGCONT on to all experiments."""
        self._each(lambda experiment: experiment.signal(signum))

    def close(self) -> None:
        """Restore this process's limits of open files. Nothing may be running any more."""
        kernel.give_back(self._limits)

    def _each(self, do: Callable[[Experiment], None]) -> None:
        for experiment in list(self._running.values()):
            do(experiment)

    # -- one experiment ------------------------------------------------------------------------------

    def _start(self, start: StartTask) -> None:
        key, reservation = start.task.key, start.reservation
        attempt = self._attempts[key]
        taken, first = set(self._places.values()), attempt.number - 1  # another port than the one that was taken
        place = next(number for number in range(first, first + len(taken) + 1) if number not in taken)
        request = self._client.launch_request(attempt.experiment.key, reservation, place)
        self._allow_files()
        self._running[key] = Experiment(
            self._loop, request, lambda end: self._ended(key, reservation, end), self._keep, self._limits
        )
        self._places[key] = place
        self._client.started(attempt.experiment.key, reservation)

    def _allow_files(self) -> None:
        """Raise the limit of open files: the usual 1024 are too few for several hundred experiments at once."""
        before = kernel.allow_files(_FILES * (len(self._running) + 1))
        self._limits = self._limits or before

    def _ended(self, key: str, reservation: SlotReservation, end: End) -> None:
        del self._running[key], self._places[key]
        attempt = self._attempts.pop(key)
        name = attempt.experiment.key
        settling = self._client.settling(reservation, end)
        if settling:
            self._loop.after(settling, lambda: self._settled(key))
        else:
            self._scheduler.ended(key)
        result = self._client.judge(name, end)
        if result.cause == "infrastructure":
            for host in result.hosts:
                self._rest(host, settling)
        elif result.counts:
            self._retries.ran_to_its_end([host for host, _ in reservation.places])
        following = None if self.stopping else self._retries.next_attempt(attempt, result, end.exit_code)
        if following is not None:
            self._queue(following)
        self._client.ended(name, result, again=following is not None)
        self.start_ready()

    def _settled(self, key: str) -> None:
        self._scheduler.ended(key)
        self._more_room()

    def _more_room(self) -> None:
        self.start_ready()
        self._on_room()

    # -- hosts that failed ---------------------------------------------------------------------------

    def _rest(self, host: str, settling: float) -> None:
        """Take a failed host out of use until it has had its rest and nothing of its experiments is left there."""
        try:
            self._scheduler.lost(host)
        except KeyError:  # not in the pool: known here by another name
            return
        if host in self._resting:
            self._resting[host].cancel()
        wait = self._retries.rest(host, time.monotonic(), at_least=settling)
        self._resting[host] = self._loop.after(wait, lambda: self._use_again(host))

    def _use_again(self, host: str) -> None:
        del self._resting[host]
        self._scheduler.back(host)
        self._more_room()
