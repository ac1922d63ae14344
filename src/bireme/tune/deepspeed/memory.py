"""Estimates how much GPU memory a model's states need in each ZeRO stage, and whether a configuration cannot fit.

With Ψ parameters, N data-parallel ranks and Adam, Rajbhandari et al., "ZeRO: Memory Optimizations Toward
Training Trillion Parameter Models" (arXiv 1910.02054, section 5 and figure 1) count in bytes per rank:

=====  ======================  ==============================================
stage  mixed precision, K=12   what is partitioned
=====  ======================  ==============================================
0      2Ψ + 2Ψ + KΨ            nothing
1      2Ψ + 2Ψ + KΨ/N          optimizer states
2      2Ψ + (2 + K)Ψ/N         and gradients
3      (2 + 2 + K)Ψ/N          and parameters
=====  ======================  ==============================================

K is the fp32 copy of the parameters, momentum and variance (4 bytes each). In fp32 there is no copy: 4Ψ + 4Ψ + 8Ψ. K is
smaller if the configuration names an optimizer that keeps less than Adam. With model parallelism of degree m a rank
holds Ψ/m, and N is the number of ranks divided by m.

Offloading removes the optimizer's states, and from stage 2 on the gradients (Ren et al., "ZeRO-Offload", arXiv
2101.06840, section 4); in stage 3 also the parameters (Rajbhandari et al., "ZeRO-Infinity", arXiv 2104.07857). Buffers,
fragmentation and activations are added to that: the estimate is a lower bound, which tells what cannot fit, not what
will.

Most choices (bucket sizes, overlapping) change memory use little; offloading and precision change it much. The latter
are the choices on which `layout_of` depends: each combination of them in a stage is a memory group, whose points share
one limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product

from bireme.tune.deepspeed.results import ModelInfo
from bireme.tune.deepspeed.space import GAS, MICRO, STAGE, TuningSpace, choices_in
from bireme.tune.space.points import Parameter, Point, Space, key_of
from bireme.value import Value

GIB = 1024**3

MOMENTS = {"sgd": 0, "lion": 1, "adagrad": 1}
"""Numbers that an optimizer keeps per parameter, if not two as Adam does; SGD with momentum keeps one."""

_BUCKET = 500_000_000
"""Default number of elements of a communication bucket (DeepSpeed's ``zero/config.py``)."""


class Layout(Value):
    """How a model is distributed over the ranks.

    Attributes:
        world: number of ranks.
        model_parallel: ranks that share one copy of the model.
        half: whether it is in fp16 or bf16.
        offload_optimizer, offload_param: whether these states are kept outside the GPU.
        moments: numbers that the optimizer keeps per parameter.
    """

    stage: int
    world: int
    model_parallel: int = 1
    half: bool = False
    offload_optimizer: bool = False
    offload_param: bool = False
    moments: int = 2


def states(model: ModelInfo, layout: Layout) -> int | None:
    """Bytes of one GPU's memory that the model's states take; None if the number of parameters is unknown.

    Only trainable parameters have gradients and optimizer states.
    """
    if model.params is None:
        return None
    ranks = max(1, layout.world // layout.model_parallel)
    trained = model.params if model.trainable is None else model.trainable
    width = 2 if layout.half else 4
    kept = 4 * layout.moments + (4 if layout.half else 0)
    parts = (  # bytes, the stage that partitions and offloads them, whether they are offloaded
        (width * model.params, 3, layout.offload_param),
        (width * trained, 2, layout.offload_optimizer),
        (kept * trained, 1, layout.offload_optimizer),
    )
    return sum(
        round(size / layout.model_parallel / (ranks if layout.stage >= least else 1))
        for size, least, offloaded in parts
        if not (offloaded and layout.stage >= least)
    )


def cannot_fit(model: ModelInfo, layout: Layout, capacity: int) -> str:
    """Why not even one sample can fit; "" if one may.

    Args:
        capacity: memory of one GPU, in bytes.
    """
    needed = states(model, layout)
    if needed is None or needed < capacity:
        return ""
    return (
        f"stage {layout.stage} needs {needed / GIB:.1f} GiB for the model's states alone"
        f", but a GPU has {capacity / GIB:.1f} GiB"
    )


def buckets(config: Mapping[str, object], layout: Layout) -> int:
    """Bytes that the communication buckets may take; of several choices the largest counts."""
    if not layout.stage:
        return 0
    zero = _section(config, "zero_optimization")
    total = 0
    for key in ("reduce_bucket_size", "allgather_bucket_size"):
        given = zero.get(key)
        sizes = given if isinstance(given, list) else [given]
        numbers = [float(size) for size in sizes if isinstance(size, (int, float)) and not isinstance(size, bool)]
        total += int(max(numbers, default=_BUCKET))
    return total * (2 if layout.half else 4)


def layout_of(ds_config: Mapping[str, object], world: int, model_parallel: int = 1) -> Layout:
    """The layout that a configuration without choices describes."""
    zero = _section(ds_config, "zero_optimization")
    stage = zero.get("stage", 0)
    return Layout(
        stage=stage if isinstance(stage, int) else 0,
        world=world,
        model_parallel=model_parallel,
        # Hugging Face's trainer replaces "auto", nearly always by half precision. Half precision takes less memory, so
        # this assumption never makes a stage look too large.
        half=any(_section(ds_config, name).get("enabled") in (True, "auto") for name in ("fp16", "bf16", "bfloat16")),
        offload_optimizer=_offloads(zero, "offload_optimizer") or zero.get("cpu_offload") is True,
        offload_param=_offloads(zero, "offload_param") or zero.get("cpu_offload_params") is True,
        moments=_moments(_section(ds_config, "optimizer")),
    )


def _moments(optimizer: Mapping[str, object]) -> int:
    momentum = _section(optimizer, "params").get("momentum")
    kept = MOMENTS.get(str(optimizer.get("type", "")).lower(), 2)
    return 1 if kept == 0 and momentum not in (None, 0) else kept


def _section(config: Mapping[str, object], name: str) -> Mapping[str, object]:
    section = config.get(name)
    return section if isinstance(section, Mapping) else {}


def _offloads(zero: Mapping[str, object], name: str) -> bool:
    return _section(zero, name).get("device") in ("cpu", "nvme")


# -- groups ----------------------------------------------------------------------------------------------


class MemoryGroup(Value):
    """A memory group.

    Attributes:
        fixed: the choices that define it.
        first: its first point, without batch sizes.
    """

    stage: int
    fixed: Mapping[str, object]
    first: Mapping[str, object]
    layout: Layout

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

    def _layout(self, point: Point) -> Layout:
        return layout_of(self._space.ds_config(point), self._world, self._space.config.autotuning.mp_size)


def without_batch(point: Point) -> dict[str, object]:
    """A point without its batch sizes."""
    return {name: value for name, value in point.items() if name not in (MICRO, GAS)}
