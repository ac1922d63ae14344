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

    from bireme.tune.execution.runner import Callback, Progress
    from bireme.tune.execution.slots import SlotReservation
    from bireme.tune.study.trial_result import TrialResult


def watcher(board: Progress, *, quiet: bool = False) -> Callback:
    """The display of a study: live on a terminal, else plain lines; with ``quiet``, only warnings on stderr."""
    if quiet:
        return Silent()
    return Live(board) if sys.stdout.isatty() else Lines(board)


class Silent:
    """Shows only notes, on stderr."""

    interval = 0.0

    def started(self, name: str, reservation: SlotReservation) -> None:
        """An experiment starts."""

    def ended(self, name: str, result: TrialResult, *, again: float | None) -> None:
        """Show that an experiment has ended.

        Args:
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

    def __init__(self, board: Progress) -> None:
        self.board = board
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
        """The remaining work, as ``7 to go, about 1 min`` or ``about 9 more rounds``; "" if it is not known."""
        left = self.board.left
        if left is None:
            return self.board.outlook
        words = f"{'at most ' if left else ''}{left} to go"
        if not self._seconds or not left:
            return words
        mean = sum(self._seconds) / len(self._seconds)
        return f"{words}, about {duration(mean * left / self._widest)}"


class Lines(Silent):
    """Prints a line on stdout for each event."""

    def __init__(self, board: Progress) -> None:
        self._pace = Pace(board)

    def started(self, name: str, reservation: SlotReservation) -> None:
        """An experiment starts."""
        self._pace.started(name, reservation)
        _print(f"{self._pace.board.title(name)} starts on {reservation.include()}")

    def ended(self, name: str, result: TrialResult, *, again: float | None) -> None:
        """Show that an experiment has ended."""
        self._pace.ended(name, result)
        left = self._pace.left
        _print(f"{_end_line(self._pace.board, name, result, again=again)}{f' ({left})' if left else ''}")

    def note(self, text: str) -> None:
        """Show a note about the study."""
        if text:
            _print(text)


class Live(Silent):
    """Prints the lines of `Lines`, and below them a live display of running experiments, best result and work left.

    The cursor is hidden from the first `tick` to `close`, which the study calls before a signal can end this process.
    """

    interval = 1.0

    def __init__(self, board: Progress) -> None:
        from rich.console import Console

        self._pace = Pace(board)
        self._console = Console(highlight=False)
        self._live: RichLive | None = None

    def started(self, name: str, reservation: SlotReservation) -> None:
        """An experiment starts."""
        self._pace.started(name, reservation)
        self.tick()

    def ended(self, name: str, result: TrialResult, *, again: float | None) -> None:
        """Show that an experiment has ended."""
        self._pace.ended(name, result)
        usual = result.cause in ("ok", "pruned")
        self._line(_end_line(self._pace.board, name, result, again=again), "" if usual else "yellow")

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
                self._pace.board.title(name),
                reservation.include(),
                Text(duration(now - begin), "dim"),
            )
        rows = Table.grid()
        rows.add_row(grid)
        board = self._pace.board
        words = [board.best, f"{board.done} done", self._pace.left, duration(self._pace.elapsed)]
        rows.add_row(Text((" | " if ascii_only else " · ").join(word for word in words if word), "bold"))
        return rows


def _in(seconds: float) -> str:
    return f" in {duration(seconds)}" if seconds else ""


def _end_line(board: Progress, name: str, result: TrialResult, *, again: float | None) -> str:
    title = board.title(name)
    if again is not None:
        elsewhere = " elsewhere" if result.hosts else ""  # these nodes get a pause
        return f"{title}: {result.cause}: {result.reason}; retrying{_in(again) or elsewhere}"
    if result.cause != "ok":
        return f"{title}: {result.cause}{f': {result.reason}' if result.reason else ''}"
    leads = ", the best so far" if board.leads(name) else ""
    return f"{title}: {board.figure(name) or 'ok'}{leads}, {duration(result.seconds)}"


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
