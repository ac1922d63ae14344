"""Batch sizes: train_batch_size = micro-batch x gradient accumulation x data-parallel ranks.

The identity is checked by ``deepspeed.runtime.config``; the data-parallel ranks are the world over the
degree of model parallelism (``mp_size``).
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
    """What the configuration says of batch sizes, in samples.

    ``parallel``: data-parallel ranks. ``micro``: the micro-batches given; None: to be found between ``least``
    and ``most``, from ``start`` if the script names one. ``gas``: choices of the accumulation; empty: it
    follows. ``total``: the train_batch_size that must come out; None: free. ``share``: samples that one rank
    takes in a step at most, which the accumulation fills; None: the accumulation is ``steps``. ``dropped``: what
    was listed and cannot be, each with its reason.
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
        """Gradient accumulation steps for a micro-batch; ``gas``: what the point says itself."""
        if gas is not None:
            return gas
        if self.total is not None:
            return max(1, self.total // (micro * self.parallel))
        return self.steps if self.share is None else max(1, self.share // micro)

    def train(self, micro: int, gas: int | None = None) -> int:
        """The train_batch_size that comes out."""
        return micro * self.accumulation(micro, gas) * self.parallel

    def impossible(self, micro: int, gas: int | None = None) -> str:
        """Why this micro-batch (with this accumulation) cannot be, or ""."""
        train, who = self.train(micro, gas), f"micro-batch {micro} on {self.parallel} ranks"
        if self.total is not None and train != self.total:
            return f"{who} does not make up {TRAIN} {self.total}"
        if train < self.floor:
            return f"{who} makes {TRAIN} {train}, below min_{TRAIN} {self.floor}"
        if self.ceiling is not None and train > self.ceiling:
            return f"{who} makes {TRAIN} {train}, above max_{TRAIN} {self.ceiling}"
        return ""

    def off(self, micro: int, gas: int | None = None) -> int:
        """By how many samples it is impossible."""
        train = self.train(micro, gas)
        if self.total is not None and train != self.total:
            return abs(train - self.total)
        return max(0, self.floor - train, 0 if self.ceiling is None else train - self.ceiling)


def read_batch(config: Config, world: int, args: Sequence[str] = ()) -> Batch:
    """What a configuration says of batch sizes; ``"auto"`` is looked up in the script's arguments.

    Args:
        config: the configuration.
        world: ranks of each experiment.
        args: the script's arguments.

    Raises:
        BadInputError: a size is no whole number above 0, or they cannot be brought together.
    """
    section = config.autotuning
    parallel, rest = divmod(world, section.mp_size)
    if rest or not parallel:
        raise BadInputError(
            f"{world} ranks cannot be divided by mp_size {section.mp_size}",
            where=config.document.where("autotuning", "mp_size"),
        )
    micro, gas, train = (_sizes(config, key) for key in (MICRO, GAS, TRAIN))
    if train and len(train) > 1:
        raise BadInputError(
            f"{TRAIN} follows from the others and cannot be a list",
            hint=f"list {MICRO} or {GAS}, or set autotuning.max_{TRAIN}",
            where=config.document.where(TRAIN),
        )
    batch = Batch(
        parallel,
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
    """With whatever follows from the others."""
    if batch.total is not None and gas and len(gas) == 1:
        # Both are said: the accumulation is no longer free to make up for the micro-batch.
        micro = batch.total // (gas[0] * batch.parallel)
        return batch.replace(gas=gas, micro=batch.micro or (micro,)) if micro else batch.replace(gas=gas)
    if batch.total is not None and batch.micro is None:
        # To be found, among those that make it up.
        sizes = _divisors(batch)
        return batch.replace(least=sizes[0], most=sizes[-1]) if sizes else batch.replace(micro=())
    if batch.ceiling is not None:
        return batch.replace(share=batch.ceiling // batch.parallel)
    if batch.micro and len(batch.micro) > 1:
        # The same number of samples in every step, whatever the micro-batch.
        return batch.replace(share=max(batch.micro) * batch.steps)
    return batch


def _divisors(batch: Batch) -> tuple[int, ...]:
    """The micro-batches within the limits of which one accumulation or another makes up the train_batch_size."""
    sizes = range(batch.least, min(batch.most, (batch.total or 0) // batch.parallel) + 1)
    return tuple(size for size in sizes if not _never(batch, (size,)))


def _possible(batch: Batch, config: Config) -> Batch:
    """Only what can be, if anything can, and why the rest of what is listed cannot."""
    if batch.micro is None and batch.least > batch.most:
        raise BadInputError(
            f"no micro-batch is possible: at least {batch.least}, at most {batch.most}",
            hint=f"see max_{TRAIN} and {MICRO}'s limits in the autotuning section",
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
    """Why not even that is possible which comes nearest to it."""
    pairs = [(micro, gas) for micro in sizes for gas in batch.gas or (None,)]
    if not pairs:
        return f"{TRAIN} {batch.total} cannot be shared by {batch.parallel} ranks"
    return batch.impossible(*min(pairs, key=lambda pair: batch.off(*pair)))


def _never(batch: Batch, sizes: Sequence[int]) -> str:
    """Why no accumulation makes any of these micro-batches possible, or ""."""
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
    """The numbers given for a key; None: none, or "auto"."""
    given = config.data.get(key, "auto")
    if given in ("auto", None):
        return None
    sizes = given if isinstance(given, list) else [given]
    where = config.document.where(key)
    for size in sizes:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise BadInputError(
                f'{key} must be a whole number above 0, a list of some, or "auto", not {size!r}', where=where
            )
    if not sizes or len(set(sizes)) < len(sizes):
        raise BadInputError(f"{key} is " + ("a list with a number twice" if sizes else "an empty list"), where=where)
    return tuple(sizes)


def _from_args(config: Config, key: str, args: Sequence[str]) -> int | None:
    """What the script's arguments say for a key that ``arg_mappings`` names."""
    mappings: Mapping[str, str] = config.autotuning.arg_mappings or {}
    for name, flag in mappings.items():
        word = argument(args, flag) if name.strip() == key else None
        if word is not None and word.isdecimal() and int(word) > 0:
            return int(word)
    return None
