"""The search space of a DeepSpeed configuration: what varies, and the complete configuration of each point.

A list in the configuration means choices. The parameters of a point are dotted paths of the configuration::

    {"zero_optimization.stage": 1, "train_micro_batch_size_per_gpu": 3, "fp16.enabled": true}

Values that follow from others are not part of a point: ``gradient_accumulation_steps`` and ``train_batch_size`` are
computed in `bireme.tune.deepspeed.batch`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence

from bireme.errors import BadInputError
from bireme.tune.deepspeed.batch import GAS, MICRO, TRAIN, Batch, read_batch
from bireme.tune.deepspeed.config import SECTION, Config
from bireme.tune.deepspeed.names import name_of
from bireme.tune.space.points import Parameter, Point, Space
from bireme.value import Value

ZERO = "zero_optimization"
STAGE = f"{ZERO}.stage"
ALL_STAGES = (0, 1, 2, 3)

LISTS_BY_NATURE = {
    "optimizer",
    "scheduler",
    "elasticity",
    "compression_training",
    "data_efficiency",
    "curriculum_learning",
    "sparse_attention",
    "comms_logger",
    SECTION,
}
"""Sections in which lists (betas, milestones, module names) are values, not choices."""

LIST_VALUES = {
    "compile.passes",
    f"{ZERO}.leaf_module.classes",
    f"{ZERO}.leaf_module.names",
    f"{ZERO}.leaf_module.name_suffixes",
    "tensor_parallel.injection_policy_tuple",
    "tensor_parallel.partition_config.layer_specs",
    "tensor_parallel.partition_config.lm_head_patterns",
    "torch_autocast.lower_precision_safe_modules",
}
"""Keys of other sections whose value is a list; for them, choices are a list of lists."""

BUCKETS = (50_000_000, 500_000_000, 1_000_000_000)
ONE: Mapping[str, tuple[object, ...]] = {"reduce_bucket_size": BUCKETS, "allgather_bucket_size": BUCKETS}
TWO: Mapping[str, tuple[object, ...]] = {
    "overlap_comm": (True, False),
    "reduce_scatter": (False, True),
    **ONE,
    "contiguous_gradients": (False, True),
}
DEFAULT_SPACES: Mapping[int, Mapping[str, tuple[object, ...]]] = {
    0: {},
    1: ONE,
    2: TWO,
    3: {**TWO, "allgather_partitions": (True, False)},
}
"""The default choices of each stage when ``fast`` is false (those of ``deepspeed.autotuning``)."""


class TuningSpace(Value):
    """Everything that may be tried.

    Attributes:
        choices: what else varies, by stage.
    """

    config: Config
    batch: Batch
    stages: tuple[int, ...]
    choices: Mapping[int, tuple[Parameter, ...]]

    @property
    def micro(self) -> tuple[int, ...] | None:
        """The micro-batches to try; None: to be searched between `Batch.least` and `Batch.most`."""
        return self.batch.micro

    def part(self, stage: int, micro: Sequence[int], *, fast: bool = False) -> Space:
        """The points of one stage.

        Args:
            fast: of each other parameter keep only the first choice.
        """
        others = self.choices[stage]
        if fast:
            others = tuple(parameter.narrowed(parameter.choices[:1]) for parameter in others)
        gas = (Parameter(name=GAS, choices=self.batch.gas),) if self.batch.gas else ()
        return Space(
            (Parameter(name=STAGE, choices=(stage,)), *others, *gas, Parameter(name=MICRO, choices=tuple(micro)))
        )

    def impossible(self, point: Point) -> str:
        """Why the batch-size identity or a limit forbids this point, or ""."""
        return self.batch.impossible(_number(point, MICRO), _gas(point))

    def name(self, point: Point) -> str:
        """The unique name of the point's experiment, such as ``z1_gas1_tmbspg3``."""
        micro = _number(point, MICRO)
        choices = {each.name: each.choices for each in self.choices[_number(point, STAGE)] if len(each.choices) > 1}
        accumulation = self.batch.accumulation(micro, _gas(point))
        varying = {name: point[name] for name in choices}
        return name_of(_number(point, STAGE), accumulation, micro, varying, choices)

    def ds_config(self, point: Point, *, metric_path: str = "") -> dict[str, object]:
        """The configuration of a point, a new one each time.

        Args:
            metric_path: where DeepSpeed is to write its figures before it exits; "": the configuration of the real job,
                without an ``autotuning`` section.
        """
        config = self._base(_number(point, STAGE))
        for path, value in point.items():
            _put(config, path.split("."), value)
        micro = _number(point, MICRO)
        self._put_batch(config, micro, self.batch.accumulation(micro, _gas(point)))
        if metric_path:
            section = self.config.autotuning
            config[SECTION] = {
                "enabled": True,
                "start_profile_step": section.start_profile_step,
                "end_profile_step": section.end_profile_step,
                "metric_path": metric_path,
            }
        return config

    def profile_config(self, model_info_path: str) -> dict[str, object]:
        """The configuration of the profiling run, which finds the number of model parameters and the activation memory.

        Args:
            model_info_path: where DeepSpeed writes them before it exits.
        """
        stage = max(self.stages)  # it needs the least memory
        config = self._base(stage)
        for parameter in self.choices[stage]:
            _put(config, parameter.name.split("."), copy.deepcopy(parameter.choices[0]))
        _put(config, STAGE.split("."), stage)
        self._put_batch(config, 1, 1)
        config["memory_breakdown"] = False
        config[SECTION] = {"enabled": True, "model_info_path": model_info_path, "model_info": {"profile": True}}
        return config

    def _base(self, stage: int) -> dict[str, object]:
        """The user's configuration without ``autotuning`` and without keys that do not apply to this stage."""
        config = copy.deepcopy(dict(self.config.data))
        config.pop(SECTION, None)
        for path, value in list(choices_in(config)):
            if path != STAGE:
                _put(config, path.split("."), copy.deepcopy(value[0]))
        zero = config.get(ZERO)
        if isinstance(zero, dict):
            for key in [key for key in zero if not applies(key, stage)]:
                del zero[key]
        return config

    def _put_batch(self, config: dict[str, object], micro: int, accumulation: int) -> None:
        config[MICRO] = micro
        config[GAS] = accumulation
        config[TRAIN] = micro * accumulation * self.batch.parallel


