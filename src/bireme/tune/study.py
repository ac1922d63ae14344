"""A study: asks what to try next, has it run, writes down what came of it, until there is nothing more to learn.

The journal is what makes it survive: an experiment whose end stands there is never run again, one without is. The
tuner may be killed between any two lines.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from bireme.errors import BiremeError, UnfitError
from bireme.logs.sink import is_gone
from bireme.loop import STOP_SIGNALS, Loop
from bireme.tune.executor import BACK_OFF, Executor, Job
from bireme.tune.experiment import End, Order
from bireme.tune.journal import Journal
from bireme.tune.scheduler import Scheduler
from bireme.tune.slots import SlotReservation
from bireme.tune.trial_result import TrialResult
from bireme.value import Value


class Adapter(Protocol):
    """What is tuned, and how an experiment of it is run and read."""

    @property
    def over(self) -> str:
        """Why nothing is left to try; "" while something is, or is pending."""

    def next(self) -> Job | None:
        """The next experiment, pending from now on; None: nothing to start now."""

    def order(self, name: str, reservation: SlotReservation, place: int) -> Order:
        """As `executor.Client.order`."""

    def judge(self, name: str, end: End) -> TrialResult:
        """As `executor.Client.judge`."""

    def settling(self, reservation: SlotReservation, end: End) -> float:
        """As `executor.Client.settling`."""

    def tell(self, name: str, ending: TrialResult) -> Mapping[str, object]:
        """A pending experiment has ended; return what the journal is to keep beside its ending."""

    def drop(self, name: str) -> None:
        """A pending one came to nothing, through no fault of its own."""

    def give_up(self, name: str) -> None:
        """The infrastructure has failed it too often: it is not tried any more for now."""


class Watcher(Protocol):
    """Who shows what happens. ``interval``: seconds between two calls of `tick`; 0.0: none after the first.

    An OSError of any of these ends the study, as its reader is gone.
    """

    interval: float

    def started(self, name: str, reservation: SlotReservation) -> None:
        """An experiment has started."""

    def ended(self, name: str, ending: TrialResult, *, again: float | None) -> None:
        """One has ended; ``again``: seconds after which it is started once more, None: it is not."""

    def note(self, text: str) -> None:
        """Something worth a line."""

    def tick(self) -> None:
        """Show it anew."""

    def close(self) -> None:
        """Leave the screen as it was found; the next call of any other takes it again. May be called twice."""


class Conclusion(Value):
    """How a study came to its end: by itself (``over`` says why), or by a signal (``signum``)."""

    over: str
    signum: int = 0


class Study:
    """One run of a study, to its end or to a signal.

    Args:
        adapter: what is tuned; told of the past already.
        scheduler: for the pool.
        journal: open.
        watcher: who shows it.
        keep: descriptors that the guardians hold as long as anything of an experiment lives.
        back_off: see `executor.BACK_OFF`.
    """

    def __init__(
        self,
        adapter: Adapter,
        scheduler: Scheduler,
        journal: Journal,
        watcher: Watcher,
        *,
        keep: Sequence[int] = (),
        back_off: float = BACK_OFF,
    ) -> None:
        self._adapter, self._journal, self._watcher = adapter, journal, watcher
        self._loop = Loop()
        self._executor = Executor(self._loop, scheduler, self, keep=keep, back_off=back_off, on_room=self._fill)
        self._signum = 0
        self._failed = False
        self._blind = False

    def run(self) -> Conclusion:
        """Run it. Must be called in the main thread (signals arrive there).

        Raises:
            BiremeError: the journal or a file cannot be written; what had ended by then is kept.
            UnfitError: no host can run anything.
        """
        self._loop.on_signals((*STOP_SIGNALS, signal.SIGTSTP, signal.SIGCONT), self._on_signal)
        try:
            try:
                self._fill()
                self._tick()
                if not self._at_rest:  # all may have ended in an earlier run
                    self._loop.run()
            except BaseException:
                self._wind_up()
                raise
        finally:
            self._show(lambda watcher: watcher.close())  # while a signal cannot end us before
            self._executor.close()
            self._loop.close()
        return Conclusion(self._adapter.over, self._signum or self._loop.late)

    def _fill(self) -> None:
        """Start whatever there is room for; end the loop when there is nothing left to wait for."""
        while not (self._executor.stopping or self._executor.ahead):
            job = self._adapter.next()
            if job is None:
                break
            self._executor.submit(job)
            self._executor.start_ready()
        if self._at_rest:
            self._loop.stop()

    @property
    def _at_rest(self) -> bool:
        """Whether there is nothing to wait for."""
        return self._executor.idle and (self._executor.stopping or not self._executor.waiting)

    def _wind_up(self) -> None:
        """After an error: end what still runs, and wait for it."""
        self._failed = True
        self._executor.stop()
        if not self._executor.idle:
            self._loop.run()

    def _tick(self) -> None:
        self._show(lambda watcher: watcher.tick())
        if self._watcher.interval:
            self._loop.after(self._watcher.interval, self._tick)

    def _show(self, do: Callable[[Watcher], None]) -> None:
        """Have the watcher show something. When nobody is there to see it any more, stop as after SIGPIPE."""
        if self._blind:
            return
        try:
            do(self._watcher)
        except OSError as error:
            self._blind = True
            if not is_gone(error):
                raise BiremeError(f"stdout cannot be written: {error.strerror}") from error
            self._loop.after(0.0, lambda: self._on_signal(signal.SIGPIPE))  # not amidst what is being told

    def _on_signal(self, signum: int) -> None:
        if signum == signal.SIGTSTP:
            self._executor.signal(signum)
            self._show(lambda watcher: watcher.close())
            self._loop.halt()
            self._executor.signal(signal.SIGCONT)
            self._show(lambda watcher: watcher.tick())
        elif signum == signal.SIGCONT:
            self._executor.signal(signum)
        elif not self._signum:
            self._signum = signum
            self._executor.stop()
            self._show(lambda watcher: watcher.note("stopping; what has ended is kept"))
            self._fill()
        elif signum in (signal.SIGINT, signal.SIGQUIT):
            self._executor.kill()

    # -- what the executor asks and tells ------------------------------------------------------------

    def order(self, name: str, reservation: SlotReservation, place: int) -> Order:
        """As `executor.Client.order`."""
        return self._adapter.order(name, reservation, place)

    def judge(self, name: str, end: End) -> TrialResult:
        """As `executor.Client.judge`."""
        return self._adapter.judge(name, end)

    def settling(self, reservation: SlotReservation, end: End) -> float:
        """As `executor.Client.settling`."""
        return self._adapter.settling(reservation, end)

    def started(self, name: str, reservation: SlotReservation) -> None:
        """As `executor.Client.started`."""
        self._journal.append({"start": name, "on": reservation.include()}, sync=False)
        self._show(lambda watcher: watcher.started(name, reservation))

    def ended(self, name: str, ending: TrialResult, *, again: bool) -> None:
        """As `executor.Client.ended`."""
        if self._failed:
            pass  # nothing can be written any more
        elif ending.counts:
            facts = self._adapter.tell(name, ending)
            self._journal.append({"end": name, "ending": ending.record(), **facts})
            for queued in self._executor.withdraw():
                self._adapter.drop(queued)  # it was chosen without knowing this end: choose again
        elif not again:
            (self._adapter.drop if self._executor.stopping else self._adapter.give_up)(name)
        wait = self._executor.rest(name) if again else None
        self._show(lambda watcher: watcher.ended(name, ending, again=wait))
        if self._executor.hopeless and not self._failed:
            raise UnfitError(
                f"no experiment can run: {self._executor.hopeless}",
                hint="once that is mended, the same command goes on",
            )
        self._fill()
