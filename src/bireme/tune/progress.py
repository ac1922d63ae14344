"""Shows the progress of a study: a live display on a terminal, plain lines elsewhere. Both show its view."""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from bireme.logs.console import complain, printable
from bireme.result.report import duration
from bireme.tune.execution.slot_scheduler import SlotReservation
from bireme.tune.execution.study_run import Callback
from bireme.tune.launcher import Living
from bireme.tune.report.text import best_lines, title, to_go
from bireme.tune.report.view import StudyView, TrialView
from bireme.tune.study.trial import TrialResult

if TYPE_CHECKING:  # rich is imported only where there is a terminal
    from rich.console import RenderableType
    from rich.live import Live as RichLive


_SHARE, _BURST = 0.05, 3.0
"""The part of the time that may be spent on what is best, and seconds that may be spent on it at once."""


def callback(study: Living, *, quiet: bool = False) -> Callback:
    """The display of a study: live on a terminal, else plain lines; with ``quiet``, only warnings on stderr."""
    if quiet:
        return Silent()
    return Live(study) if sys.stdout.isatty() else Lines(study)


class Silent(Callback):
    """Shows only notes, on stderr."""

    def note(self, text: str) -> None:
        """Show a note about the study."""
        if text:
            complain(text)


class Lines(Callback):
    """Prints a line on stdout for each event."""

    def __init__(self, study: Living) -> None:
        self._study, self._adapter, self._begin = study, study.adapter, time.monotonic()
        self._running: dict[str, tuple[float, SlotReservation]] = {}
        self._seconds: list[float] = []
        self._widest = 1
        self._foretold = False  # how long it takes to compare the finalists
        self._view: StudyView | None = None  # as of the last event, without an answer

    def started(self, name: str, reservation: SlotReservation) -> None:
        """A trial starts."""
        self._running[name] = (time.monotonic(), reservation)
        self._widest = max(self._widest, len(self._running))
        self._view = self._study.view(answered=False)
        if self._trial(name).phase == "confirm" and not self._foretold and (forecast := self._adapter.study.forecast):
            self.note(f"comparing the best takes {forecast.text}{f'; {forecast.advice}' if forecast.advice else ''}")
            self._foretold = True
        self._print_start(f"{self._title(name)} starts on {reservation.include()}")

    def ended(self, name: str, result: TrialResult, *, again: float | None) -> None:
        """Show that a trial has ended."""
        self._running.pop(name, None)
        self._seconds.append(result.seconds)
        self._view = self._study.view(answered=False)
        usual = result.cause in ("ok", "pruned")
        self._print_end(self._end_line(name, result, again), usual=usual and again is None)

    def note(self, text: str) -> None:
        """Show a note about the study."""
        if text:
            _print(text)

    def _print_start(self, line: str) -> None:
        _print(line)

    def _print_end(self, line: str, *, usual: bool) -> None:
        del usual
        left = self._left
        _print(f"{line}{f' ({left})' if left else ''}")

    @property
    def _left(self) -> str:
        """What is left to do, as ``7 to go, about 1 min``, or as `to_go` says it."""
        left, searched = self._adapter.study.left, self._adapter.search_left
        if left is None and searched:
            return f"at most {searched} to go in the search"
        if left is None:
            return to_go(self._view, time.time(), self._adapter.study.forecast, searches=searched != 0)
        words = f"{'at most ' if left else ''}{left} to go"
        if not self._seconds or not left:
            return words
        mean = sum(self._seconds) / len(self._seconds)
        return f"{words}, about {duration(mean * left / self._widest)}"

    def _trial(self, name: str) -> TrialView:
        assert self._view is not None
        return next(trial for trial in reversed(self._view.trials) if trial.name == name)

    def _title(self, name: str) -> str:
        assert self._view is not None
        return title(self._view, self._trial(name))

    def _end_line(self, name: str, result: TrialResult, again: float | None) -> str:
        words = self._title(name)
        if again is not None:
            when = f" in {duration(again)}" if again else " elsewhere" if result.hosts else ""  # those get a pause
            return f"{words}: {result.cause}: {result.reason}; retrying{when}"
        if result.cause != "ok":
            return f"{words}: {result.cause}{f': {result.reason}' if result.reason else ''}"
        assert self._view is not None
        leads = ", the best so far" if self._view.leader == name else ""
        return f"{words}: {self._view.measured(self._trial(name)) or 'ok'}{leads}, {duration(result.seconds)}"


class Live(Lines):
    """Prints the lines of `Lines`, and below them a live display of running trials, what is best, and work left.

    The cursor is hidden from the first `tick` to `close`, which the study calls before a signal can end this process.
    """

    interval = 1.0

    def __init__(self, study: Living) -> None:
        from rich.console import Console

        super().__init__(study)
        self._console = Console(highlight=False)
        self._live: RichLive | None = None
        self._best: list[str] = []
        self._stale = True  # whether something has ended since the best was calculated
        self._spent = 0.0  # seconds, on calculating it

    def ended(self, name: str, result: TrialResult, *, again: float | None) -> None:
        """Show that a trial has ended."""
        self._stale = True
        super().ended(name, result, again=again)

    def note(self, text: str) -> None:
        """Show a note about the study."""
        if text:
            self._line(text, "dim")

    def _print_start(self, line: str) -> None:
        self.tick()

    def _print_end(self, line: str, *, usual: bool) -> None:
        self._line(line, "" if usual else "yellow")

    def _line(self, text: str, style: str) -> None:
        from rich.text import Text

        with _writing():
            self._console.print(Text(printable(text), style))
        if self._live is not None:
            self.tick()

    def tick(self) -> None:
        """Refresh the display."""
        if self._live is None:
            self._live = self._start()
        with _writing():
            self._live.update(self._picture(), refresh=True)

    def _start(self) -> RichLive:
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
        for name, (begin, reservation) in self._running.items():
            mark = Text(">" if ascii_only else "▸", "green")
            words = (
                printable(self._title(name)),
                reservation.include(),
            )  # as Text: rich would read [round 2] as a style
            grid.add_row(mark, *map(Text, words), Text(duration(now - begin), "dim"))
        rows = Table.grid()
        rows.add_row(grid)
        if self._stale and self._spent <= _BURST + _SHARE * (now - self._begin):
            known = self._study.view(answered=True)
            self._view = self._view or known
            self._best = best_lines(known) if known.best is not None else []
            self._stale = False
            self._spent += time.monotonic() - now
        for line in self._best:
            rows.add_row(Text(printable(line), "bold"))
        counts = [f"{len(self._view.ended) if self._view else 0} done", self._left, duration(now - self._begin)]
        rows.add_row(Text((" | " if ascii_only else " · ").join(filter(None, counts)), "bold"))
        return rows


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