def read_space(config: Config, world: int, args: Sequence[str] = ()) -> TuningSpace:
    """Read the search space of a configuration.

    Args:
        args: the script's arguments, in which ``arg_mappings`` may give values for ``"auto"``.

    Raises:
        BadInputError: no point is possible, or a value is invalid.
    """
    zero = config.data.get(ZERO)
    if zero is not None and not isinstance(zero, dict):
        raise BadInputError(f"{ZERO!r} must be an object: {{...}}", where=config.document.where(ZERO))
    stages = read_stages(config)
    choices = {stage: tuple(_choices(config, stage)) for stage in stages}
    return TuningSpace(config, read_batch(config, world, args), stages, choices)


def read_stages(config: Config) -> tuple[int, ...]:
    """The ZeRO stages to try: without ``zero_optimization`` 0, else its ``stage``: a number, a list, or "all".

    Raises:
        BadInputError: a stage is unknown or listed twice, or the list is empty.
    """
    zero = config.data.get(ZERO)
    given = zero.get("stage", 0) if isinstance(zero, dict) else 0
    wanted = list(given) if isinstance(given, list) else [given]
    where = config.document.where(ZERO, "stage")
    if not wanted:
        raise BadInputError("the list of ZeRO stages is empty", where=where)
    if "all" in wanted:
        return ALL_STAGES
    for stage in wanted:
        if isinstance(stage, bool) or not isinstance(stage, int) or stage not in ALL_STAGES:
            raise BadInputError(
                f"unknown ZeRO stage: {stage!r}", hint='choose among 0, 1, 2 and 3, or "all"', where=where
            )
    if len(set(wanted)) < len(wanted):
        raise BadInputError("the list of ZeRO stages names a stage twice", where=where)
    return tuple(wanted)


def _choices(config: Config, stage: int) -> Iterator[Parameter]:
    given = dict(choices_in(config.data))
    for path, values in given.items():
        section, _, key = path.partition(".")
        if path in (STAGE, MICRO, GAS, TRAIN) or (section == ZERO and not applies(key, stage)):
            continue
        parameter = Parameter(name=path, choices=tuple(values))
        try:
            parameter.check()
        except BadInputError as error:
            raise BadInputError(error.what, where=config.document.where(*path.split("."))) from None
        yield parameter
    if config.autotuning.fast:
        return
    zero = config.data.get(ZERO)
    fixed = zero if isinstance(zero, dict) else {}
    for key, default in DEFAULT_SPACES[stage].items():
        if fixed.get(key, "auto") == "auto":
            yield Parameter(name=f"{ZERO}.{key}", choices=default)


def choices_in(config: Mapping[str, object], above: str = "") -> Iterator[tuple[str, list[object]]]:
    """Yield (dotted path, choices) for every list in the configuration that means choices."""
    for key, value in config.items():
        if not above and key in LISTS_BY_NATURE:
            continue
        if isinstance(value, list):
            if above + key not in LIST_VALUES or _all_lists(value):
                yield above + key, value
        elif isinstance(value, Mapping):
            yield from choices_in(value, f"{above}{key}.")


def _all_lists(value: Sequence[object]) -> bool:
    return bool(value) and all(isinstance(each, list) for each in value)


def applies(key: str, stage: int) -> bool:
    """Whether a key of ``zero_optimization`` applies to a stage.

    Offloading the optimizer needs stage 1, the parameters stage 3 (DeepSpeed's ``ZeroConfig``).
    """
    if key == "stage":
        return True
    least = 3 if key.startswith(("stage3_", "offload_param", "cpu_offload_params")) else 1
    return stage >= least


def _put(config: dict[str, object], path: Sequence[str], value: object) -> None:
    """Set a value, creating sections on the way; None removes the key."""
    for key in path[:-1]:
        inner = config.get(key)
        if not isinstance(inner, dict):
            inner = config[key] = {}
        config = inner
    if value is None:
        config.pop(path[-1], None)
    else:
        config[path[-1]] = copy.deepcopy(value)


def _number(point: Point, name: str) -> int:
    value = point[name]
    assert isinstance(value, int), name
    return value


def _gas(point: Point) -> int | None:
    return _number(point, GAS) if GAS in point else None
