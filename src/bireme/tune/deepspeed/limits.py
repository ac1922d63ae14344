"""Which micro-batches fit in memory, which stages can still win, and which micro-batch to try next.

For each memory group (`bireme.tune.deepspeed.memory`) the limit lies between the largest micro-batch known to fit and
the smallest known not to fit. Three conclusions are drawn from a trial, so that others need not run out of memory:

- if a micro-batch does not fit, a larger one does not fit either;
- if it does not fit in one group, it does not fit in a group whose model states are larger by at least the size of the
  first one's communication buffers, since the activations of a sample are the same everywhere;
- with capacity C, states S and activations A per sample the limit is (C - S) / A, so the limit of a group with states
  S' is expected at (C - S') / (C - S) times that of another group. This is only a guess where to start.

A limit is searched from below: from where an earlier group, the estimate or the script suggests, upwards in growing
steps, and then by bisection. Each run is also a measurement, so the search stops where larger micro-batches no longer
help. Everything depends only on the trials that have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import ceil

from bireme.tune.deepspeed import memory
from bireme.tune.deepspeed.memory import MemoryGroups, without_batch
from bireme.tune.deepspeed.results import METRICS, ModelInfo
from bireme.tune.deepspeed.space import MICRO, TuningSpace
from bireme.tune.space.points import Point, key_of
from bireme.tune.study.trial import FinishedTrial

TOLERANCE = 0.1
"""The limit is known well enough when the open interval is this part of what fits, or less."""


class GroupLimit:
    """What is known about the limit of a memory group, and how fast it is.

    Attributes:
        states: bytes per GPU of the model's states; None if unknown.
        buffers: bytes that it may need besides states and activations (ZeRO's communication buckets).
        fits, breaks: the micro-batches that fitted, and those that ran out of memory.
        failed: those that failed otherwise, and how.
        speeds: what was measured, by micro-batch; more is better.
    """

    def __init__(self, states: int | None = None, buffers: int = 0) -> None:
        self.states, self.buffers = states, buffers
        self.fits, self.breaks = list[int](), list[int]()
        self.failed, self.speeds = dict[int, str](), dict[int, float]()

    @property
    def largest(self) -> int:
        """The largest micro-batch known to fit; 0 if none is."""
        return max(self.fits, default=0)

    def needs_no_less(self, other: GroupLimit) -> bool:
        """Whether what does not fit there does not fit here."""
        if self is other:
            return True
        return None not in (self.states, other.states) and self.states >= other.states + other.buffers  # type: ignore[operator]  # both are known


class Limits:
    """The limits of some groups, and what follows from what is known of them.

    Args:
        least, most: the smallest and the largest micro-batch.
        capacity: memory of a GPU in bytes; None if unknown.
        activation: memory of one sample's activations in bytes; None if unknown.
    """

    def __init__(
        self,
        groups: Sequence[GroupLimit],
        least: int,
        most: int,
        *,
        capacity: int | None = None,
        activation: int | None = None,
    ) -> None:
        self.groups, self.least, self.most = groups, least, most
        self.capacity, self._activation = capacity, activation

    def too_large(self, group: GroupLimit) -> int | None:
        """The smallest micro-batch known not to fit, also by trials of other groups; None if none is."""
        # A conclusion that contradicts a trial of this group is ignored.
        broken = (min(each.breaks) for each in self.groups if each.breaks and group.needs_no_less(each))
        return min((micro for micro in broken if micro > group.largest), default=None)

    def ruled_out(self, group: GroupLimit, micro: int) -> bool:
        """Whether this micro-batch need not be tried in this group."""
        if not self.least <= micro <= self.most:
            return True
        full = self.capacity is not None and group.states is not None and group.states >= self.capacity
        too_large = self.too_large(group)
        return micro > group.largest and (full or (too_large is not None and micro >= too_large))

    def between(self, group: GroupLimit, pending: Collection[int] = ()) -> int | None:
        """The micro-batch that halves what is open below the limit, or divides it further; None if it is known well."""
        largest, too_large = group.largest, self.too_large(group)
        if too_large is None or too_large - largest <= max(1, int(TOLERANCE * largest)):
            return None
        known = {*group.fits, *group.breaks, *pending}
        cuts = _between(max(largest, self.least - 1), too_large, 1 + len(pending))
        return next((cut for cut in cuts if cut not in known and not self.ruled_out(group, cut)), None)

    def guess(self, group: GroupLimit) -> tuple[int, int] | None:
        """(a micro-batch likely to fit, one likely not to fit); None if nothing is known.

        From the limit of the group whose states are nearest in size, or from the memory estimate.
        """
        here, capacity = group.states, self.capacity
        if here is None:
            return None
        others = [
            (abs(each.states - here), number, each.states)
            for number, each in enumerate(self.groups)
            if each is not group and each.states is not None and each.fits and each.breaks
        ]
        if others:
            _, number, there = min(others)
            full = capacity is None or capacity <= max(here, there)
            ratio = 1.0 if full or capacity is None else (capacity - here) / (capacity - there)
            near = self.groups[number]
            return self._within(int(near.largest * ratio)), self._within(ceil((self.too_large(near) or 0) * ratio))
        if capacity is None or not self._activation or here >= capacity:
            return None
        likely = (capacity - here) // self._activation
        return self._within(likely), self._within(likely + max(1, int(TOLERANCE * likely)))

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


# -- which stages can still win ------------------------------------------------------------------------

PLATEAU = 0.05
"""A smaller relative gain counts as none (``METRIC_PERCENT_DIFF_CONST`` of DeepSpeed)."""

APART = 1.5
"""Two micro-batches whose ratio is smaller than this do not show whether larger ones help."""

LEEWAY = 0.25
"""The most that choices other than micro-batch and stage are assumed to gain. The largest published gain over
hand-tuned configurations is 1.22 (GPT2-large, in DeepSpeed's autotuning tutorial)."""

Costs = Mapping[int, Mapping[int, float]]
"""Measurements: stage → micro-batch → speed (more is better)."""


def cannot_win(stage: int, speeds: Costs, largest: Mapping[int, int]) -> str:
    """Why this stage can no longer win; "" if it may.

    Args:
        speeds: measurements of the other stages; more is better.
        largest: the largest micro-batch that fits in a stage, if known.
    """
    below = sorted(other for other in speeds if other < stage and speeds[other])
    if not below:
        return ""
    limit = largest.get(stage)
    for other in below:
        best = max(speeds[other], key=lambda micro: speeds[other][micro])
        if limit is not None and limit < best:
            return f"stage {other} is fastest at micro-batch {best}, and stage {stage} holds at most {limit}"
    if len(below) >= 2 and _slower(speeds[below[-1]], speeds[below[-2]]) and flat(speeds[below[-2]]):
        return f"stage {below[-1]} was slower than stage {below[-2]}, and larger micro-batches no longer help"
    return ""


def _slower(one: Mapping[int, float], other: Mapping[int, float]) -> bool:
    """Whether ``one`` is clearly slower at every micro-batch at which both were measured."""
    common = set(one) & set(other)
    return bool(common) and all(one[micro] < other[micro] * (1 - PLATEAU) for micro in common)


def flat(speeds: Mapping[int, float]) -> bool:
    """Whether the last increase of the micro-batch gained nothing."""
    below = below_top(speeds)
    return below is not None and speeds[max(speeds)] < speeds[below] * (1 + PLATEAU)


def below_top(speeds: Mapping[int, float]) -> int | None:
    """The micro-batch to compare the largest one with; None if there is none."""
    return max((size for size in speeds if size * APART <= max(speeds)), default=None)


# -- all groups ------------------------------------------------------------------------------------------

AHEAD = 3
"""Micro-batches of a group tried at the same time: the first result may make the others needless."""


class MemoryLimits(Limits):
    """The memory limits of all groups: what is known, what to try next, what is ruled out.

    Args:
        capacity: memory of a GPU in bytes; None if unknown.
        info: what is known about the model.
        finished: the trials of points that have ended.
        speed: of a trial, more is better; None: it has none.
    """

    def __init__(
        self,
        space: TuningSpace,
        groups: MemoryGroups,
        capacity: int | None,
        info: ModelInfo | None,
        finished: Iterable[FinishedTrial] = (),
        speed: Callable[[FinishedTrial], float | None] = lambda _: None,
    ) -> None:
        self._space, self._groups, self._info, self._searched = space, groups, info, space.micro is None
        batch, config = space.batch, space.config.data
        # The smallest micro-batch that min_train_batch_size allows.
        sizes = space.micro or (size for size in range(batch.least, batch.most + 1) if groups.point(0, size))
        super().__init__(
            [
                GroupLimit(memory.states(info, each.layout), memory.buckets(config, each.layout))
                if info
                else GroupLimit()
                for each in groups.all
            ],
            min(sizes) if space.micro else next(iter(sizes), batch.least),
            max(space.micro) if space.micro else batch.most,
            capacity=capacity,
            activation=info.activation if info else None,
        )
        self._broken: dict[str, int] = {}  # the smallest micro-batch that ran out of memory, by all else of a point
        for done in finished:
            self._tell(done, speed(done))

    def _tell(self, done: FinishedTrial, speed: float | None) -> None:
        point, out_of_memory = done.trial.point, done.result.cause == "out of memory"
        if done.trial.phase == "profile":  # one sample in the highest stage
            if out_of_memory:
                highest = max(self._space.stages)
                number = next(number for number, each in enumerate(self._groups.all) if each.stage == highest)
                self.groups[number].breaks.append(1)
            return
        group, micro = self.groups[self._groups.number(point)], _micro(point)
        if out_of_memory:
            others = key_of(without_batch(point))
            self._broken[others] = min(micro, self._broken.get(others, micro))
        # Results of later phases must not change what this phase decides when the study is resumed.
        if done.trial.phase != ("limits" if self._searched else "search"):
            return
        if speed is not None:
            group.speeds[micro] = max(speed, group.speeds.get(micro, 0.0))
        if not self._groups.is_first(point):
            return
        if out_of_memory or speed is not None:
            (group.breaks if out_of_memory else group.fits).append(micro)
        else:
            group.failed[micro] = "" if done.result.cause == "infrastructure" else done.result.cause

    # -- what need not be tried ----------------------------------------------------------------------

    def rules_out(self, point: Point) -> bool:
        """Whether a point need not be tried: it needs at least as much memory as one that ran out of memory."""
        number, micro = self._groups.number(point), _micro(point)
        broken = self._broken.get(key_of(without_batch(point)))
        if (broken is not None and micro >= broken) or self._cannot_fit(number):
            return True
        return self._groups.is_first(point) and self.ruled_out(self.groups[number], micro)

    @property
    def skipped(self) -> tuple[str, ...]:
        """What was not tried, and why: at most one line for each group."""
        reasons = ((each.title, self._reason(number)) for number, each in enumerate(self._groups.all))
        return tuple(f"{title}: {reason}" for title, reason in reasons if reason)

    def _reason(self, number: int) -> str:
        group, hopeless = self.groups[number], self._cannot_fit(number)
        if not hopeless and self._searched:
            told = [(micro, cause) for micro, cause in group.failed.items() if cause]
            failed = "micro-batch {}: {}; no larger one was tried".format(*min(told)) if told else ""
            hopeless = self._cannot_win(number) or failed
        if hopeless:
            return hopeless.removeprefix(f"stage {self._groups.all[number].stage} ")
        if (too_large := self.too_large(group)) is not None:
            return f"micro-batches of {too_large} and more run out of memory"
        if self._searched and flat(group.speeds):
            return f"micro-batches above {max(group.speeds)} no longer help"
        return ""

    # -- what to try ---------------------------------------------------------------------------------

    def propose(self, pending: Iterable[Point] = ()) -> Point | None:
        """The next point of the search for limits; None if there is none now, or all limits are known.

        Args:
            pending: the points of this search that run now.
        """
        running: list[set[int]] = [set() for _ in self.groups]
        for each in pending:
            running[self._groups.number(each)].add(_micro(each))
        for number, sizes in enumerate(running):
            closed = self._cannot_fit(number) or self._cannot_win(number) or flat(self.groups[number].speeds)
            if len(sizes) < AHEAD and not closed and (micro := self._next(number, sizes)) is not None:
                return self._groups.point(number, micro)
            if sizes:
                return None  # their results decide where the next group starts, and whether it can win
        return None

    def _next(self, number: int, pending: Collection[int]) -> int | None:
        """The next micro-batch of a group; None if there is none now."""
        group, most = self.groups[number], self.most
        failed, too_large = min(group.failed, default=most + 1), self.too_large(group) or most + 1
        top = low = max((group.largest, *pending))
        wanted: tuple[int | None, ...]
        if group.failed and failed <= too_large:
            # Something else failed: bisect down to a size that works.
            wanted = (max(2 * top, failed // 2) if top else self.least,)
        elif not top:
            # If only the first one did not fit, a size just below, since the starting point was probably close.
            first = group.breaks[0] if len(group.breaks) == 1 and group.breaks[0] > 1 else None
            wanted = (self._start(number), first and rounded(first * 7 // 8, 0, first), self.between(group))
        elif too_large > most:
            wanted = (self._higher(number, top, pending),)
        else:
            wanted, low = (self.between(group, pending),), group.largest
        tried = {*group.fits, *group.breaks, *pending}
        between = range(max(low + 1, self.least), min(too_large, failed))
        for each in wanted:
            micro = None if each is None else self._possible(number, each, between)
            if micro is not None and micro < failed and micro not in tried and not self.ruled_out(group, micro):
                return micro
        return None

    def _possible(self, number: int, micro: int, between: range) -> int | None:
        """The micro-batch, or the nearest one that the batch-size limits allow; None if there is none."""
        near = (micro, *sorted(between, key=lambda size: (abs(size - micro), size)))
        return next((size for size in near if self._groups.point(number, size) is not None), None)

    def _start(self, number: int) -> int:
        """The first micro-batch of a group: where the last group ended, or by the estimate or the script."""
        if METRICS[self._space.config.autotuning.metric].direction == "minimize":
            return self.least  # where less is better, small micro-batches are best
        speeds, guess = self._earlier(number).speeds, self.guess(self.groups[number])
        if flat(speeds):
            start = below_top(speeds) or self.least  # and then twice that: to see that here, too, more brings nothing
        elif number and not self.groups[number - 1].fits:
            start = self.least  # the group before did not fit even that
        elif guess:
            start = guess[0]
        elif speeds:
            start = max(speeds)
        else:
            start = self._space.batch.start or self.least
        return self._within(start)

    def _earlier(self, number: int) -> GroupLimit:
        """The group from which this one learns: the last that works, preferably with the same choices; else none."""
        works = [other for other in range(number) if self.groups[other].speeds]
        alike = [other for other in works if self._groups.all[other].fixed == self._groups.all[number].fixed]
        return self.groups[max(alike or works)] if works else GroupLimit()

    def _higher(self, number: int, top: int, pending: Collection[int]) -> int:
        """The next larger size while no upper limit is known: at the likely limit, then in growing steps."""
        group, earlier = self.groups[number], self._earlier(number)
        guess = self.guess(group)
        likely = guess[1] if guess else None
        if flat(earlier.speeds):
            likely = max(earlier.speeds)  # to see whether larger sizes help here
        elif earlier.speeds and not guess:
            likely = self.too_large(earlier)
        below = max((size for size in (*group.fits, *pending) if size < top), default=0)
        higher = 2 * top if likely is None else likely if top < likely else top + 2 * (top - below)
        return min(higher, 2 * top, self.most)

    # -- what a group can still gain ------------------------------------------------------------------

    def _cannot_fit(self, number: int) -> str:
        if self.capacity is None or self._info is None:
            return ""
        return memory.cannot_fit(self._info, self._groups.all[number].layout, self.capacity)

    def _cannot_win(self, number: int) -> str:
        here = self.groups[number]
        if here.speeds:
            return ""
        group, plain = self._groups.all[number], dict[int, GroupLimit]()
        for other, limit in sorted(zip(self._groups.all, self.groups, strict=True), key=lambda each: each[0].offloads):
            plain.setdefault(other.stage, limit)  # one that offloads nothing, if there is one
        if group.offloads and plain[group.stage] is not here and flat(plain[group.stage].speeds):
            return "memory is not the limit without offloading, which could only cost speed"
        too_large = self.too_large(here)
        largest = {} if too_large is None else {group.stage: too_large - 1}
        return cannot_win(group.stage, {stage: each.speeds for stage, each in plain.items()}, largest)

    def in_reach(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield (group, micro-batches at which to tune its other choices), the fastest group first.

        Only groups that may still win: if nothing but batch sizes varies, those within noise of the best.
        """
        count = self._space.config.autotuning.num_tuning_micro_batch_sizes
        tops = {number: max(each.speeds.values()) for number, each in enumerate(self.groups) if each.speeds}
        for number in sorted(tops, key=lambda each: -tops[each]):
            speeds = self.groups[number].speeds
            leeway = LEEWAY if self._groups.varies(number) else PLATEAU
            if tops[number] >= max(tops.values()) * (1 - leeway):
                fastest = sorted(speeds, key=lambda micro: (-speeds[micro], micro))
                sizes = tuning_sizes(sorted(speeds), fastest[0], count) if self._searched else sorted(fastest[:count])
                yield number, tuple(sizes)


def _micro(point: Point) -> int:
    micro = point[MICRO]
    assert isinstance(micro, int)
    return micro
