"""The search space of a DeepSpeed configuration: what varies, the complete configuration of each point, and its name.

A list in the configuration means choices. The parameters of a point are dotted paths of the configuration::

    {"zero_optimization.stage": 1, "train_micro_batch_size_per_gpu": 3, "fp16.enabled": true}

Values that follow from others are not part of a point: ``gradient_accumulation_steps`` and ``train_batch_size`` are
computed. train_batch_size = micro-batch x accumulation x data-parallel ranks, as ``deepspeed.runtime.config`` checks;
the number of data-parallel ranks is the world size divided by the degree of model parallelism (``mp_size``).
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from bireme.errors import BadInputError
from bireme.tune.deepspeed.command import argument
from bireme.tune.deepspeed.config import SECTION, Config
from bireme.tune.deepspeed.results import PROFILE
from bireme.tune.space.points import Parameter, Point, Points, Space, Union
from bireme.value import Value

MICRO = "train_micro_batch_size_per_gpu"
GAS = "gradient_accumulation_steps"
TRAIN = "train_batch_size"
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
    """Everything that may be tried; ``choices``: what else varies, by stage."""

    config: Config
    batch: Batch
    stages: tuple[int, ...]
    choices: Mapping[int, tuple[Parameter, ...]]

    @property
    def micro(self) -> tuple[int, ...] | None:
        """The micro-batches to try; None: to be searched between `Batch.least` and `Batch.most`."""
        return self.batch.micro

    @property
    def points(self) -> Points:
        """All points; where micro-batches are to be searched, with the smallest one only."""
        return Union(tuple(self.part(stage, self.micro or (self.batch.least,)) for stage in self.stages))

    def part(self, stage: int, micro: Sequence[int], *, fast: bool = False) -> Space:
        """The points of one stage; ``fast``: of each other parameter keep only the first choice."""
        others = self.choices[stage]
        if fast:
            others = tuple(parameter.narrowed(parameter.choices[:1]) for parameter in others)
        gas = (Parameter(name=GAS, choices=self.batch.gas),) if self.batch.gas else ()
        return Space(
            (Parameter(name=STAGE, choices=(stage,)), *others, *gas, Parameter(name=MICRO, choices=tuple(micro)))
        )

    def batch_of(self, point: Point) -> int:
        """The number of samples in a step of the point (``train_batch_size``)."""
        return self.batch.train(_number(point, MICRO), _gas(point))

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

    def trial_name(self, point: Point, phase: str, number: int, taken: Collection[str]) -> str:
        """The unique name of a trial: that of its experiment, and for a repeated run its round or its number."""
        if phase == "profile":
            return PROFILE
        name = self.name(point)
        if phase == "confirm":
            return f"{name}@round{number}"
        runs = 1
        while (repeated := f"{name}@run{runs}" if runs > 1 else name) in taken:
            runs += 1
        return repeated

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
    """
    zero = config.data.get(ZERO)
    if zero is not None and not isinstance(zero, dict):
        raise BadInputError(f"{ZERO!r} must be an object: {{...}}", where=config.document.where(ZERO))
    stages = read_stages(config)
    choices = {stage: tuple(_choices(config, stage)) for stage in stages}
    return TuningSpace(config, read_batch(config, world, args), stages, choices)


def read_stages(config: Config) -> tuple[int, ...]:
    """The ZeRO stages to try: without ``zero_optimization`` 0, else its ``stage``: a number, a list, or "all"."""
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
            if above + key not in LIST_VALUES or (value and all(isinstance(each, list) for each in value)):
                yield above + key, value
        elif isinstance(value, Mapping):
            yield from choices_in(value, f"{above}{key}.")


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


# -- batch sizes -----------------------------------------------------------------------------------------


