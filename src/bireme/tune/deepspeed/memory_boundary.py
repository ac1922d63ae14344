"""The micro-batch size at which memory runs out, estimated from the trials that ran out of it.

Per stage, what fits is known from below and what does not from above; the wall is between. Three things are
carried over, so that no wall is run into twice:

- a larger micro-batch than one that did not fit does not fit either;
- what did not fit in a stage does not fit in one whose model states take at least as much more as the first
  may need for its communication buffers: the activations of a sample are the same in every stage;
- with capacity C, states S and activations A per sample the wall is at (C - S) / A, so one stage's wall tells
  where to look for another's: at (C - S') / (C - S) of it. That is a guess, and rules out nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from math import ceil

from bireme.value import Value


class Stage(Value):
    """What is known of a stage beforehand, in bytes per GPU; None: not known.

    ``buffers``: what it may need beside states and activations (ZeRO's buckets for communication).
    """

    states: int | None = None
    buffers: int = 0


class Wall(Value):
    """``fits``: the largest micro-batch known to fit, 0 for none. ``breaks``: the smallest that does not."""

    fits: int
    breaks: int | None


class Boundary:
    """A pure learner: told what fitted, it says what need not be tried, and what to try next.

    Args:
        stages: what is known of each stage, by its number.
        least: the smallest micro-batch to try.
        most: the largest.
        capacity: memory of a GPU in bytes; None: not known.
        activation: memory of one sample's activations in bytes; None: not known.
        tolerance: how near to the wall is near enough, as a part of what fits.
    """

    def __init__(
        self,
        stages: Mapping[int, Stage],
        least: int,
        most: int,
        *,
        capacity: int | None = None,
        activation: int | None = None,
        tolerance: float = 0.1,
    ) -> None:
        self.stages, self.least, self.most = dict(stages), least, most
        self.capacity, self.activation, self.tolerance = capacity, activation, tolerance
        self._fits: dict[int, set[int]] = {stage: set() for stage in stages}
        self._breaks: dict[int, set[int]] = {stage: set() for stage in stages}

    def tell(self, stage: int, micro: int, fits: bool) -> None:
        """A micro-batch ran in this stage, or ran out of memory."""
        (self._fits if fits else self._breaks)[stage].add(micro)

    # -- what is known -------------------------------------------------------------------------------

    def wall(self, stage: int) -> Wall:
        """What is known of this stage's wall, from its own runs and from those of others."""
        fits = max(self._fits[stage], default=0)
        breaks = [micro for micro, _ in self._walls(stage) if micro > fits]
        return Wall(fits, min(breaks, default=None))

    def ruled_out(self, stage: int, micro: int) -> str:
        """Why this need not be tried, or ""."""
        if micro < self.least or micro > self.most:
            return f"micro-batch {micro} is not between {self.least} and {self.most}"
        if micro <= max(self._fits[stage], default=0):
            return ""
        states = self.stages[stage].states
        if self.capacity is not None and states is not None and states >= self.capacity:
            return f"the states of stage {stage} alone fill the memory"
        # What is contradicted by a run of this stage's own tells nothing.
        for breaks, source in sorted(self._walls(stage)):
            if max(self._fits[stage], default=0) < breaks <= micro:
                return f"micro-batch {breaks} ran out of memory in stage {source}"
        return ""

    def _walls(self, stage: int) -> list[tuple[int, int]]:
        """(micro-batch that does not fit here, stage that showed it)."""
        return [
            (min(broken), other)
            for other, broken in self._breaks.items()
            if broken and (other == stage or self._needs_no_less(stage, other))
        ]

    def _needs_no_less(self, stage: int, other: int) -> bool:
        here, there = self.stages[stage], self.stages[other]
        if here.states is None or there.states is None:
            return False
        return here.states >= there.states + there.buffers

    # -- what to try ---------------------------------------------------------------------------------

    def found(self, stage: int) -> bool:
        """Whether the wall is known well enough, or nothing is left to try."""
        return not self.propose(stage)

    def propose(self, stage: int, count: int = 1, pending: Collection[int] = ()) -> tuple[int, ...]:
        """What to try next: never what is known, ruled out or pending.

        Args:
            stage: which stage.
            count: how many at once, at most.
            pending: micro-batches of this stage that are being tried.

        Returns:
            Micro-batches, the most telling first; none when the wall is known well enough.
        """
        wall = self.wall(stage)
        if wall.breaks is None:
            wanted = self._climb(stage, wall.fits, count + len(pending))
        elif wall.breaks - wall.fits <= max(1, int(self.tolerance * wall.fits)):
            wanted = []
        else:
            wanted = _between(max(wall.fits, self.least - 1), wall.breaks, count + len(pending))
        known = self._fits[stage] | self._breaks[stage] | set(pending)
        return tuple(micro for micro in wanted if micro not in known and not self.ruled_out(stage, micro))[:count]

    def _climb(self, stage: int, fits: int, count: int) -> list[int]:
        """No wall is known above: what is guessed from other stages or the estimate, and then by doubling."""
        start = self.least if not fits else min(2 * fits, self.most)
        for guess in self.guess(stage):
            if guess > fits:
                start = guess
                break
        steps = [start]
        while len(steps) < count and steps[-1] < self.most:
            steps.append(min(2 * steps[-1], self.most))
        return steps

    def guess(self, stage: int) -> tuple[int, ...]:
        """(likely to fit, likely not to fit), within the limits; empty: nothing tells.

        From the wall of the stage whose states are nearest, else from the estimate.
        """
        here = self.stages[stage].states
        if here is None:
            return ()
        others = [
            (abs(known.states - here), other, known.states)
            for other, known in self.stages.items()
            if other != stage and known.states is not None and self._own_wall(other)
        ]
        if others:
            _, other, there = min(others)
            wall, ratio = self.wall(other), self._ratio(here, there)
            return self._within(int(wall.fits * ratio)), self._within(ceil((wall.breaks or 0) * ratio))
        if self.capacity is None or not self.activation or here >= self.capacity:
            return ()
        likely = (self.capacity - here) // self.activation
        return self._within(likely), self._within(likely + max(1, int(self.tolerance * likely)))

    def _own_wall(self, stage: int) -> bool:
        return bool(self._fits[stage]) and bool(self._breaks[stage])

    def _ratio(self, here: int, there: int) -> float:
        """How much higher than there the wall is here."""
        if self.capacity is None or self.capacity <= max(here, there):
            return 1.0
        return (self.capacity - here) / (self.capacity - there)

    def _within(self, micro: int) -> int:
        return max(self.least, min(self.most, micro))


def _between(fits: int, breaks: int, count: int) -> list[int]:
    """Up to ``count`` numbers that cut the interval evenly, the middle one first; round ones where there is room."""
    cuts = {rounded(fits + (breaks - fits) * part // (count + 1), fits, breaks) for part in range(1, count + 1)}
    middle = (fits + breaks) / 2
    return sorted((cut for cut in cuts if fits < cut < breaks), key=lambda cut: (abs(cut - middle), cut))


def rounded(number: int, above: int, below: int) -> int:
    """The nearest multiple of the largest power of two that lies in between: kernels like even sizes."""
    number = max(number, above + 1)
    step = 1
    while 8 * step <= number:
        step *= 2
    while step > 1:
        down = number // step * step
        if above < down < below:
            return down
        step //= 2
    return number


def tuning_sizes(measured: Sequence[int], largest: int, count: int) -> tuple[int, ...]:
    """Micro-batches worth tuning other things at: up to ``count`` from the upper half, those measured first.

    Below half of what fits a GPU is seldom busy; ``num_tuning_micro_batch_sizes`` of the contract.
    """
    if largest < 1 or count < 1:
        return ()
    half = max(1, largest // 2)
    sizes = sorted({micro for micro in measured if half <= micro <= largest} | {largest})
    while len(sizes) < count:
        gaps = [(above - below, below) for below, above in pairwise([half, *sizes])]
        width, below = max(gaps)
        if width < 2:
            break
        sizes = sorted({*sizes, below + width // 2})
    return tuple(sizes[-count:])
