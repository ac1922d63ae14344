"""What memory allows, stage by stage: what cannot fit is not tried, and where micro-batches are to be found, they are.

Between `Boundary`, which knows micro-batches, and points, which have more in them than that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from bireme.tune.deepspeed import memory, stages
from bireme.tune.deepspeed.batch import GAS, MICRO
from bireme.tune.deepspeed.boundary import Boundary, Stage, tuning_sizes
from bireme.tune.deepspeed.results import METRICS, ModelInfo
from bireme.tune.deepspeed.space import STAGE, ZERO, TuningSpace
from bireme.tune.ending import Ending
from bireme.tune.space import Point, key_of

_BUCKET = 500_000_000
"""Elements of a communication bucket, where the configuration does not say (DeepSpeed's ``zero/config.py``)."""


class Told(Protocol):
    """How a point ended, and its figure."""

    @property
    def ending(self) -> Ending:
        """How it ended."""

    @property
    def value(self) -> float | None:
        """Its figure in the study's metric."""


class Walls:
    """What is known of memory.

    Args:
        space: what may be tried.
        world: ranks of an experiment.
        capacity: memory of a GPU in bytes; None: not known.
        info: what is known of the model beforehand.
    """

    def __init__(self, space: TuningSpace, world: int, capacity: int | None, info: ModelInfo | None) -> None:
        self._space, self._world, self._capacity = space, world, capacity
        self._maximise = METRICS[space.config.autotuning.metric].direction == "maximise"
        self._broken: dict[str, int] = {}  # the smallest micro-batch that ran out of memory, by what else varies
        self._speeds: dict[int, dict[int, float]] = {stage: {} for stage in space.stages}
        self._pending: dict[str, Point] = {}
        self._closed: dict[int, str] = {}  # stages that need no more runs, and why ("": nothing is to be said)
        self._info = info
        self._fits: list[tuple[int, int, bool]] = []
        self._boundary = self._make_boundary()

    @property
    def knows_model(self) -> bool:
        """Whether the number of parameters is known."""
        return self._info is not None and self._info.params is not None

    # -- what is told --------------------------------------------------------------------------------

    def learn(self, info: ModelInfo | None) -> None:
        """What the profiling run has found; None, or nothing in it: go on without."""
        self._info = info
        self._boundary = self._make_boundary()

    def tell(self, point: Point, told: Told) -> None:
        """A point has ended."""
        self._pending.pop(key_of(point), None)
        stage, micro = _number(point, STAGE), _number(point, MICRO)
        if told.ending.cause == "out of memory":
            key = _others(point)
            self._broken[key] = min(micro, self._broken.get(key, micro))
        if told.value:
            self._speeds[stage][micro] = told.value if self._maximise else 1 / told.value
        if self._is_plain(point):
            self._judge(stage, micro, told.ending)

    def _judge(self, stage: int, micro: int, ending: Ending) -> None:
        """What a run with the first of all other choices tells of its stage's wall."""
        if ending.cause in ("ok", "no metric", "out of memory"):
            fits = ending.cause != "out of memory"
            self._fits.append((stage, micro, fits))
            self._boundary.tell(stage, micro, fits)
        elif self._space.micro is None:
            self._closed.setdefault(
                stage, f"stage {stage}: micro-batch {micro} {ending.cause}, so no larger one was tried"
            )

    def forget(self, point: Point) -> None:
        """A pending point came to nothing."""
        self._pending.pop(key_of(point), None)

    # -- what need not be tried ----------------------------------------------------------------------

    def ruled_out(self, point: Point) -> bool:
        """Whether memory rules a point out."""
        micro, broken = _number(point, MICRO), self._broken.get(_others(point))
        if broken is not None and micro >= broken:
            return True
        return self._is_plain(point) and bool(self._boundary.ruled_out(_number(point, STAGE), micro))

    @property
    def skipped(self) -> tuple[str, ...]:
        """What was not tried, and why."""
        lines = [reason for reason in self._closed.values() if reason]
        for stage in self._space.stages:
            wall = self._boundary.wall(stage)
            if wall.breaks is not None:
                lines.append(f"stage {stage}: micro-batches of {wall.breaks} and more run out of memory")
        return tuple(lines)

    # -- what to try ---------------------------------------------------------------------------------

    def propose(self) -> Point | None:
        """The next point by which a wall is found, pending from now on; None: none now, or all are found."""
        for stage in self._space.stages:
            if not self._open(stage):
                continue
            mine = [_number(point, MICRO) for point in self._pending.values() if _number(point, STAGE) == stage]
            for micro in self._boundary.propose(stage, 1, mine):
                point = self._plain(stage, micro)
                if point is not None:
                    self._pending[key_of(point)] = point
                    return point
            if mine:
                return None  # what they tell decides about this stage, and whether the next one can win
        return None

    def _open(self, stage: int) -> bool:
        """Whether the stage's wall is still to be found, and worth it."""
        if stage in self._closed:
            return False
        reason = self._hopeless(stage)
        if reason or self._plateau(stage):
            self._closed[stage] = reason
            return False
        return True

    def _hopeless(self, stage: int) -> str:
        if self._capacity is not None and self._info is not None:
            reason = memory.cannot_fit(self._info, self._layout(stage), self._capacity)
            if reason:
                return reason
        if self._speeds[stage]:
            return ""
        reason = stages.cannot_win(stage, self._speeds, {})
        return f"stage {stage} was not tried: {reason}" if reason else ""

    def _plateau(self, stage: int) -> bool:
        """Whether larger micro-batches have ceased to bring anything, though they fit."""
        speeds = self._speeds[stage]
        sizes = sorted(speeds)
        return len(sizes) >= 2 and speeds[sizes[-1]] < speeds[sizes[-2]] * (1 + stages.PLATEAU)

    def sizes(self) -> dict[int, tuple[int, ...]]:
        """For each stage that works, the micro-batches at which the rest is tuned."""
        count = self._space.config.autotuning.num_tuning_micro_batch_sizes
        found = {}
        for stage, speeds in self._speeds.items():
            if speeds:
                measured = sorted(speeds)
                # Those around the fastest: beyond it, memory is bought for nothing.
                found[stage] = tuning_sizes(measured, max(measured), count)
                best = max(speeds, key=lambda micro: speeds[micro])
                found[stage] = tuple(sorted({*found[stage][-(count - 1) :], best} if count > 1 else {best}))
        return found

    # -- inside --------------------------------------------------------------------------------------

    def _make_boundary(self) -> Boundary:
        batch = self._space.batch
        given = self._space.micro
        boundary = Boundary(
            {stage: self._stage(stage) for stage in self._space.stages},
            min(given) if given else batch.least,
            max(given) if given else batch.most,
            capacity=self._capacity,
            activation=None if self._info is None else self._info.activation,
        )
        for stage, micro, fits in self._fits:
            boundary.tell(stage, micro, fits)
        return boundary

    def _stage(self, stage: int) -> Stage:
        if self._info is None:
            return Stage()
        layout = self._layout(stage)
        states = memory.states(self._info, layout)
        width = 2 if layout.half else 4
        return Stage(None if states is None else states.total, width * self._buckets() if stage else 0)

    def _buckets(self) -> int:
        """Elements of the buckets that a stage above 0 may hold."""
        zero = self._space.config.data.get(ZERO)
        section: Mapping[str, object] = zero if isinstance(zero, Mapping) else {}
        total = 0
        for key in ("reduce_bucket_size", "allgather_bucket_size"):
            given = section.get(key)
            sizes = given if isinstance(given, list) else [given]
            numbers = [float(size) for size in sizes if isinstance(size, (int, float)) and not isinstance(size, bool)]
            total += int(max(numbers, default=_BUCKET))
        return total

    def _layout(self, stage: int) -> memory.Layout:
        ds_config = self._space.ds_config(next(self._space.part(stage, (1,), fast=True).points()))
        return memory.layout_of(ds_config, self._world, self._space.config.autotuning.mp_size)

    def _plain(self, stage: int, micro: int) -> Point | None:
        """The first point of a stage with this micro-batch that can be; all other choices are the first."""
        points = self._space.part(stage, (micro,), fast=True).points()
        return next((point for point in points if not self._space.impossible(point)), None)

    def _is_plain(self, point: Point) -> bool:
        first = next(self._space.part(_number(point, STAGE), (1,), fast=True).points())
        return all(point[name] == value for name, value in first.items() if name not in (MICRO, GAS))


def _others(point: Point) -> str:
    """What two points have in common that differ by their batch sizes alone."""
    return key_of({name: value for name, value in point.items() if name not in (MICRO, GAS)})


def _number(point: Point, name: str) -> int:
    value = point[name]
    assert isinstance(value, int), name
    return value
