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
from bireme.value import Value

TOLERANCE = 0.1
"""The limit is known well enough when the open interval is this part of what fits, or less."""


class GroupMemory(Value):
    """What is known about a group beforehand, in bytes per GPU.

    ``states``: the model's states; None if unknown. ``buffers``: what it may need besides states and activations
    (ZeRO's communication buckets).
    """

    states: int | None = None
    buffers: int = 0


class KnownLimits:
    """What fitted and what did not, by the number of a group; and what follows from it.

    Args:
        least, most: the smallest and the largest micro-batch.
        capacity: memory of a GPU in bytes; None if unknown.
        activation: memory of one sample's activations in bytes; None if unknown.
    """

    def __init__(
        self,
        groups: Sequence[GroupMemory],
        least: int,
        most: int,
        *,
        capacity: int | None = None,
        activation: int | None = None,
    ) -> None:
        self._groups, self.least, self.most = groups, least, most
        self._capacity, self._activation = capacity, activation
        self._fits: list[list[int]] = [[] for _ in groups]
        self._breaks: list[list[int]] = [[] for _ in groups]

    def tell(self, group: int, micro: int, *, fits: bool) -> None:
        """Note that a micro-batch fitted, or that it ran out of memory."""
        (self._fits if fits else self._breaks)[group].append(micro)

    def fitted(self, group: int) -> Sequence[int]:
        """The micro-batches of a group that fitted."""
        return self._fits[group]

    def broken(self, group: int) -> Sequence[int]:
        """Those that ran out of memory."""
        return self._breaks[group]

    def fits(self, group: int) -> int:
        """The largest micro-batch known to fit; 0 if none is."""
        return max(self._fits[group], default=0)

    def too_large(self, group: int) -> int | None:
        """The smallest one known not to fit, also by trials of other groups; None if none is."""
        # A conclusion that contradicts a trial of this group is ignored.
        return min((micro for micro, _ in self._conclusions(group) if micro > self.fits(group)), default=None)

    def ruled_out(self, group: int, micro: int) -> str:
        """Why this micro-batch need not be tried in this group, or ""."""
        if not self.least <= micro <= self.most:
            return f"micro-batch {micro} is not between {self.least} and {self.most}"
        if micro <= self.fits(group):
            return ""
        states = self._groups[group].states
        if self._capacity is not None and states is not None and states >= self._capacity:
            return f"the states of group {group} alone fill the memory"
        for too_large, source in sorted(self._conclusions(group)):
            if self.fits(group) < too_large <= micro:
                return f"micro-batch {too_large} ran out of memory in group {source}"
        return ""

    def _conclusions(self, group: int) -> list[tuple[int, int]]:
        """(micro-batch that does not fit in this group, group whose trial showed it)."""
        return [
            (min(broken), other)
            for other, broken in enumerate(self._breaks)
            if broken and (other == group or self._needs_no_less(group, other))
        ]

    def _needs_no_less(self, group: int, other: int) -> bool:
        here, there = self._groups[group], self._groups[other]
        if here.states is None or there.states is None:
            return False
        return here.states >= there.states + there.buffers

    def between(self, group: int, pending: Collection[int] = ()) -> int | None:
        """The micro-batch that halves what is open below the limit, or divides it further; None if it is known well."""
        fits, too_large = self.fits(group), self.too_large(group)
        if too_large is None or too_large - fits <= max(1, int(TOLERANCE * fits)):
            return None
        known = {*self._fits[group], *self._breaks[group], *pending}
        cuts = _between(max(fits, self.least - 1), too_large, 1 + len(pending))
        return next((cut for cut in cuts if cut not in known and not self.ruled_out(group, cut)), None)

    def guess(self, group: int) -> tuple[int, int] | None:
        """(a micro-batch likely to fit, one likely not to fit); None if nothing is known.

        From the limit of the group whose states are nearest in size, or from the memory estimate.
        """
        here = self._groups[group].states
        if here is None:
            return None
        others = [
            (abs(known.states - here), other, known.states)
            for other, known in enumerate(self._groups)
            if other != group and known.states is not None and self._fits[other] and self._breaks[other]
        ]
        if others:
            _, other, there = min(others)
            ratio = self._ratio(here, there)
            return self._within(int(self.fits(other) * ratio)), self._within(ceil((self.too_large(other) or 0) * ratio))
        if self._capacity is None or not self._activation or here >= self._capacity:
            return None
        likely = (self._capacity - here) // self._activation
        return self._within(likely), self._within(likely + max(1, int(TOLERANCE * likely)))

    def _ratio(self, here: int, there: int) -> float:
        """The expected ratio of the limit here to the limit there."""
        if self._capacity is None or self._capacity <= max(here, there):
            return 1.0
        return (self._capacity - here) / (self._capacity - there)

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


