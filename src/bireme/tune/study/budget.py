"""The budget of a study, in trials or in seconds, and the part of it that is kept for the paired rounds."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from bireme.errors import counted

ROUNDS = 3
"""Fewer rounds than this are never certain."""

_FEW, _MANY = 4, 20
"""More than `_FEW` points are finalists only if there is room for `_MANY` rounds of all: few rounds tell little."""

LEAST = 4 * ROUNDS
"""With fewer trials, half of them would be too few rounds to be certain of anything: all are for the search."""

_RESERVE = 0.25
"""The part of a budget that is kept for paired rounds; at least `ROUNDS` of two runs, at most half."""

_LONGER = 1.25
"""A trial may take this many times as long as expected."""


class Budget:
    """What a study may use up.

    Args:
        trials: how many; None: no limit.
        seconds: of wall time; None: no limit.
        clock: seconds, from any start.
        side_by_side: how many trials run at the same time.
    """

    def __init__(
        self, trials: int | None, seconds: float | None, clock: Callable[[], float], side_by_side: int
    ) -> None:
        self.trials, self.seconds = trials, seconds
        self._clock, self._side_by_side = clock, side_by_side
        self._began, self.earlier = clock(), 0.0

    @property
    def elapsed(self) -> float:
        """Seconds that the study has taken, earlier runs of it included."""
        return self.earlier + self._clock() - self._began

    def left(self, begun: int) -> int | None:
        """How many more trials may start at most after ``begun`` ones; None: no limit."""
        return None if self.trials is None else max(0, self.trials - begun)

    @property
    def _seconds_left(self) -> float | None:
        """The seconds that are left, times the trials that run side by side; None: no limit."""
        return None if self.seconds is None else (self.seconds - self.elapsed) * self._side_by_side

    def spent(self, begun: int) -> str:
        """Why no trial may start after ``begun`` ones; "" if one may."""
        if self.left(begun) == 0:
            return f"the budget of {counted(self.trials or 0, 'trial')} is spent"
        if self.seconds is not None and self.elapsed >= self.seconds:
            return f"the budget of {self.seconds:g} s is spent"
        return ""

    def too_little(self, begun: int, trials: int, seconds: float) -> str:
        """Why some trials do not fit any more, all together; "" if they do.

        Args:
            begun: how many trials have started.
            trials: how many more.
            seconds: how long these take, one after the other.
        """
        left = self.left(begun)
        if left is not None and left < trials:
            return f"what is left of the budget of {counted(self.trials or 0, 'trial')} is too little for another round"
        if self.seconds is not None and self.elapsed + seconds > self.seconds:
            return f"what is left of the budget of {self.seconds:g} s is too little for another round"
        return ""

    def finalists(self, begun: int, baseline: float, lasts: Sequence[float]) -> int | None:
        """For how many finalists, at least one, what is left suffices; None: for any number.

        Args:
            begun: how many trials have started.
            baseline: seconds of a run of the baseline.
            lasts: seconds of a run of each point that may be a finalist, the first ones first.
        """
        left, seconds = self.left(begun), self._seconds_left
        if left is None and seconds is None:
            return None

        def room(rounds: int) -> int:
            longest = itertools.accumulate(lasts, initial=baseline)
            by_time = sum(each <= seconds / rounds for each in longest) - 1 if seconds is not None else len(lasts)
            return by_time if left is None else min(by_time, left // rounds - 1)

        return max(1, min(_FEW, room(ROUNDS + 1)), room(_MANY))

    def is_for_rounds(self, begun: int, pair: float, another: float) -> bool:
        """Whether what is left is for the rounds, so that no other trial starts.

        Args:
            begun: how many trials have started.
            pair: seconds of a round of two runs.
            another: seconds of another trial.
        """
        left = self.left(begun)
        few = False
        if left is not None and self.trials is not None and self.trials >= LEAST:
            few = left <= min(max(2 * ROUNDS, _RESERVE * self.trials), self.trials / 2)
        if few or self.seconds is None:
            return few
        reserve = min(max(ROUNDS * pair / self._side_by_side, _RESERVE * self.seconds), self.seconds / 2)
        return self.elapsed + _LONGER * another + reserve >= self.seconds
