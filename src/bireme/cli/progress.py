"""Shows the progress of a study: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import io
import os
import sys
import time
from contextlib import contextmanager

from bireme.logs.console import complain, printable
from bireme.result.report import duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO

    from rich.console import RenderableType
    from rich.live import Live as RichLive

    from bireme.tune.deepspeed.tuning import Tuning
    from bireme.tune.slots import SlotReservation
    from bireme.tune.study_run import Watcher
    from bireme.tune.trial_result import TrialResult


def watcher(tuning: Tuning, *, quiet: bool = False) -> Watcher:
    """The display of a study: live on a terminal, else plain lines; with ``quiet``, only warnings on stderr."""
    if quiet:
        return Silent()
    return Live(tuning) if sys.stdout.isatty() else Lines(tuning)


class Silent:
    """Shows only notes, on stderr."""

    interval = 0.0

    def started(self, name: str, reservation: SlotReservation) -> None:
        """An experiment starts."""

    def ended(self, name: str, result: TrialResult, *, again: float | None) -> None:
        """Show that an experiment has ended.

        Args:
            name: the experiment's name.
            result: its result.
            again: seconds until it is started again; None if it is not.
        """

    def note(self, text: str) -> None:
        """Show a note about the study."""
        if text:
            complain(text)

    def tick(self) -> None:
        """Refresh the display."""

    def close(self) -> None:
        """End the display."""


class Pace:
    """Counts the running, finished and remaining experiments of a study, and estimates the remaining time."""

    def __init__(self, tuning: Tuning) -> None:
        self.tuning = tuning
        self.running: dict[str, tuple[float, SlotReservation]] = {}
        self._seconds: list[float] = []
        self._begin = time.monotonic()
        self._widest = 1

    def started(self, name: str, reservation: SlotReservation) -> None:
        """An experiment has started."""
        self.running[name] = (time.monotonic(), reservation)
        self._widest = max(self._widest, len(self.running))

    def ended(self, name: str, result: TrialResult) -> None:
        """Count an experiment that has ended."""
        self.running.pop(name, None)
        self._seconds.append(result.seconds)

    @property
    def elapsed(self) -> float:
        """Seconds since the study began."""
        return time.monotonic() - self._begin

    @property
    def left(self) -> str:
        """The remaining work, as ``7 to go, about 1 min``; "" if it is not known."""
        tuning_left = self.tuning.left
        if tuning_left is None:
            return ""
        words = f"{'at most ' if tuning_left else ''}{tuning_left} to go"
        if not self._seconds or not tuning_left:
            return words
        mean = sum(self._seconds) / len(self._seconds)
        return f"{words}, about {duration(mean * tuning_left / self._widest)}"


class Lines(Silent):
    """Prints a line on stdout for each event."""

    def __init__(self, tuning: Tuning) -> None:
        self._pace = Pace(tuning)

    def started(self, name: str, reservation: SlotReservation) -> None:
        """An experiment starts."""
        self._pace.started(name, reservation)
        _print(f"{name} starts on {reservation.include()}")

    def ended(self, name: str, result: TrialResult, *, again: float | None) -> None:
        """Show that an experiment has ended."""
        self._pace.ended(name, result)
        left = self._pace.left
        _print(f"{_end_line(self._pace.tuning, name, result, again=again)}{f' ({left})' if left else ''}")

    def note(self, text: str) -> None:
        """Show a note about the study."""
        if text:
            _print(text)


class Live(Silent):
    """Prints the lines of `Lines`, and below them a live display of running experiments, best result and work left.

    The cursor is hidden from the first `tick` to `close`, which the study calls before a signal can end this process.
    """

    interval = 1.0

    def __init__(self, tuning: Tuning) -> None:
        from rich.console import Console

        self._pace = Pace(tuning)
        self._console = Console(highlight=False)
        self._live: RichLive | None = None

    def started(self, name: str, reservation: SlotReservation) -> None:
        """An experiment starts."""
        self._pace.started(name, reservation)
        self.tick()

    def ended(self, name: str, result: TrialResult, *, again: float | None) -> None:
        """Show that an experiment has ended."""
        self._pace.ended(name, result)
        self._line(_end_line(self._pace.tuning, name, result, again=again), "" if result.cause == "ok" else "yellow")

    def note(self, text: str) -> None:
        """Show a note about the study."""
        if text:
            self._line(text, "dim")

    def _line(self, text: str, style: str) -> None:
        from rich.text import Text

        with _writing():
            self._console.print(Text(printable(text), style))
        if self._live is not None:
            self.tick()

    def tick(self) -> None:
        """Refresh the display."""
        if self._live is None:
            self._live = self._begin()
        with _writing():
            self._live.update(self._picture(), refresh=True)

    def _begin(self) -> RichLive:
        from rich.live import Live as RichLive

        # The study's own loop refreshes it: guardians are forked, and a thread of rich must not exist then.
        live = RichLive(console=self._console, auto_refresh=False, transient=True, redirect_stdout=False)
        with _writing():
            live.start()
        return live

    def close(self) -> None:
        """Remove the display and show the cursor again."""
        live, self._live = self._live, None
        if live is not None:
            with _writing():
                live.update("")  # rich prints it once more in full, and a long one would scroll
                live.stop()

    def _picture(self) -> RenderableType:
        from rich.table import Table
        from rich.text import Text

        ascii_only = self._console.options.ascii_only
        grid = Table.grid(padding=(0, 2))
        now = time.monotonic()
        for name, (begin, reservation) in self._pace.running.items():
            grid.add_row(
                Text(">" if ascii_only else "▸", "green"),
                name,
                reservation.include(),
                Text(duration(now - begin), "dim"),
            )
        rows = Table.grid()
        rows.add_row(grid)
        best = self._pace.tuning.best
        words = [f"{len(self._pace.tuning.completed)} done", self._pace.left, duration(self._pace.elapsed)]
        if best is not None and best.value is not None:
            words.insert(0, f"best {best.trial.name}: {self._pace.tuning.metric.show(best.value)}")
        rows.add_row(Text((" | " if ascii_only else " · ").join(word for word in words if word), "bold"))
        return rows


def _in(seconds: float) -> str:
    return f" in {duration(seconds)}" if seconds else ""


def _end_line(tuning: Tuning, name: str, result: TrialResult, *, again: float | None) -> str:
    if again is not None:
        elsewhere = " elsewhere" if result.hosts else ""  # these nodes get a pause
        return f"{name}: {result.cause}: {result.reason}; retrying{_in(again) or elsewhere}"
    if result.cause != "ok":
        return f"{name}: {result.cause}{f': {result.reason}' if result.reason else ''}"
    row = next((row for row in tuning.completed if row.trial.name == name), None)
    if row is None or row.value is None:
        return f"{name}: ok, {duration(result.seconds)}"
    best = tuning.best is not None and tuning.best.trial.name == name
    return f"{name}: {tuning.metric.show(row.value)}{', the best so far' if best else ''}, {duration(result.seconds)}"


@contextmanager
def any_text(stream: TextIO) -> Iterator[None]:
    """Write characters that the stream's encoding lacks as escapes: ours (``…``), or those in a rank's error."""
    if not isinstance(stream, io.TextIOWrapper):
        yield
        return
    before = stream.errors
    stream.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        try:
            stream.reconfigure(errors=before)
        except OSError:  # buffered text could not be written; that has been reported
            pass


def _print(text: str) -> None:
    with _writing():
        print(printable(text), flush=True)


@contextmanager
def _writing() -> Iterator[None]:
    """After a failed write, send stdout to /dev/null, so that text in its buffer does not fail again later."""
    try:
        yield
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
        raise
