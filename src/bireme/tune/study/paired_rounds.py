"""Chooses the next run of the paired rounds: several rounds may run side by side, and any run may fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bireme.tune.space.points import Point, key_of
from bireme.tune.study.confirmation import Confirmation, Figures


class PairedRounds:
    """The rounds that are open, and which of their runs are pending. What the runs show is for the confirmation.

    Args:
        confirmation: it is told of the runs. Of what it knows when a round begins, nothing is run again.
        plan: number of a round -> its points in the order of their runs, called when the round begins. []: it is not
            run, as things are now.
        side_by_side: how many rounds may be open at the same time.
        closed: the last round of earlier runs of the study. Nothing more of these rounds is run.
    """

    def __init__(
        self,
        confirmation: Confirmation,
        plan: Callable[[int], Sequence[Point]],
        *,
        side_by_side: int = 1,
        closed: int = 0,
    ) -> None:
        self.confirmation, self._plan, self._side_by_side = confirmation, plan, side_by_side
        self._open: dict[tuple[int, str], Point] = {}  # neither ended nor given up, in the order of their runs
        self._pending: set[tuple[int, str]] = set()
        self.last = closed

    def next(self) -> tuple[int, Point] | None:
        """The next run, (round, point), which is not pending yet; None if there is none now."""
        if (waiting := next((run for run in self._open if run not in self._pending), None)) is not None:
            return waiting[0], self._open[waiting]
        if len({number for number, _ in self._open}) >= self._side_by_side:
            return None
        number, planned = self.last + 1, self._plan(self.last + 1)
        while planned and not (missing := self._missing(number, planned)):
            number, planned = number + 1, self._plan(number + 1)
        return (number, missing[0]) if planned else None

    def _missing(self, number: int, planned: Sequence[Point]) -> list[Point]:
        told = self.confirmation.told(number)
        return [each for each in planned if key_of(each) not in told]

    def begin(self, number: int, point: Point) -> None:
        """A run is pending. The first one of a round opens it."""
        if number > self.last:
            self.last = number
            self._open.update({(number, key_of(each)): each for each in self._missing(number, self._plan(number))})
        self._pending.add((number, key_of(point)))

    def tell(self, number: int, point: Point, figures: Figures | None) -> None:
        """Report a run; None: it failed; (): it could not be measured, and is not asked for again."""
        self._pending.discard((number, key_of(point)))
        self._open.pop((number, key_of(point)), None)
        self.confirmation.tell(number, point, figures)

    def drop(self, number: int, point: Point) -> None:
        """A pending run was not measured: it is the next one again."""
        self._pending.discard((number, key_of(point)))
