"""Finds the micro-batch size at which memory runs out: learns it from trials, and proposes the next size to try.

For each stage the limit lies between the largest micro-batch known to fit and the smallest known not to fit. Three
conclusions are drawn from a trial, so that others need not run out of memory again:

- if a micro-batch does not fit, a larger one does not fit either;
- if it does not fit in one stage, it does not fit in a stage whose model states are larger by at least the size of the
  first one's communication buffers, since the activations of a sample are the same in every stage;
- with capacity C, states S and activations A per sample the limit is (C - S) / A, so the limit of a stage with states
  S' is expected at (C - S') / (C - S) times that of another stage. This is only a guess where to start.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from math import ceil

from bireme.value import Value

TOLERANCE = 0.1
"""The limit is known well enough when the open interval is this part of what fits, or less."""


class StageMemory(Value):
    """What is known about a stage beforehand, in bytes per GPU.

    ``states``: the model's states; None if unknown. ``buffers``: what it may need besides states and activations
    (ZeRO's communication buckets).
    """

    states: int | None = None
    buffers: int = 0


class MicroBatchLimit(Value):
    """A stage's limit.

    ``fits``: the largest micro-batch known to fit; 0 if none. ``too_large``: the smallest known not to fit; None if
    none.
    """

    fits: int
    too_large: int | None


class LimitSearch:
    """Learns from what fitted and what did not; decides what need not be tried, and what to try next.

    Args:
        capacity: memory of a GPU in bytes; None if unknown.
        activation: memory of one sample's activations in bytes; None if unknown.
    """

    def __init__(
        self,
        stages: Mapping[int, StageMemory],
        least: int,
        most: int,
        *,
        capacity: int | None = None,
        activation: int | None = None,
    ) -> None:
        self.stages, self.least, self.most = dict(stages), least, most
        self.capacity, self.activation = capacity, activation
        self._fits: dict[int, set[int]] = {stage: set() for stage in stages}
        self._breaks: dict[int, set[int]] = {stage: set() for stage in stages}

    def tell(self, stage: int, micro: int, fits: bool) -> None:
        """Report a trial.

        Args:
            fits: whether it fitted; else it ran out of memory.
        """
        (self._fits if fits else self._breaks)[stage].add(micro)

    # -- what is known -------------------------------------------------------------------------------

    def limit(self, stage: int) -> MicroBatchLimit:
        """The limit of a stage, as known from its own trials and those of other stages."""
        fits = max(self._fits[stage], default=0)
        too_large = [micro for micro, _ in self._too_large(stage) if micro > fits]
        return MicroBatchLimit(fits, min(too_large, default=None))

    def ruled_out(self, stage: int, micro: int) -> str:
        """Why this micro-batch need not be tried in this stage, or ""."""
        if micro < self.least or micro > self.most:
            return f"micro-batch {micro} is not between {self.least} and {self.most}"
        if micro <= max(self._fits[stage], default=0):
            return ""
        states = self.stages[stage].states
        if self.capacity is not None and states is not None and states >= self.capacity:
            return f"the states of stage {stage} alone fill the memory"
        # A conclusion that contradicts a trial of this stage is ignored.
        for too_large, source in sorted(self._too_large(stage)):
            if max(self._fits[stage], default=0) < too_large <= micro:
                return f"micro-batch {too_large} ran out of memory in stage {source}"
        return ""

    def _too_large(self, stage: int) -> list[tuple[int, int]]:
        """(micro-batch that does not fit in this stage, stage whose trial showed it)."""
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

    def propose(self, stage: int, count: int = 1, pending: Collection[int] = ()) -> tuple[int, ...]:
        """The micro-batches to try next: none that is known, ruled out or pending.

        Args:
            count: how many at most.
            pending: micro-batches of this stage that are being tried.

        Returns:
            Micro-batches, the most informative first; none if the limit is known well enough.
        """
        limit = self.limit(stage)
        if limit.too_large is None:
            wanted = self._climb(stage, limit.fits, count + len(pending))
        elif limit.too_large - limit.fits <= max(1, int(TOLERANCE * limit.fits)):
            wanted = []
        else:
            wanted = _between(max(limit.fits, self.least - 1), limit.too_large, count + len(pending))
        known = self._fits[stage] | self._breaks[stage] | set(pending)
        return tuple(micro for micro in wanted if micro not in known and not self.ruled_out(stage, micro))[:count]

    def _climb(self, stage: int, fits: int, count: int) -> list[int]:
        """Without an upper limit: start at the guess from other stages or the estimate, then double."""
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
        """(a micro-batch likely to fit, one likely not to fit); empty if nothing is known.

        From the limit of the stage whose states are nearest in size, or from the memory estimate.
        """
        here = self.stages[stage].states
        if here is None:
            return ()
        others = [
            (abs(known.states - here), other, known.states)
            for other, known in self.stages.items()
            if other != stage and known.states is not None and self._is_found(other)
        ]
        if others:
            _, other, there = min(others)
            limit, ratio = self.limit(other), self._ratio(here, there)
            return self._within(int(limit.fits * ratio)), self._within(ceil((limit.too_large or 0) * ratio))
        if self.capacity is None or not self.activation or here >= self.capacity:
            return ()
        likely = (self.capacity - here) // self.activation
        return self._within(likely), self._within(likely + max(1, int(TOLERANCE * likely)))

    def _is_found(self, stage: int) -> bool:
        return bool(self._fits[stage]) and bool(self._breaks[stage])

    def _ratio(self, here: int, there: int) -> float:
        """The expected ratio of the limit here to the limit there."""
        if self.capacity is None or self.capacity <= max(here, there):
            return 1.0
        return (self.capacity - here) / (self.capacity - there)

    def _within(self, micro: int) -> int:
        return max(self.least, min(self.most, micro))


def _between(fits: int, too_large: int, count: int) -> list[int]:
    """Up to ``count`` numbers that divide the interval evenly, the middle one first; rounded if there is room."""
    cuts = {rounded(fits + (too_large - fits) * part // (count + 1), fits, too_large) for part in range(1, count + 1)}
    middle = (fits + too_large) / 2
    return sorted((cut for cut in cuts if fits < cut < too_large), key=lambda cut: (abs(cut - middle), cut))


def rounded(number: int, above: int, below: int) -> int:
    """Round to a multiple of a large power of two, since kernels are faster with such sizes.

    Args:
        above: the result is larger than this.
        below: the result is smaller than this.
    """
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
    """The micro-batches at which to tune other choices, from the upper half of what fits.

    Below half of what fits, a GPU is seldom busy.

    Args:
        measured: micro-batches that were measured; these are preferred.
        largest: the largest to consider.
        count: how many at most (``num_tuning_micro_batch_sizes``).
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
