"""Memory groups: the points of a ZeRO stage with the same memory layout, which share one memory limit.

Most choices (bucket sizes, overlapping) change memory use little; offloading and precision change it much. The latter
are the choices on which `memory.layout_of` depends: each combination of them is one group (`MemoryGroup`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product

from bireme.tune.deepspeed import memory
from bireme.tune.deepspeed.batch import GAS, MICRO
from bireme.tune.deepspeed.config_space import STAGE, TuningSpace, choices_in
from bireme.tune.space.points import Parameter, Point, Space, key_of
from bireme.value import Value


class MemoryGroup(Value):
    """A memory group.

    Attributes:
        fixed: the choices that define it.
        first: its first point, without batch sizes.
    """

    stage: int
    fixed: Mapping[str, object]
    first: Mapping[str, object]
    layout: memory.Layout

    @property
    def title(self) -> str:
        """``stage 2``, and what is offloaded or in half precision if that is a choice."""
        if not self.fixed:
            return f"stage {self.stage}"
        layout = self.layout
        words = (
            ("offloaded optimizer", layout.offload_optimizer),
            ("offloaded parameters", layout.offload_param),
            ("half precision", layout.half),
        )
        return f"stage {self.stage} with {' and '.join(word for word, is_so in words if is_so) or 'neither'}"

    @property
    def offloads(self) -> bool:
        """Whether it offloads something, which saves memory and costs speed."""
        return self.layout.offload_optimizer or self.layout.offload_param


class MemoryGroups:
    """All memory groups of a space, by ascending stage, and within a stage in the order of the choices."""

    def __init__(self, space: TuningSpace, world: int) -> None:
        self._space, self._world = space, world
        self._listed = {path for path, _ in choices_in(space.config.data)}
        self._apart = {stage: tuple(self._memory_choices(stage)) for stage in space.stages}
        self.all = tuple(group for stage in sorted(space.stages) for group in self._of_stage(stage))
        self._numbers = {key_of({STAGE: each.stage, **each.fixed}): number for number, each in enumerate(self.all)}

    def number(self, point: Point) -> int:
        """The index in `all` of a point's group."""
        stage = point[STAGE]
        assert isinstance(stage, int)
        return self._numbers[key_of({STAGE: stage, **{each.name: point[each.name] for each in self._apart[stage]}})]

    def is_first(self, point: Point) -> bool:
        """Whether the point, apart from its batch sizes, is the first of its group."""
        return without_batch(point) == dict(self.all[self.number(point)].first)

    def point(self, number: int, micro: int) -> dict[str, object] | None:
        """The first possible point of a group with this micro-batch; None if none is possible."""
        points = self.part(number, (micro,), only_first=True).points()
        return next((point for point in points if not self._space.impossible(point)), None)

    # -- parts of the space --------------------------------------------------------------------------

    def part(self, number: int, micro: Sequence[int], *, listed: bool = False, only_first: bool = False) -> Space:
        """The points of a group with these micro-batches.

        Args:
            number: the group's index in `all`.
            listed: vary only the parameters that the configuration lists, not the default choices of the stage.
            only_first: keep only the first choice of each other parameter.
        """
        group = self.all[number]
        part = self._space.part(group.stage, micro, fast=only_first)
        fixed = [
            parameter.narrowed((group.fixed[parameter.name],)) if parameter.name in group.fixed else parameter
            for parameter in part.parameters
        ]
        return Space(tuple(self._narrow(fixed) if listed else fixed))

    def listed(self, stage: int, micro: Sequence[int]) -> Space:
        """The points of a stage that the configuration lists, with these micro-batches."""
        return Space(tuple(self._narrow(self._space.part(stage, micro).parameters)))

    def has_defaults(self, number: int) -> bool:
        """Whether default choices, which the configuration does not list, vary in a group (``fast`` is false)."""
        return any(each.name not in self._listed for each in self._space.choices[self.all[number].stage])

    def varies(self, number: int) -> bool:
        """Whether anything but batch sizes varies in a group."""
        return self.part(number, (1,)).size > 1

    def _narrow(self, parameters: Iterable[Parameter]) -> Iterator[Parameter]:
        for each in parameters:
            mine = each.name in (STAGE, MICRO, GAS) or each.name in self._listed
            yield each if mine else each.narrowed(each.choices[:1])

    # -- finding them --------------------------------------------------------------------------------

    def _of_stage(self, stage: int) -> Iterator[MemoryGroup]:
        apart = self._apart[stage]
        for values in product(*(parameter.choices for parameter in apart)):
            fixed = dict(zip((parameter.name for parameter in apart), values, strict=True))
            first = {**self._first(stage), **fixed}
            yield MemoryGroup(stage, fixed, without_batch(first), self._layout(first))

    def _memory_choices(self, stage: int) -> Iterator[Parameter]:
        first = self._first(stage)
        for parameter in self._space.choices[stage]:
            layouts = [self._layout({**first, parameter.name: choice}) for choice in parameter.choices]
            if any(layout != layouts[0] for layout in layouts):
                yield parameter

    def _first(self, stage: int) -> dict[str, object]:
        return next(self._space.part(stage, (1,), fast=True).points())

    def _layout(self, point: Point) -> memory.Layout:
        return memory.layout_of(self._space.ds_config(point), self._world, self._space.config.autotuning.mp_size)


def without_batch(point: Point) -> dict[str, object]:
    """A point without its batch sizes."""
    return {name: value for name, value in point.items() if name not in (MICRO, GAS)}