class Batch(Value):
    """What the configuration says about batch sizes, in samples.

    Attributes:
        parallel: data-parallel ranks.
        micro: the micro-batches to try; None: to be searched between ``least`` and ``most``.
        least, most: the limits of that search.
        start: the micro-batch in the script's arguments, where the search begins; None: they name none.
        gas: choices of gradient accumulation; empty: it follows from the rest.
        steps: the gradient accumulation if neither ``gas`` nor ``share`` decides it.
        total: the required train_batch_size; None: free.
        share: samples per rank and step, at most, filled up by accumulation; None: the accumulation is ``steps``.
        floor, ceiling: limits of train_batch_size.
        dropped: listed sizes that are impossible, each with the reason.
    """

    parallel: int
    micro: tuple[int, ...] | None
    least: int
    most: int
    start: int | None = None
    gas: tuple[int, ...] = ()
    steps: int = 1
    total: int | None = None
    share: int | None = None
    floor: int = 1
    ceiling: int | None = None
    dropped: tuple[str, ...] = ()

    def accumulation(self, micro: int, gas: int | None = None) -> int:
        """Gradient accumulation steps for a micro-batch. ``gas``: the point's own choice, if it has one."""
        if gas is not None:
            return gas
        if self.total is not None:
            return max(1, self.total // (micro * self.parallel))
        return self.steps if self.share is None else max(1, self.share // micro)

    def train(self, micro: int, gas: int | None = None) -> int:
        """The resulting train_batch_size."""
        return micro * self.accumulation(micro, gas) * self.parallel

    def impossible(self, micro: int, gas: int | None = None) -> str:
        """Why this micro-batch (with this accumulation) is impossible, or ""."""
        return self.miss(micro, gas)[1]

    def miss(self, micro: int, gas: int | None = None) -> tuple[int, str]:
        """(by how many samples a micro-batch misses the limits, why); (0, "") if it is possible."""
        train, what = self.train(micro, gas), f"micro-batch {micro} on {self.parallel} ranks"
        if self.total is not None and train != self.total:
            return abs(train - self.total), f"{what} cannot make up {TRAIN} {self.total}"
        if train < self.floor:
            return self.floor - train, f"{what} gives {TRAIN} {train}, below min_{TRAIN} {self.floor}"
        if self.ceiling is not None and train > self.ceiling:
            return train - self.ceiling, f"{what} gives {TRAIN} {train}, above max_{TRAIN} {self.ceiling}"
        return 0, ""


def read_batch(config: Config, world: int, args: Sequence[str] = ()) -> Batch:
    """Read the batch sizes of a configuration; ``"auto"`` is looked up in the script's arguments.

    Args:
        world: ranks of each experiment.
    """
    section = config.autotuning
    parallel, rest = divmod(world, section.mp_size)
    if rest or not parallel:
        raise BadInputError(
            f"{world} ranks are not divisible by mp_size {section.mp_size}",
            where=config.document.where("autotuning", "mp_size"),
        )
    micro, gas, train = (_sizes(config, key) for key in (MICRO, GAS, TRAIN))
    if train and len(train) > 1:
        raise BadInputError(
            f"{TRAIN} cannot be a list: it follows from the other batch sizes",
            hint=f"list {MICRO} or {GAS}, or set autotuning.max_{TRAIN}",
            where=config.document.where(TRAIN),
        )
    batch = Batch(
        parallel=parallel,
        micro=micro,
        least=section.min_train_micro_batch_size_per_gpu,
        most=_most(config, parallel),
        start=_from_args(config, MICRO, args),
        gas=gas if gas and len(gas) > 1 else (),
        steps=gas[0] if gas else _from_args(config, GAS, args) or 1,
        total=train[0] if train else None,
        floor=section.min_train_batch_size,
        ceiling=section.max_train_batch_size,
    )
    return _possible(_settled(batch, gas), config)


def _settled(batch: Batch, gas: tuple[int, ...] | None) -> Batch:
    """The batch completed with the sizes that follow from the given ones."""
    if batch.total is not None and gas and len(gas) == 1:
        # Both are given, so the micro-batch follows.
        micro = batch.total // (gas[0] * batch.parallel)
        return batch.replace(gas=gas, micro=batch.micro or (micro,)) if micro else batch.replace(gas=gas)
    if batch.total is not None and batch.micro is None:
        # Search only among micro-batches that divide it.
        sizes = _divisors(batch)
        return batch.replace(least=sizes[0], most=sizes[-1]) if sizes else batch.replace(micro=())
    if batch.ceiling is not None:
        return batch.replace(share=batch.ceiling // batch.parallel)
    if batch.micro and len(batch.micro) > 1:
        # The same number of samples in every step, whatever the micro-batch.
        return batch.replace(share=max(batch.micro) * batch.steps)
    return batch


def _divisors(batch: Batch) -> tuple[int, ...]:
    """The micro-batches within the limits that some accumulation extends to the train_batch_size."""
    sizes = range(batch.least, min(batch.most, (batch.total or 0) // batch.parallel) + 1)
    return tuple(size for size in sizes if not all(batch.impossible(size, gas) for gas in batch.gas or (None,)))


def _possible(batch: Batch, config: Config) -> Batch:
    """The batch with only its possible sizes, and the reasons why the others are dropped.

    Raises BadInputError if none is possible.
    """
    if batch.micro is None and batch.least > batch.most:
        raise BadInputError(
            f"no micro-batch is possible: at least {batch.least}, at most {batch.most}",
            hint=f"check max_{TRAIN} and the limits of {MICRO} in the autotuning section",
            where=config.document.where("autotuning", f"max_{TRAIN}"),
        )
    sizes = range(batch.least, batch.most + 1) if batch.micro is None else batch.micro
    misses = {(micro, gas): batch.miss(micro, gas) for micro in sizes for gas in batch.gas or (None,)}
    if all(why for _, why in misses.values()):
        place = ("autotuning", f"min_{TRAIN}") if batch.micro is None else (MICRO,) if batch.micro else (TRAIN,)
        undivided = 0, f"{TRAIN} {batch.total} cannot be divided among {batch.parallel} ranks"
        _, nearest = min(misses.values(), key=lambda miss: miss[0], default=undivided)
        raise BadInputError(f"no batch size is possible: {nearest}", where=config.document.where(*place))

    def never(place: int, size: int) -> str:
        """Why no combination with a micro-batch (0) or an accumulation (1) is possible; "" if one is."""
        reasons = [why for pair, (_, why) in misses.items() if pair[place] == size]
        return "" if "" in reasons else reasons[0]

    micros = {micro: never(0, micro) for micro in batch.micro or ()}
    steps = {gas: never(1, gas) for gas in batch.gas}
    return batch.replace(
        micro=None if batch.micro is None else tuple(micro for micro, why in micros.items() if not why),
        gas=tuple(gas for gas, why in steps.items() if not why),
        dropped=(*filter(None, micros.values()), *(f"{GAS} {gas}: {why}" for gas, why in steps.items() if why)),
    )


def _most(config: Config, parallel: int) -> int:
    section = config.autotuning
    most = section.max_train_micro_batch_size_per_gpu
    limit = section.max_train_batch_size
    return most if limit is None else min(most, limit // parallel)


def _sizes(config: Config, key: str) -> tuple[int, ...] | None:
    """The numbers given for a key; None if it is absent or "auto"."""
    given = config.data.get(key, "auto")
    if given in ("auto", None):
        return None
    sizes = given if isinstance(given, list) else [given]
    where = config.document.where(key)
    for size in sizes:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise BadInputError(
                f'{key} must be a positive integer, a list of them, or "auto", not {size!r}', where=where
            )
    if not sizes or len(set(sizes)) < len(sizes):
        raise BadInputError(f"{key} " + ("lists a number twice" if sizes else "is an empty list"), where=where)
    return tuple(sizes)


def _from_args(config: Config, key: str, args: Sequence[str]) -> int | None:
    """The value in the script's arguments for a key that ``arg_mappings`` names; None if there is none."""
    mappings: Mapping[str, str] = config.autotuning.arg_mappings or {}
    for name, flag in mappings.items():
        word = argument(args, flag) if name.strip() == key else None
        if word is not None and word.isdecimal() and int(word) > 0:
            return int(word)
    return None


# -- names -----------------------------------------------------------------------------------------------

LONGEST = 120
"""Longer names are cut and get a hash: file systems allow 255 bytes, and suffixes are added."""


def name_of(
    stage: int,
    accumulation: int,
    micro: int,
    varying: Mapping[str, object],
    choices: Mapping[str, Sequence[object]] | None = None,
) -> str:
    """The name of an experiment: ``z1_gas1_tmbspg3``, or with other choices ``z2_gas1_tmbspg3_ocT_rbs5e+08``.

    Args:
        varying: the values of other choices, by dotted path.
        choices: all values of each, from which the name must distinguish it.
    """
    head = f"z{stage}_gas{accumulation}_tmbspg{micro}"
    short = _acronyms(tuple(varying))
    words = (f"{short[path]}{_word(value, (choices or {}).get(path, ()))}" for path, value in varying.items())
    name = "_".join((head, *words))
    return name if len(name) <= LONGEST else f"{name[:LONGEST]}_{_hash(varying)}"


def _acronyms(paths: tuple[str, ...]) -> dict[str, str]:
    """The initials of each path's last part, or the whole path if two would be the same."""
    short = {path: "".join(word[:1] for word in path.split(".")[-1].split("_")) for path in paths}
    for path, acronym in list(short.items()):
        if list(short.values()).count(acronym) > 1 or not acronym.isalnum():
            short[path] = re.sub(r"[^A-Za-z0-9]+", "-", path) + "-"
    return short


def _word(value: object, choices: Sequence[object]) -> str:
    """A short form of a value, or its hash if another choice (``1`` and ``"1"``) has the same form."""
    word = _brief(value)
    alike = [choice for choice in choices if _brief(choice) == word]
    return word if len(alike) <= 1 else _hash(value)


def _brief(value: object) -> str:
    if isinstance(value, bool):
        return "T" if value else "F"
    if isinstance(value, (int, float)):
        brief = f"{value:.3g}"
        return brief if float(brief) == value else repr(value)
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9.+-]{1,24}", value):
        return value
    if isinstance(value, Mapping) and len(value) == 1 and isinstance(only := next(iter(value.values())), str):
        return _brief(only)  # {"device": "cpu"}
    return _hash(value)


def _hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]
