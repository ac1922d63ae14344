"""Memory groups: the points of a ZeRO stage that lay the model out in memory alike, and so share a limit.

Most choices (bucket sizes, overlapping) change memory little; offloading and the width of numbers change it much. The
latter are those on which `memory.layout_of` depends: each of their combinations is a family of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product

from bireme.tune.deepspeed import memory
from bireme.tune.deepspeed.batch import GAS, MICRO
from bireme.tune.deepspeed.config_space import STAGE, TuningSpace, choices_in
from bireme.tune.space import Dimension, Point, Space, key_of
from bireme.value import Value


class Family(Value):
    """``fixed``: what makes it one, beside its stage; ``first``: its first point, without batch sizes."""

    stage: int
    fixed: Mapping[str, object]
    first: Mapping[str, object]
    layout: memory.Layout

    @property
    def title(self) -> str:
        """``stage 2``, and what is offloaded or narrow if that is a choice."""
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
        """Whether it buys memory with speed by keeping something elsewhere."""
        return self.layout.offload_optimizer or self.layout.offload_param


class Families:
    """All families of a space, by stage from below, and in each in the order of the choices.

    Args:
        space: what may be tried.
        world: ranks of an experiment.
    """

    def __init__(self, space: TuningSpace, world: int) -> None:
        self._space, self._world = space, world
        self._listed = {path for path, _ in choices_in(space.config.data)}
        self._apart = {stage: tuple(self._memory_choices(stage)) for stage in space.stages}
        self.all = tuple(family for stage in sorted(space.stages) for family in self._of_stage(stage))
        self._numbers = {key_of({STAGE: each.stage, **each.fixed}): number for number, each in enumerate(self.all)}

    def number(self, point: Point) -> int:
        """The index in `all` of a point's family."""
        stage = point[STAGE]
        assert isinstance(stage, int)
        return self._numbers[key_of({STAGE: stage, **{each.name: point[each.name] for each in self._apart[stage]}})]

    def is_first(self, point: Point) -> bool:
        """Whether, but for its batch sizes, it is the first of its family."""
        return without_batch(point) == dict(self.all[self.number(point)].first)

    def point(self, number: int, micro: int) -> dict[str, object] | None:
        """The first point of a family with this micro-batch that can be; None: none can."""
        points = self.part(number, (micro,), only_first=True).points()
        return next((point for point in points if not self._space.impossible(point)), None)

    # -- parts of the space --------------------------------------------------------------------------

    def part(self, number: int, micro: Sequence[int], *, listed: bool = False, only_first: bool = False) -> Space:
        """The points of a family with these micro-batches.

        Args:
            number: the family's index in `all`.
            micro: the micro-batches.
            listed: of all other choices, vary only those that the configuration lists, not the defaults of a stage.
            only_first: of all other choices only the first.
        """
        family = self.all[number]
        part = self._space.part(family.stage, micro, fast=only_first)
        fixed = [
            dimension.replace(choices=(family.fixed[dimension.name],)) if dimension.name in family.fixed else dimension
            for dimension in part.dimensions
        ]
        return Space(tuple(self._narrow(fixed) if listed else fixed))

    def listed(self, stage: int, micro: Sequence[int]) -> Space:
        """The points of a stage that the configuration lists, with these micro-batches."""
        return Space(tuple(self._narrow(self._space.part(stage, micro).dimensions)))

    def has_defaults(self, number: int) -> bool:
        """Whether something varies in a family that the configuration does not list (``fast`` is false)."""
        return any(each.name not in self._listed for each in self._space.choices[self.all[number].stage])

    def varies(self, number: int) -> bool:
        """Whether anything varies in a family but its batch sizes."""
        return self.part(number, (1,)).size > 1

    def _narrow(self, dimensions: Iterable[Dimension]) -> Iterator[Dimension]:
        for each in dimensions:
            mine = each.name in (STAGE, MICRO, GAS) or each.name in self._listed
            yield each if mine else each.replace(choices=each.choices[:1])

    # -- finding them --------------------------------------------------------------------------------

    def _of_stage(self, stage: int) -> Iterator[Family]:
        apart = self._apart[stage]
        for values in product(*(dimension.choices for dimension in apart)):
            fixed = dict(zip((dimension.name for dimension in apart), values, strict=True))
            first = {**self._first(stage), **fixed}
            yield Family(stage, fixed, without_batch(first), self._layout(first))

    def _memory_choices(self, stage: int) -> Iterator[Dimension]:
        first = self._first(stage)
        for dimension in self._space.choices[stage]:
            layouts = [self._layout({**first, dimension.name: choice}) for choice in dimension.choices]
            if any(layout != layouts[0] for layout in layouts):
                yield dimension

    def _first(self, stage: int) -> dict[str, object]:
        return next(self._space.part(stage, (1,), fast=True).points())

    def _layout(self, point: Point) -> memory.Layout:
        return memory.layout_of(self._space.ds_config(point), self._world, self._space.config.autotuning.mp_size)


def without_batch(point: Point) -> dict[str, object]:
    """A point without its batch sizes."""
    return {name: value for name, value in point.items() if name not in (MICRO, GAS)}
