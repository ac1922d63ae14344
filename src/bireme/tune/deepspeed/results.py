"""Reads what DeepSpeed writes: the figures in ``metrics.json``, and the model's size in ``model_info.json``.

Rank 0 writes these files without renaming, so they may be incomplete after a kill; an incomplete file is never taken
for a result. (Files of an earlier run are removed before an experiment starts.)

Units (``deepspeed.runtime.engine``): ``latency``, ``fwd``, ``bwd`` and ``step`` in microseconds,
``throughput`` in samples per second, ``FLOPS_per_gpu`` in operations per second.
"""

from __future__ import annotations

import os

from bireme import jsontext
from bireme.regular_file import read_regular
from bireme.tune.metrics.numbers import MOST
from bireme.tune.samplers.sampler import Direction
from bireme.value import Value


class Metric(Value):
    """A metric.

    Attributes:
        key: its key in ``metrics.json``.
        unit: the unit in which it is shown.
        scale: the number by which a value is divided to be in that unit.
    """

    key: str
    direction: Direction
    unit: str
    scale: float = 1.0


_FLOPS = Metric("FLOPS_per_gpu", "maximize", "TFLOPS per GPU", 1e12)

METRICS = {
    "throughput": Metric("throughput", "maximize", "samples/s"),
    "latency": Metric("latency", "minimize", "ms", 1e3),
    "flops": _FLOPS,
    "FLOPS_per_gpu": _FLOPS,
    "forward": Metric("fwd", "minimize", "ms", 1e3),
    "fwd": Metric("fwd", "minimize", "ms", 1e3),
    "backward": Metric("bwd", "minimize", "ms", 1e3),
    "bwd": Metric("bwd", "minimize", "ms", 1e3),
    "step": Metric("step", "minimize", "ms", 1e3),
}
"""The values of ``autotuning.metric``: documented names, and the keys that DeepSpeed writes."""


class Metrics(Value):
    """The figures of one run by DeepSpeed's names, or the reason why there are none."""

    values: dict[str, float]
    reason: str = ""


class ModelInfo(Value):
    """What the profiling run found; None where unknown.

    Attributes:
        params, trainable: numbers of parameters.
        activation: bytes that one micro-batch of the profiling run took in the forward pass.
        reason: why something is missing.
    """

    params: int | None = None
    trainable: int | None = None
    activation: int | None = None
    reason: str = ""


def read_metrics(path: str) -> Metrics:
    """Read the figures that a run wrote to its ``metrics.json``."""
    data, reason = _read(path)
    if reason:
        return Metrics({}, reason)
    values = {key: figure for key, value in data.items() if (figure := _figure(value)) is not None}
    return Metrics(values, "" if values else f"{path} contains no figures")


def value_of(metrics: Metrics, name: str) -> tuple[float | None, str]:
    """(value, "") of a metric of `METRICS`, or (None, reason why it is missing)."""
    key = METRICS[name].key
    value = metrics.values.get(key)
    if value is None:
        return None, metrics.reason or f"the run did not measure {key!r}"
    if value <= 0:
        # Zero means not measured (the flops profiler or a timer did not run). It would win where less is better.
        return None, f"{key!r} is {value:g}"
    return value, ""


def read_model_info(path: str) -> ModelInfo:
    """Read what the profiling run wrote to ``model_info.json``."""
    data, reason = _read(path)
    if reason:
        return ModelInfo(reason=reason)
    return model_info(data)


def model_info(data: dict[str, object]) -> ModelInfo:
    """Interpret the object of ``model_info.json`` or ``autotuning.model_info``."""
    params = _positive(data.get("num_params"))
    return ModelInfo(
        params=params,
        trainable=_positive(data.get("trainable_num_params")),
        activation=_positive(data.get("activation_mem_per_gpu")),
        reason="" if params else "it does not contain the number of parameters",
    )


def _read(path: str) -> tuple[dict[str, object], str]:
    name = os.path.basename(path)
    try:
        text = read_regular(path).decode(errors="replace")
    except FileNotFoundError:
        return {}, f"the run ended without writing {name} (too few steps, or too little data for them?)"
    except OSError as error:
        return {}, f"{name} cannot be read: {error.strerror}"
    if not text.strip():
        return {}, f"{name} is empty"
    try:
        data = jsontext.loads(text)
    except ValueError:
        return {}, f"{name} is damaged or incomplete"
    return (data, "") if isinstance(data, dict) else ({}, f"{name} is not a JSON object")


def _figure(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= MOST:
        return None
    return float(value)


def _positive(value: object) -> int | None:
    figure = _figure(value)
    return int(figure) if figure is not None and figure >= 1 else None
