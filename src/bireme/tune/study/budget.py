"""The budget of a study, in trials or in seconds, and the part of it that is kept for the confirmation."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

from bireme.errors import BadInputError, counted

_FEW, _MANY = 4, 20
"""More than `_FEW` points are finalists only if there is room for `_MANY` rounds of all: few rounds tell little."""

_RESERVE = 0.25
"""The part of a budget that is kept for the confirmation. In trials it is at least what a claim takes, at most half."""

_LONGER = 1.25
"""A trial may take this much longer than expected."""

CONFIRM = "50%"
"""Without a budget, the confirmation takes at most as long as the search: half of the whole."""


def share(confirm: str) -> float | None:
    """The part of the whole time that the confirmation may take, of ``off``, ``sure`` (None) or ``50%``.

    Raises:
        BadInputError: it is none of these.
    """
    if confirm in ("off", "sure"):
        return 0.0 if confirm == "off" else None
    try:
        part = float(confirm.removesuffix("%")) / 100
    except ValueError:
        part = math.nan
    if not (confirm.endswith("%") and 0 < part < 1):
        hint = "use off, sure, or a part such as 50%"
        raise BadInputError(f"not a part of the time: {confirm!r}", where="confirm", hint=hint)
    return part


class Budget:
    """What a study may use up.

    Args:
        trials: how many; None: no limit.
        seconds: of wall time; None: no limit.
        clock: seconds, from any start.
        side_by_side: how many trials run at the same time.
        rounds: with fewer rounds of two runs nothing is certain.
    """

    def __init__(
        self, trials: int | None, seconds: float | None, clock: Callable[[], float], side_by_side: int, rounds: int
    ) -> None:
        self.trials, self.seconds, self.rounds = trials, seconds, rounds
        self._clock, self._side_by_side = clock, side_by_side
        self._began, self.earlier = clock(), 0.0

    @property
    def limited(self) -> bool:
        """Whether there is any limit."""
        return self.trials is not None or self.seconds is not None

    @property
    def elapsed(self) -> float:
        """Seconds that the study has taken, earlier runs of it included."""
        return self.earlier + self._clock() - self._began

    def left(self, begun: int) -> int | None:
        """How many more trials may start at most after ``begun`` ones; None: no limit."""
        return None if self.trials is None else max(0, self.trials - begun)

    def seconds_left(self, begun: int, mean: float) -> float:
        """The seconds that are left, by trials of a mean length where these are limited; inf: no limit."""
        left = self.left(begun)
        by_trials = math.inf if left is None else left * mean / self._side_by_side
        return min(by_trials, math.inf if self.seconds is None else max(0.0, self.seconds - self.elapsed))

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
            return f"the rest of the budget of {counted(self.trials or 0, 'trial')} is not enough for a round"
        if self.seconds is not None and self.elapsed + seconds > self.seconds:
            return f"what is left of the budget of {self.seconds:g} s is too little for a round"
        return ""

    def finalists(
        self, begun: int, baseline: float, lasts: Sequence[float], seconds: float = math.inf, least: int | None = None
    ) -> int | None:
        """For how many finalists, at least one, what is left suffices; None: for any number.

        Args:
            begun: how many trials have started.
            baseline: seconds of a run of the baseline.
            lasts: seconds of a run of each point that may be a finalist, the first ones first.
            seconds: how long the confirmation may take, where that is bounded too.
            least: for any number of them there must be room for this many rounds; None: as many as a claim takes.
        """
        left = self.left(begun)
        if self.seconds is not None:
            seconds = min(seconds, self.seconds - self.elapsed)
        if left is None and math.isinf(seconds):
            return None

        def room(rounds: int) -> int:
            longest = itertools.accumulate(lasts, initial=baseline)
            by_time = sum(each <= seconds * self._side_by_side / rounds for each in longest) - 1
            return by_time if left is None else min(by_time, left // rounds - 1)

        return max(1, min(_FEW, room(self.rounds + 2)), room(_MANY if least is None else least))

    def is_for_rounds(self, begun: int, pair: float, another: float, wanted: float) -> bool:
        """Whether what is left is for the confirmation, so that no other trial starts.

        A quarter is kept, and of trials at least what a claim takes, if that is at most half. A budget in seconds is
        one of the trials that are expected to fit into it.

        Args:
            begun: how many trials have started.
            pair: seconds of a round of two runs.
            another: seconds of another trial.
            wanted: how many rounds of two runs the confirmation is expected to take; inf: unknown.
        """
        least = 2 * self.rounds
        if self.trials is not None and self.trials >= 2 * least:
            kept = min(max(least, _RESERVE * self.trials), self.trials / 2, max(least, 2 * wanted))
            if self.trials - begun <= kept:
                return True
        if self.seconds is None:
            return False
        kept = min(_RESERVE * self.seconds, max(self.rounds, wanted) * pair / self._side_by_side)
        if kept < self.rounds * pair / self._side_by_side:  # too little for a claim
            kept = 0.0
        return self.elapsed + _LONGER * another + kept >= self.seconds
