"""What a study shows while it runs: a live picture on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager

from bireme.logs.console import complain
from bireme.supervise.report import duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import RenderableType

    from bireme.tune.deepspeed.tuning import Tuning
    from bireme.tune.ending import Ending
    from bireme.tune.slots import Reservation
    from bireme.tune.study import Watcher


@contextmanager
def progress(*, quiet: bool = False) -> Iterator[Callable[[Tuning], Watcher]]:
    """Makes the watcher of a study; gives the terminal back at the end.

    Args:
        quiet: show nothing.
    """
    made: list[Live] = []

    def show(tuning: Tuning) -> Watcher:
        if quiet:
            return Silent()
        if not sys.stdout.isatty():
            return Lines(tuning)
        made.append(Live(tuning))
        return made[0]

    try:
        yield show
    finally:
        for live in made:
            live.close()


class Silent:
    """Shows nothing but what is worth a line."""

    interval = 0.0

    def started(self, name: str, reservation: Reservation) -> None:
        """As `Watcher`."""

    def ended(self, name: str, ending: Ending, *, again: bool) -> None:
        """As `Watcher`."""

    def note(self, text: str) -> None:
        """As `Watcher`."""
        if text:
            complain(text)

    def tick(self) -> None:
        """As `Watcher`."""


class Pace:
    """How a study goes on: how much is done and left, and how long that may take."""

    def __init__(self, tuning: Tuning) -> None:
        self.tuning = tuning
        self.running: dict[str, tuple[float, Reservation]] = {}
        self._seconds: list[float] = []
        self._begin = time.monotonic()
        self._widest = 1

    def started(self, name: str, reservation: Reservation) -> None:
        """An experiment has started."""
        self.running[name] = (time.monotonic(), reservation)
        self._widest = max(self._widest, len(self.running))

    def ended(self, name: str, ending: Ending) -> None:
        """One has ended."""
        self.running.pop(name, None)
        self._seconds.append(ending.seconds)

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._begin

    @property
    def left(self) -> str:
        """``7 to go, about 1 min``; "" when nothing is known."""
        tuning_left = self.tuning.left
        if tuning_left is None:
            return ""
        words = f"{'at most ' if tuning_left else ''}{tuning_left} to go"
        if not self._seconds or not tuning_left:
            return words
        mean = sum(self._seconds) / len(self._seconds)
        return f"{words}, about {duration(mean * tuning_left / self._widest)}"


class Lines:
    """A line on stdout for each event."""

    interval = 0.0

    def __init__(self, tuning: Tuning) -> None:
        self._pace = Pace(tuning)

    def started(self, name: str, reservation: Reservation) -> None:
        """As `Watcher`."""
        self._pace.started(name, reservation)
        _print(f"{name} starts on {reservation.include()}")

    def ended(self, name: str, ending: Ending, *, again: bool) -> None:
        """As `Watcher`."""
        self._pace.ended(name, ending)
        left = self._pace.left
        _print(f"{_end_line(self._pace.tuning, name, ending, again=again)}{f' ({left})' if left else ''}")

    def note(self, text: str) -> None:
        """As `Watcher`."""
        if text:
            _print(text)

    def tick(self) -> None:
        """As `Watcher`."""


class Live:
    """The same lines, and below them what runs now, what is best and what is left."""

    interval = 1.0

    def __init__(self, tuning: Tuning) -> None:
        from rich.console import Console
        from rich.live import Live as RichLive

        self._pace = Pace(tuning)
        self._console = Console(highlight=False)
        # Refreshed by the study's own loop: a thread of rich's would be there when guardians are forked.
        self._live = RichLive(console=self._console, auto_refresh=False, transient=True, redirect_stdout=False)
        self._live.start()

    def started(self, name: str, reservation: Reservation) -> None:
        """As `Watcher`."""
        self._pace.started(name, reservation)
        self.tick()

    def ended(self, name: str, ending: Ending, *, again: bool) -> None:
        """As `Watcher`."""
        self._pace.ended(name, ending)
        self._line(_end_line(self._pace.tuning, name, ending, again=again), "" if ending.cause == "ok" else "yellow")

    def note(self, text: str) -> None:
        """As `Watcher`."""
        if text:
            self._line(text, "dim")

    def _line(self, text: str, style: str) -> None:
        from rich.text import Text

        self._console.print(Text(text, style))
        self.tick()

    def tick(self) -> None:
        """As `Watcher`."""
        self._live.update(self._picture(), refresh=True)

    def close(self) -> None:
        """Take the picture away and give the cursor back."""
        self._live.stop()

    def _picture(self) -> RenderableType:
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 2))
        now = time.monotonic()
        for name, (begin, reservation) in self._pace.running.items():
            grid.add_row(Text("▸", "green"), name, reservation.include(), Text(duration(now - begin), "dim"))
        rows = Table.grid()
        rows.add_row(grid)
        best = self._pace.tuning.best
        words = [f"{len(self._pace.tuning.rows)} done", self._pace.left, duration(self._pace.elapsed)]
        if best is not None and best.value is not None:
            words.insert(0, f"best {best.trial.name}: {self._pace.tuning.metric.show(best.value)}")
        rows.add_row(Text(" · ".join(word for word in words if word), "bold"))
        return rows


def _end_line(tuning: Tuning, name: str, ending: Ending, *, again: bool) -> str:
    if again:
        return f"{name}: {ending.cause}: {ending.reason}; it is started again elsewhere"
    if ending.cause != "ok":
        return f"{name}: {ending.cause}{f': {ending.reason}' if ending.reason else ''}"
    row = next((row for row in tuning.rows if row.trial.name == name), None)
    if row is None or row.value is None:
        return f"{name}: ok, {duration(ending.seconds)}"
    best = tuning.best is not None and tuning.best.trial.name == name
    return f"{name}: {tuning.metric.show(row.value)}{', the best so far' if best else ''}, {duration(ending.seconds)}"


def _print(text: str) -> None:
    print(text, flush=True)
