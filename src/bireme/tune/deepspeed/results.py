"""Reads what DeepSpeed writes: the figures in ``metrics.json``, and the model's size in ``model_info.json``.

Rank 0 writes these files without renaming, so they may be incomplete after a kill; an incomplete file is never taken
for a result. (Files of an earlier run are removed before an experiment starts.)

Units (``deepspeed.runtime.engine``): ``latency``, ``fwd``, ``bwd`` and ``step`` in microseconds,
``throughput`` in samples per second, ``FLOPS_per_gpu`` in operations per second.

DeepSpeed's own figure is that of its last step, without the time between two steps, such as loading data. So samples
per second are also measured by our own clock: the log has a line for each step, whose label has the time
(`bireme.logs.lines.SINCE`).
Which line that is depends on DeepSpeed's version. While tuning, it prints the times of every step (``time (ms) | fwd:
…``, once a step; lines about micro-batches begin with ``fwd_microstep``). If its log shows progress, there is also
``step=7, skipped=0, …`` with the step's number. The pipeline engine, which ignores tuning, prints
``steps: 7 loss: … iter time (s): …``; scripts print steps and losses too, but not the iteration time in these words.
"""

from __future__ import annotations

import os
import re

from bireme import jsontext
from bireme.regular_file import open_regular, read_regular
from bireme.tune.metrics.numbers import MOST
from bireme.tune.report.text import CLOCK
from bireme.tune.samplers.sampler import Direction
from bireme.tune.study.trial import Objective, TrialResult
from bireme.value import Value

PROFILE = "profile_model_info"
"""The name of the profiling run."""


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

    @property
    def clocked(self) -> bool:
        """Whether the clock measures it too; parts of a step have no other figure than DeepSpeed's."""
        return self.key in ("throughput", "latency")


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

    def as_metrics(self) -> dict[str, float]:
        """What is known, by DeepSpeed's names; `model_info` reads it back."""
        named = {
            "num_params": self.params,
            "trainable_num_params": self.trainable,
            "activation_mem_per_gpu": self.activation,
        }
        return {name: float(value) for name, value in named.items() if value is not None}


def read_metrics(path: str) -> Metrics:
    """Read the figures that a run wrote to its ``metrics.json``."""
    data, reason = _read(path)
    if reason:
        return Metrics({}, reason)
    values = {key: figure for key, value in data.items() if (figure := _figure(value)) is not None}
    return Metrics(values, "" if values else f"{path} contains no figures")


def goal_of(name: str) -> Objective:
    """What a study with this ``autotuning.metric`` compares: by the clock where that measures it."""
    metric = METRICS[name]
    return Objective(f"{name} {CLOCK}" if metric.clocked else name, metric.direction)


def with_goal(result: TrialResult, name: str, batch: int) -> TrialResult:
    """The result with the metric of the goal: by the clock; by DeepSpeed where the log shows no steps.

    Args:
        name: ``autotuning.metric``.
        batch: samples in a step (``train_batch_size``).
    """
    if result.cause != "ok":
        return result
    metric = METRICS[name]
    value = result.metrics.get(metric.key)
    if metric.clocked and result.samples:
        value = result.samples if name == "throughput" else 1e6 * batch / result.samples
    if value is None or value <= 0:
        # Zero means not measured (the flops profiler or a timer did not run). It would win where less is better.
        what = f"the run did not measure {metric.key!r}" if value is None else f"{metric.key!r} is {value:g}"
        return result.replace(cause="no metric", reason=what)
    return result.replace(metrics={**result.metrics, goal_of(name).name: value})


def told(result: TrialResult, name: str) -> dict[str, object]:
    """The figures of a result with their units, as the journal has those of any program.

    Args:
        name: ``autotuning.metric``.
    """
    metric, goal, rest = METRICS[name], goal_of(name).name, dict(result.metrics)
    value, own = rest.pop(goal, None), rest.pop(metric.key, None)
    also, unit, scale = (name, metric.unit, metric.scale) if metric.clocked else (CLOCK, "samples/s", 1.0)
    scaled = {goal: (value, metric.scale), also: (own if metric.clocked else result.samples, scale)}
    figures = {each: figure / scale for each, (figure, scale) in scaled.items() if figure is not None}
    return {"figures": {**figures, **rest}, "units": {goal: metric.unit, also: unit}}


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


# -- by our own clock ------------------------------------------------------------------------------------

_STAMP = rb"\[(\d+\.\d+) [^\]]*\] .*"
_NUMBERED = re.compile(_STAMP + rb"\bstep=(\d+), skipped=")
_PIPELINE = re.compile(_STAMP + rb"\bsteps: (\d+) loss: \S+ .*\biter time \(s\): ")
_TIMED = re.compile(_STAMP + rb"time \(ms\) \| fwd: ")


def samples_per_second(path: str, samples: int, first: int) -> float | None:
    """Samples per second of wall time over the steps of a run; None if it logged too few.

    Args:
        path: the output of the run.
        samples: samples in a step (``train_batch_size``).
        first: the step at whose end timing begins, after the warm-up.
    """
    steps = _steps(path)
    begun = [number for number in steps if number >= first]
    if len(begun) < 2:
        return None
    low, high = min(begun), max(begun)
    seconds = steps[high] - steps[low]
    return samples * (high - low) / seconds if seconds > 0 else None


def last_step(text: str) -> int:
    """The number of the last step logged in the end of a run's output; 0 if none is."""
    numbers = [int(found[2]) for line in text.encode().splitlines() if (found := _numbered(line))]
    return max(numbers, default=0)


def _numbered(line: bytes) -> re.Match[bytes] | None:
    return _NUMBERED.match(line) or _PIPELINE.match(line)


def _steps(path: str) -> dict[int, float]:
    """When each step ended, in seconds, by its number from 1."""
    numbered: dict[int, float] = {}
    timed: list[float] = []
    try:
        with open(open_regular(path), "rb") as file:
            for line in file:
                if found := _numbered(line):
                    numbered[int(found[2])] = float(found[1])
                elif found := _TIMED.match(line):
                    timed.append(float(found[1]))
    except OSError:
        return {}
    return numbered if len(numbered) > 1 else dict(enumerate(timed, 1))