class MemoryLimits:
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
        self._space, self._groups, self._capacity, self._info = space, groups, capacity, info
        self._numbers = range(len(groups.all))
        self._broken: dict[str, int] = {}  # the smallest micro-batch that ran out of memory, by all else of a point
        self._speeds: list[dict[int, float]] = [{} for _ in groups.all]
        self._failed: list[dict[int, str]] = [{} for _ in groups.all]  # what failed otherwise, and how
        self._known = KnownLimits(
            list(map(self._memory, self._numbers)),
            min(space.micro) if space.micro else self._least(),
            max(space.micro) if space.micro else space.batch.most,
            capacity=capacity,
            activation=None if info is None else info.activation,
        )
        for done in finished:
            self._tell(done, speed(done))

    def _least(self) -> int:
        """The smallest micro-batch that ``min_train_batch_size`` allows."""
        batch = self._space.batch
        sizes = range(batch.least, batch.most + 1)
        return next((size for size in sizes if self._groups.point(0, size) is not None), batch.least)

    def _memory(self, number: int) -> GroupMemory:
        if self._info is None:
            return GroupMemory()
        layout = self._groups.all[number].layout
        return GroupMemory(memory.states(self._info, layout), memory.buckets(self._space.config.data, layout))

    def _tell(self, done: FinishedTrial, speed: float | None) -> None:
        point, out_of_memory = done.trial.point, done.result.cause == "out of memory"
        if done.trial.phase == "profile":  # one sample in the highest stage
            if out_of_memory:
                highest = max(self._space.stages)
                number = next(number for number in self._numbers if self._groups.all[number].stage == highest)
                self._known.tell(number, 1, fits=False)
            return
        number, micro = self._groups.number(point), _micro(point)
        if out_of_memory:
            others = key_of(without_batch(point))
            self._broken[others] = min(micro, self._broken.get(others, micro))
        # Results of later phases must not change what this phase decides when the study is resumed.
        if done.trial.phase != ("limits" if self._space.micro is None else "search"):
            return
        if speed is not None:
            self._speeds[number][micro] = max(speed, self._speeds[number].get(micro, 0.0))
        if not self._groups.is_first(point):
            return
        if out_of_memory or speed is not None:
            self._known.tell(number, micro, fits=not out_of_memory)
        else:
            self._failed[number][micro] = "" if done.result.cause == "infrastructure" else done.result.cause

    # -- what need not be tried ----------------------------------------------------------------------

    def ruled_out(self, point: Point) -> bool:
        """Whether a point need not be tried: it needs at least as much memory as one that ran out of memory."""
        number, micro = self._groups.number(point), _micro(point)
        broken = self._broken.get(key_of(without_batch(point)))
        if (broken is not None and micro >= broken) or self._cannot_fit(number):
            return True
        return self._groups.is_first(point) and bool(self._known.ruled_out(number, micro))

    @property
    def skipped(self) -> tuple[str, ...]:
        """What was not tried, and why: at most one line for each group."""
        reasons = ((self._groups.all[number].title, self._reason(number)) for number in self._numbers)
        return tuple(f"{title}: {reason}" for title, reason in reasons if reason)

    def _reason(self, number: int) -> str:
        searched = self._space.micro is None
        hopeless = self._cannot_fit(number)
        if not hopeless and searched:
            told = [(micro, cause) for micro, cause in self._failed[number].items() if cause]
            failed = "micro-batch {}: {}; no larger one was tried".format(*min(told)) if told else ""
            hopeless = self._cannot_win(number) or failed
        if hopeless:
            return hopeless.removeprefix(f"stage {self._groups.all[number].stage} ")
        if (too_large := self._known.too_large(number)) is not None:
            return f"micro-batches of {too_large} and more run out of memory"
        if searched and flat(self._speeds[number]):
            return f"micro-batches above {max(self._speeds[number])} no longer help"
        return ""

    # -- what to try ---------------------------------------------------------------------------------

    def propose(self, pending: Iterable[Point] = ()) -> Point | None:
        """The next point of the search for limits; None if there is none now, or all limits are known.

        Args:
            pending: the points of this search that run now.
        """
        running: list[set[int]] = [set() for _ in self._numbers]
        for each in pending:
            running[self._groups.number(each)].add(_micro(each))
        for number, sizes in enumerate(running):
            closed = self._cannot_fit(number) or self._cannot_win(number) or flat(self._speeds[number])
            if len(sizes) < AHEAD and not closed and (micro := self._next(number, sizes)) is not None:
                return self._groups.point(number, micro)
            if sizes:
                return None  # their results decide where the next group starts, and whether it can win
        return None

    def _next(self, number: int, pending: Collection[int]) -> int | None:
        """The next micro-batch of a group; None if there is none now."""
        fits, least, most = self._known.fits(number), self._known.least, self._known.most
        failed = min(self._failed[number], default=most + 1)
        too_large = self._known.too_large(number) or most + 1
        top = low = max((fits, *pending))
        wanted: tuple[int | None, ...]
        if self._failed[number] and failed <= too_large:
            # Something else failed: bisect down to a size that works.
            wanted = (max(2 * top, failed // 2) if top else least,)
        elif not top:
            wanted = (self._start(number), self._lower(number), self._known.between(number))
        elif too_large > most:
            wanted = (self._higher(number, top, pending),)
        else:
            wanted, low = (self._known.between(number, pending),), fits
        tried = {*self._known.fitted(number), *self._known.broken(number), *pending}
        between = range(max(low + 1, least), min(too_large, failed))
        for each in wanted:
            micro = None if each is None else self._possible(number, each, between)
            if micro is not None and micro < failed and micro not in tried and not self._known.ruled_out(number, micro):
                return micro
        return None

    def _possible(self, number: int, micro: int, between: range) -> int | None:
        """The micro-batch, or the nearest one that the batch-size limits allow; None if there is none."""
        near = (micro, *sorted(between, key=lambda size: (abs(size - micro), size)))
        return next((size for size in near if self._groups.point(number, size) is not None), None)

    def _start(self, number: int) -> int:
        """The first micro-batch of a group: where the last group ended, or by the estimate or the script."""
        least, most = self._known.least, self._known.most
        if METRICS[self._space.config.autotuning.metric].direction == "minimize":
            return least  # where less is better, small micro-batches are best
        earlier = self._earlier(number)
        speeds = {} if earlier is None else self._speeds[earlier]
        guess = self._known.guess(number)
        if flat(speeds):
            start = below_top(speeds) or least  # and then twice that: to see that here, too, more brings nothing
        elif number and not self._known.fits(number - 1):
            start = least  # the group before did not fit even that
        elif guess:
            start = guess[0]
        elif speeds:
            start = max(speeds)
        else:
            start = self._space.batch.start or least
        return max(least, min(most, start))

    def _earlier(self, number: int) -> int | None:
        """The group from which this one learns: the last that works, preferably with the same choices; None if none."""
        works = [other for other in range(number) if self._speeds[other]]
        fixed = self._groups.all[number].fixed
        alike = [other for other in works if self._groups.all[other].fixed == fixed]
        return max(alike or works, default=None)

    def _lower(self, number: int) -> int | None:
        """A size just below the first one, if only that did not fit, since the starting point was probably close."""
        broken = self._known.broken(number)
        return rounded(broken[0] * 7 // 8, 0, broken[0]) if len(broken) == 1 and broken[0] > 1 else None

    def _higher(self, number: int, top: int, pending: Collection[int]) -> int:
        """The next larger size while no upper limit is known: at the likely limit, then in growing steps."""
        guess, earlier = self._known.guess(number), self._earlier(number)
        likely = guess[1] if guess else None
        if earlier is not None and flat(self._speeds[earlier]):
            likely = max(self._speeds[earlier])  # to see whether larger sizes help here
        elif earlier is not None and not guess:
            likely = self._known.too_large(earlier)
        below = max((size for size in (*self._known.fitted(number), *pending) if size < top), default=0)
        higher = 2 * top if likely is None else likely if top < likely else top + 2 * (top - below)
        return min(higher, 2 * top, self._known.most)

    # -- what a group can still gain ------------------------------------------------------------------

    def _cannot_fit(self, number: int) -> str:
        if self._capacity is None or self._info is None:
            return ""
        return memory.cannot_fit(self._info, self._groups.all[number].layout, self._capacity)

    def _cannot_win(self, number: int) -> str:
        if self._speeds[number]:
            return ""
        group, plain = self._groups.all[number], dict[int, int]()
        for other in sorted(self._numbers, key=lambda each: self._groups.all[each].offloads):
            plain.setdefault(self._groups.all[other].stage, other)  # one that offloads nothing, if there is one
        if group.offloads and plain[group.stage] != number and flat(self._speeds[plain[group.stage]]):
            return "memory is not the limit without offloading, which could only cost speed"
        too_large = self._known.too_large(number)
        largest = {} if too_large is None else {group.stage: too_large - 1}
        return cannot_win(group.stage, {stage: self._speeds[n] for stage, n in plain.items()}, largest)

    def in_reach(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield (group, micro-batches at which to tune its other choices), the fastest group first.

        Only groups that may still win: if nothing but batch sizes varies, those within noise of the best.
        """
        count = self._space.config.autotuning.num_tuning_micro_batch_sizes
        best = max((max(speeds.values()) for speeds in self._speeds if speeds), default=0.0)
        numbers = [number for number in self._numbers if self._speeds[number]]
        for number in sorted(numbers, key=lambda n: -max(self._speeds[n].values())):
            speeds = self._speeds[number]
            leeway = LEEWAY if self._groups.varies(number) else PLATEAU
            if max(speeds.values()) < best * (1 - leeway):
                continue
            fastest = sorted(speeds, key=lambda micro: (-speeds[micro], micro))
            found = self._space.micro is None
            yield number, tuning_sizes(sorted(speeds), fastest[0], count) if found else tuple(sorted(fastest[:count]))


def _micro(point: Point) -> int:
    micro = point[MICRO]
    assert isinstance(micro, int)
    return micro
