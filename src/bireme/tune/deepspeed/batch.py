"""Batch sizes: checks train_batch_size = micro-batch x accumulation x data-parallel ranks, and completes the sizes.

``deepspeed.runtime.config`` checks the same identity. The number of data-parallel ranks is the world size divided by
the degree of model parallelism (``mp_size``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bireme.errors import BadInputError
from bireme.tune.deepspeed.config import Config
from bireme.tune.deepspeed.trial_command import argument
from bireme.value import Value

MICRO = "train_micro_batch_size_per_gpu"
GAS = "gradient_accumulation_steps"
TRAIN = "train_batch_size"


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
        train, what = self.train(micro, gas), f"micro-batch {micro} on {self.parallel} ranks"
        if self.total is not None and train != self.total:
            return f"{what} cannot make up {TRAIN} {self.total}"
        if train < self.floor:
            return f"{what} gives {TRAIN} {train}, below min_{TRAIN} {self.floor}"
        if self.ceiling is not None and train > self.ceiling:
            return f"{what} gives {TRAIN} {train}, above max_{TRAIN} {self.ceiling}"
        return ""

    def off(self, micro: int, gas: int | None = None) -> int:
        """By how many samples it misses the limits; 0 if it is possible."""
        train = self.train(micro, gas)
        if self.total is not None and train != self.total:
            return abs(train - self.total)
        return max(0, self.floor - train, 0 if self.ceiling is None else train - self.ceiling)


def read_batch(config: Config, world: int, args: Sequence[str] = ()) -> Batch:
    """Read the batch sizes of a configuration; ``"auto"`` is looked up in the script's arguments.

    Args:
        world: ranks of each experiment.

    Raises:
        BadInputError: a size is not a positive integer, or no combination of the sizes is possible.
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
    return tuple(size for size in sizes if not _never(batch, (size,)))


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
    if all(_never(batch, (micro,)) for micro in sizes):
        place = ("autotuning", f"min_{TRAIN}") if batch.micro is None else (MICRO,) if batch.micro else (TRAIN,)
        raise BadInputError(
            f"no batch size is possible: {_nearest_miss(batch, sizes)}", where=config.document.where(*place)
        )
    micros = {micro: _never(batch, (micro,)) for micro in batch.micro or ()}
    steps = {gas: _never(batch.replace(gas=(gas,)), sizes) for gas in batch.gas}
    return batch.replace(
        micro=None if batch.micro is None else _kept(micros),
        gas=_kept(steps),
        dropped=(*filter(None, micros.values()), *(f"{GAS} {gas}: {why}" for gas, why in steps.items() if why)),
    )


def _kept(reasons: Mapping[int, str]) -> tuple[int, ...]:
    return tuple(size for size, reason in reasons.items() if not reason)


def _nearest_miss(batch: Batch, sizes: Sequence[int]) -> str:
    """Why even the combination that comes nearest to the limits is impossible."""
    pairs = [(micro, gas) for micro in sizes for gas in batch.gas or (None,)]
    if not pairs:
        return f"{TRAIN} {batch.total} cannot be divided among {batch.parallel} ranks"
    return batch.impossible(*min(pairs, key=lambda pair: batch.off(*pair)))


def _never(batch: Batch, sizes: Sequence[int]) -> str:
    """Why none of these micro-batches is possible with any accumulation; "" if one is."""
    first = ""
    for micro in sizes:
        for gas in batch.gas or (None,):
            reason = batch.impossible(micro, gas)
            if not reason:
                return ""
            first = first or reason
    return first


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
