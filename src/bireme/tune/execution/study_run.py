"""A study: starts one experiment after another and records each result in the journal, until nothing is left to try.

The tuner may be killed at any moment: an experiment whose end is in the journal is not run again, any other is.
Also decides what signals do to a study, and what happens when nothing can run.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence

from bireme.errors import BiremeError, UnfitError
from bireme.logs.console import is_gone
from bireme.loop import STOP_SIGNALS, Loop
from bireme.tune.execution.adapter import Adapter
from bireme.tune.execution.executor import Executor
from bireme.tune.execution.retries import BACK_OFF
from bireme.tune.execution.slot_scheduler import Scheduler, SlotReservation
from bireme.tune.store.journal import Journal
from bireme.tune.study.trial import TrialResult
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bireme.tune.execution.experiment import LaunchRequest
    from bireme.tune.execution.template_places import TemplatePlaces


class Callback:
    """Shows the progress; this one shows nothing. ``interval``: seconds between two calls of `tick`; 0.0: only one.

    An OSError of any method ends the study, because its reader is gone.
    """

    interval = 0.0

    def started(self, name: str, reservation: SlotReservation) -> None:
        """An experiment has started."""

    def ended(self, name: str, result: TrialResult, *, again: float | None) -> None:
        """Show that an experiment has ended; ``again``: seconds until it is started again, None if it is not."""

    def note(self, text: str) -> None:
        """Show a message."""

    def tick(self) -> None:
        """Refresh the display."""

    def close(self) -> None:
        """Restore the screen. May be called twice; the next call of another method takes the screen again."""


class Conclusion(Value):
    """How a run of a study ended: by itself (``stop_reason``), or by a signal (``signum``)."""

    stop_reason: str
    signum: int = 0


def _now() -> float:
    """Seconds since the epoch, to the millisecond."""
    return round(time.time(), 3)


class StudyRun:
    """One run of a study, until it is over or stopped by a signal.

    Args:
        trials: whose trials they are; the earlier results are known already.
        keep: file descriptors that the guardians hold as long as any process of an experiment lives.
        back_off: seconds, see `retries.BACK_OFF`.
        templates: where the ranks of experiments are forked from; None: each run decides that.
    """

    def __init__(
        self,
        trials: Adapter,
        scheduler: Scheduler,
        journal: Journal,
        callback: Callback,
        *,
        keep: Sequence[int] = (),
        back_off: float = BACK_OFF,
        templates: TemplatePlaces | None = None,
    ) -> None:
        self._trials, self._journal, self._callback = trials, journal, callback
        self.judge, self.settling, self._templates = trials.judge, trials.settling, templates
        self._loop = Loop()
        self._executor = Executor(self._loop, scheduler, self, keep=keep, back_off=back_off, on_room=self._fill)
        self._signum = 0
        self._failed = False
        self._blind = False
        self._decided = False  # whether the finalists are in the journal

    def run(self) -> Conclusion:
        """Run the study. Must be called in the main thread, where signals arrive.

        Raises:
            BiremeError: the journal or a file cannot be written; results recorded before are kept.
            UnfitError: no host can run anything.
        """
        self._loop.on_signals((*STOP_SIGNALS, signal.SIGTSTP, signal.SIGCONT), self._on_signal)
        try:
            try:
                self._fill()
                self._tick()
                if not self._at_rest:  # an earlier run may have finished everything
                    self._loop.run()
            except BaseException:
                self._wind_up()
                raise
        finally:
            self._show(lambda callback: callback.close())  # while a signal cannot end this process before
            self._executor.close()
            self._loop.close()
            if self._templates is not None:
                self._templates.close()
        return Conclusion(self._trials.stop_reason, self._signum or self._loop.late)

    def _fill(self) -> None:
        """Start experiments while there is room; stop the loop when there is nothing to wait for."""
        while not (self._executor.stopping or self._executor.ahead):
            experiment = self._trials.next()
            if experiment is None:
                break
            self._executor.submit(experiment)
            self._executor.start_ready()
        if self._at_rest:
            self._loop.stop()

    @property
    def _at_rest(self) -> bool:
        """Whether there is nothing to wait for."""
        return self._executor.idle and (self._executor.stopping or not self._executor.waiting)

    def _wind_up(self) -> None:
        """After an error: end the running experiments, and wait for them."""
        self._failed = True
        self._executor.stop()
        if not self._executor.idle:
            self._loop.run()

    def _tick(self) -> None:
        self._show(lambda callback: callback.tick())
        if self._callback.interval:
            self._loop.after(self._callback.interval, self._tick)

    def _show(self, do: Callable[[Callback], None]) -> None:
        """Call the callback. If its reader is gone, stop the study as SIGPIPE would."""
        if self._blind:
            return
        try:
            do(self._callback)
        except OSError as error:
            self._blind = True
            if not is_gone(error):
                raise BiremeError(f"stdout cannot be written: {error.strerror}") from error
            self._loop.after(0.0, lambda: self._on_signal(signal.SIGPIPE))  # not in the middle of a report

    def _on_signal(self, signum: int) -> None:
        if signum == signal.SIGTSTP:
            self._executor.signal(signum)
            self._show(lambda callback: callback.close())
            self._loop.halt()
            self._executor.signal(signal.SIGCONT)
            self._show(lambda callback: callback.tick())
        elif signum == signal.SIGCONT:
            self._executor.signal(signum)
        elif not self._signum:
            self._signum = signum
            seconds = self._executor.stop(signum)
            wait = f" up to {seconds:g} s; Ctrl+C again kills;" if seconds else ""
            self._show(lambda callback: callback.note(f"stopping;{wait} the results so far are kept"))
            self._fill()
        elif signum in (signal.SIGINT, signal.SIGQUIT):
            self._executor.kill()

    # -- executor.Client ------------------------------------------------------------------------------

    def launch_request(self, name: str, reservation: SlotReservation, place: int) -> LaunchRequest:
        """The command of an experiment; see `executor.Client`."""
        request = self._trials.launch_request(name, reservation, place)
        env = self._templates.environment(reservation) if self._templates is not None else {}
        return request.replace(env={**request.env, **env})

    def started(self, name: str, reservation: SlotReservation) -> None:
        """Record and show the start of an experiment."""
        if not self._decided and (finalists := self._trials.finalists):
            self._journal.append(finalists, sync=False)
            self._decided = True
        record = {"start": name, "on": reservation.include(), "time": _now(), **self._trials.starting(name)}
        self._journal.append(record, sync=False)
        self._show(lambda callback: callback.started(name, reservation))

    def ended(self, name: str, result: TrialResult, *, again: bool) -> None:
        """Record and show the end of an experiment, and start the next ones.

        Raises:
            UnfitError: no host can run anything.
        """
        if self._failed:
            pass  # nothing can be written any more
        elif result.counts:
            facts = self._trials.tell(name, result)
            self._journal.append({"end": name, "time": _now(), "ending": result.as_dict(), **facts})
            for queued in self._executor.withdraw():
                self._trials.re_enqueue(queued)  # it was chosen without this result: choose again
        elif self._executor.stopping:
            self._trials.re_enqueue(name)
        elif not again:
            facts = self._trials.starting(name)
            self._trials.fail(name)
            self._journal.append({"gave up": name, "time": _now(), "ending": result.as_dict(), **facts})
        wait = self._executor.rest(name) if again else None
        self._show(lambda callback: callback.ended(name, result, again=wait))
        if self._executor.cannot_run and not self._failed:
            raise UnfitError(
                f"no experiment can run: {self._executor.cannot_run}",
                hint="fix that, and run the same command again to continue",
            )
        self._fill()
