"""Excludes configurations that cannot fit in memory, and searches for the largest micro-batch that does.

A limit is searched from below: from where an earlier memory group, the estimate or the script suggests, upwards in
growing steps, and then by bisection, as `LimitSearch` proposes. Each run is also a measurement, so the search stops
where larger micro-batches no longer help. Every answer depends only on the results told, so a resumed study continues
exactly as it would have.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from bireme.tune.deepspeed import memory, pruning
from bireme.tune.deepspeed.batch import MICRO
from bireme.tune.deepspeed.config_space import TuningSpace
from bireme.tune.deepspeed.limit_search import LimitSearch, StageMemory, rounded, tuning_sizes
from bireme.tune.deepspeed.memory_groups import MemoryGroups, without_batch
from bireme.tune.deepspeed.results import METRICS, ModelInfo
from bireme.tune.deepspeed.rounds import CompletedTrial
from bireme.tune.space.points import Point, key_of

AHEAD = 3
"""Micro-batches of a group tried at the same time: the first result may make the others needless."""


class MemoryLimits:
    """The memory limits of all groups: what is known, what to try next, what is ruled out.

    Args:
        capacity: memory of a GPU in bytes; None if unknown.
        info: what is known about the model beforehand.
    """

    def __init__(self, space: TuningSpace, groups: MemoryGroups, capacity: int | None, info: ModelInfo | None) -> None:
        self._space, self._groups, self._capacity, self._info = space, groups, capacity, info
        self._rising = METRICS[space.config.autotuning.metric].direction == "maximize"
        self._broken: dict[str, int] = {}  # the smallest micro-batch that ran out of memory, by all else of a point
        self._known: list[tuple[int, int, bool]] = []
        self._search = self._make_search()
        self._speeds: list[dict[int, float]] = [{} for _ in groups.all]
        self._limits: list[dict[int, str]] = [{} for _ in groups.all]  # what failed otherwise, and how
        self._pending: list[set[int]] = [set() for _ in groups.all]

    @property
    def knows_model(self) -> bool:
        """Whether the number of parameters is known."""
        return self._info is not None and self._info.params is not None

    # -- results --------------------------------------------------------------------------------------

    def learn(self, info: ModelInfo | None) -> None:
        """Use what the profiling run found; None: it found nothing."""
        self._info = info
        self._search = self._make_search()

    def not_even_one(self) -> None:
        """Record that the profiling run, one sample in the highest stage, ran out of memory."""
        number = next(n for n, each in enumerate(self._groups.all) if each.stage == max(self._space.stages))
        self._fits(number, 1, False)

    def tell(self, done: CompletedTrial) -> None:
        """Record the result of a trial."""
        point = done.trial.point
        number, micro = self._groups.number(point), _micro(point)
        self._pending[number].discard(micro)
        if done.out_of_memory:
            others = key_of(without_batch(point))
            self._broken[others] = min(micro, self._broken.get(others, micro))
        # Results of later phases must not change what this phase decides when the study is resumed.
        if done.trial.phase != ("limits" if self._space.micro is None else "search"):
            return
        if done.value is not None:
            speed = done.value if self._rising else 1 / done.value
            self._speeds[number][micro] = max(speed, self._speeds[number].get(micro, 0.0))
        if not self._groups.is_first(point):
            return
        if done.out_of_memory or done.value is not None:
            self._fits(number, micro, not done.out_of_memory)
        else:
            self._limits[number][micro] = done.result.cause

    def _fits(self, number: int, micro: int, fits: bool) -> None:
        self._known.append((number, micro, fits))
        self._search.tell(number, micro, fits)

    def forget(self, point: Point) -> None:
        """A pending point was not measured: it may be proposed again."""
        self._pending[self._groups.number(point)].discard(_micro(point))

    def give_up(self, point: Point) -> None:
        """A pending point cannot be run: do not propose it again in this run."""
        self.forget(point)
        self._limits[self._groups.number(point)][_micro(point)] = ""

    # -- what need not be tried ----------------------------------------------------------------------

    def ruled_out(self, point: Point) -> bool:
        """Whether a point need not be tried: it needs at least as much memory as one that ran out of memory."""
        number, micro = self._groups.number(point), _micro(point)
        broken = self._broken.get(key_of(without_batch(point)))
        if broken is not None and micro >= broken:
            return True
        if self._cannot_fit(number):
            return True
        return self._groups.is_first(point) and bool(self._search.ruled_out(number, micro))

    @property
    def skipped(self) -> tuple[str, ...]:
        """What was not tried, and why: at most one line for each group."""
        return tuple(
            f"{self._groups.all[number].title}: {reason}"
            for number in range(len(self._groups.all))
            if (reason := self._reason(number))
        )

    def _reason(self, number: int) -> str:
        hopeless = self._cannot_fit(number)
        if not hopeless and self._space.micro is None:
            hopeless = self._cannot_win(number) or self._limit_reason(number)
        if hopeless:
            return hopeless.removeprefix(f"stage {self._groups.all[number].stage} ")
        limit = self._search.limit(number)
        if limit.too_large is not None:
            return f"micro-batches of {limit.too_large} and more run out of memory"
        if self._space.micro is None and self._flat(number):
            return f"micro-batches above {max(self._speeds[number])} no longer help"
        return ""

    def _limit_reason(self, number: int) -> str:
        told = {micro: cause for micro, cause in self._limits[number].items() if cause}
        if not told:
            return ""
        micro = min(told)
        return f"micro-batch {micro}: {told[micro]}; no larger one was tried"

    # -- what to try ---------------------------------------------------------------------------------

    def propose(self) -> Point | None:
        """The next point of the search for limits, then pending; None if there is none now or all limits are known."""
        for number, pending in enumerate(self._pending):
            if len(pending) < AHEAD and not self._closed(number):
                micro = self._next(number, pending)
                point = None if micro is None else self._groups.point(number, micro)
                if micro is not None and point is not None:
                    pending.add(micro)
                    return point
            if pending:
                return None  # their results decide where the next group starts, and whether it can win
        return None

    def _closed(self, number: int) -> bool:
        """Whether a group needs no more runs."""
        return bool(self._cannot_fit(number) or self._cannot_win(number)) or self._flat(number)

    def _next(self, number: int, pending: Collection[int]) -> int | None:
        """The next micro-batch of a group; None if there is none now."""
        limit, least = self._search.limit(number), self._search.least
        failed = min(self._limits[number], default=self._search.most + 1)
        too_large = self._search.most + 1 if limit.too_large is None else limit.too_large
        top = low = max((limit.fits, *pending))
        if self._limits[number] and failed <= too_large:
            # Something else failed: bisect down to a size that works.
            wanted: tuple[int, ...] = (max(2 * top, failed // 2) if top else least,)
        elif not top:
            wanted = (self._start(number), *self._lower(number), *self._search.propose(number))
        elif limit.too_large is None:
            wanted = (self._higher(number, top, pending),)
        else:
            wanted, low = self._search.propose(number, 1, pending), limit.fits
        known = {micro for other, micro, _ in self._known if other == number} | set(pending)
        between = range(max(low + 1, least), min(too_large, failed))
        for each in wanted:
            micro = self._possible(number, each, between)
            if micro is not None and micro < failed and micro not in known and self._may(number, micro):
                return micro
        return None

    def _possible(self, number: int, micro: int, between: range) -> int | None:
        """The micro-batch, or the nearest one that the batch-size limits allow; None if there is none."""
        if self._groups.point(number, micro) is not None:
            return micro
        near = sorted(between, key=lambda size: (abs(size - micro), size))
        return next((size for size in near if self._groups.point(number, size) is not None), None)

    def _may(self, number: int, micro: int) -> bool:
        return not self._search.ruled_out(number, micro)

    def _start(self, number: int) -> int:
        """The first micro-batch of a group: where the last group ended, or by the estimate or the script."""
        least, most = self._search.least, self._search.most
        if not self._rising:
            return least  # where less is better, small micro-batches are best
        earlier = self._earlier(number)
        speeds = {} if earlier is None else self._speeds[earlier]
        guess = self._search.guess(number)
        if pruning.flat(speeds):
            start = (
                pruning.below_top(speeds) or least
            )  # and then twice that: to see that here, too, more brings nothing
        elif number and not self._search.limit(number - 1).fits:
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

    def _lower(self, number: int) -> tuple[int, ...]:
        """A size just below the first one, if only that did not fit, since the starting point was probably close."""
        broken = self._told(number, fits=False)
        return (rounded(broken[0] * 7 // 8, 0, broken[0]),) if len(broken) == 1 and broken[0] > 1 else ()

    def _higher(self, number: int, top: int, pending: Collection[int]) -> int:
        """The next larger size while no upper limit is known: at the likely limit, then in growing steps."""
        guess, earlier = self._search.guess(number), self._earlier(number)
        likely = guess[1] if guess else None
        if earlier is not None and pruning.flat(self._speeds[earlier]):
            likely = max(self._speeds[earlier])  # to see whether larger sizes help here
        elif earlier is not None and not guess:
            likely = self._search.limit(earlier).too_large
        below = max((size for size in (*self._told(number, fits=True), *pending) if size < top), default=0)
        if likely is not None:
            higher = likely if top < likely else top + 2 * (top - below)
            return min(higher, 2 * top, self._search.most)
        return min(2 * top, self._search.most)

    def _told(self, number: int, *, fits: bool) -> tuple[int, ...]:
        """The micro-batches of a group that fitted, or that did not."""
        return tuple(micro for other, micro, fitted in self._known if other == number and fitted == fits)

    # -- what a group can still gain ------------------------------------------------------------------

    def _flat(self, number: int) -> bool:
        """Whether larger micro-batches no longer help, although they fit."""
        return pruning.flat(self._speeds[number])

    def _cannot_fit(self, number: int) -> str:
        if self._capacity is None or self._info is None:
            return ""
        return memory.cannot_fit(self._info, self._groups.all[number].layout, self._capacity)

    def _cannot_win(self, number: int) -> str:
        if self._speeds[number]:
            return ""
        group, plain = self._groups.all[number], self._plain()
        if group.offloads and plain[group.stage] != number and self._flat(plain[group.stage]):
            return "memory is not the limit without offloading, which could only cost speed"
        too_large = self._search.limit(number).too_large
        largest = {} if too_large is None else {group.stage: too_large - 1}
        return pruning.cannot_win(group.stage, {stage: self._speeds[n] for stage, n in plain.items()}, largest)

    def _plain(self) -> dict[int, int]:
        """For each stage its first group, preferably one that offloads nothing."""
        plain: dict[int, int] = {}
        for number, _ in sorted(enumerate(self._groups.all), key=lambda each: each[1].offloads):
            plain.setdefault(self._groups.all[number].stage, number)
        return plain

    def in_reach(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield (group, micro-batches at which to tune its other choices), the fastest group first.

        Only groups that may still win: if nothing but batch sizes varies, those within noise of the best.
        """
        count = self._space.config.autotuning.num_tuning_micro_batch_sizes
        best = max((max(speeds.values()) for speeds in self._speeds if speeds), default=0.0)
        numbers = [number for number, speeds in enumerate(self._speeds) if speeds]
        for number in sorted(numbers, key=lambda n: -max(self._speeds[n].values())):
            speeds = self._speeds[number]
            leeway = pruning.LEEWAY if self._groups.varies(number) else pruning.PLATEAU
            if max(speeds.values()) < best * (1 - leeway):
                continue
            fastest = sorted(speeds, key=lambda micro: (-speeds[micro], micro))
            found = self._space.micro is None
            yield number, tuning_sizes(sorted(speeds), fastest[0], count) if found else tuple(sorted(fastest[:count]))

    # -- inside --------------------------------------------------------------------------------------

    def _make_search(self) -> LimitSearch:
        given = self._space.micro
        search = LimitSearch(
            {number: self._stage(number) for number in range(len(self._groups.all))},
            min(given) if given else self._least(),
            max(given) if given else self._space.batch.most,
            capacity=self._capacity,
            activation=None if self._info is None else self._info.activation,
        )
        for number, micro, fits in self._known:
            search.tell(number, micro, fits)
        return search

    def _least(self) -> int:
        """The smallest micro-batch that ``min_train_batch_size`` allows."""
        batch = self._space.batch
        sizes = range(batch.least, batch.most + 1)
        return next((size for size in sizes if self._groups.point(0, size) is not None), batch.least)

    def _stage(self, number: int) -> StageMemory:
        if self._info is None:
            return StageMemory()
        layout = self._groups.all[number].layout
        states = memory.states(self._info, layout)
        return StageMemory(None if states is None else states.total, memory.buckets(self._space.config.data, layout))


def _micro(point: Point) -> int:
    micro = point[MICRO]
    assert isinstance(micro, int)
    return micro
