"""The programs that simulated studies tune: how fast each configuration is, and what its run prints. No wall clock."""

from __future__ import annotations

import base64
import json
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tests.golden.driver import Happening, Launched

MARK = "\x1ebireme "
"""What a line with figures of ``bireme.report`` begins with."""

NOISES = ("none", "normal", "heavy", "drift", "two states", "alternating", "uneven")

OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.40 GiB"
FAILED = 'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\nValueError: no such mode'


class Noise(NamedTuple):
    """How the speed of a run differs from that of its configuration."""

    kind: str = "normal"
    size: float = 0.02

    def factor(self, draw: random.Random, number: int, key: str) -> float:
        """Of one run.

        Args:
            draw: the run's own random numbers.
            number: how many runs were started before.
            key: the configuration.
        """
        normal, luck = draw.gauss(0.0, 1.0), draw.random()
        if self.kind == "none":
            return 1.0
        if self.kind == "heavy":
            normal /= max(0.05, luck)
        elif self.kind == "drift":
            normal = 0.3 * normal - 0.1 * number
        elif self.kind == "two states":
            normal = 0.2 * normal - (3.0 if luck < 0.3 else 0.0)
        elif self.kind == "alternating":
            normal = 0.2 * normal - (3.0 if number % 2 else 0.0)
        elif self.kind == "uneven":
            normal *= 2.0 * random.Random(key).random()
        return math.exp(max(-2.0, min(2.0, self.size * normal)))


class Faults(NamedTuple):
    """What goes wrong: parts of all configurations (``failing``, ``silent``), and of all runs."""

    failing: float = 0.0
    silent: float = 0.0
    lost: float = 0.0
    killed: float = 0.0


class Tuned(NamedTuple):
    """A program with arguments ``--NAME VALUE``, environment variables, or keys of a file.

    Attributes:
        seed: another one gives other noise and faults.
        factors: how many times as fast a value makes it, by name.
        pairs: the same for two values together, by ``name=value name=value``.
        wall: the product of the numbers in ``memory`` beyond which it runs out of memory.
        how: how it tells its figures: ``pattern``, ``reported``, ``file`` or ``time``.
        noise, faults: as their classes say.
        steps: figures that it prints, of which the first are slow.
    """

    seed: int
    factors: Mapping[str, Mapping[str, float]]
    pairs: Mapping[str, float] = {}
    memory: Sequence[str] = ()
    wall: float = math.inf
    how: str = "pattern"
    noise: Noise = Noise()
    faults: Faults = Faults()
    steps: int = 6
    hosts: Sequence[str] = ("localhost",)


class Program:
    """Runs of one program, in the order of their starts.

    Attributes:
        started: the configurations, in the order of their starts.
    """

    def __init__(self, tuned: Tuned | Scripted) -> None:
        self.tuned = tuned
        self.started: list[str] = []

    def __call__(self, launched: Launched) -> Happening:
        tuned, number = self.tuned, len(self.started)
        draw = random.Random(f"{tuned.seed} run {number}")
        point = tuned_point(launched, tuned) if isinstance(tuned, Tuned) else ds_point(launched)
        key = json.dumps(point, sort_keys=True)
        self.started.append(key)
        luck, cause = draw.random(), random.Random(f"{tuned.seed} {key}")
        # Two draws for each run: what happens to one must not depend on which faults are possible.
        faults, fate = tuned.faults, cause.random()
        if luck < faults.lost:
            host = tuned.hosts[number % len(tuned.hosts)]
            lost = {"cause": "agent lost", "note": f"the connection to {host} was lost", "hosts": [host]}
            return Happening(seconds=1.5, code=70, report=lost)
        if luck < faults.lost + faults.killed:
            return Happening(seconds=1.0, code=137, report=None)
        if fate < faults.failing:
            return Happening(seconds=0.9, code=1, report={"cause": "rank failed", "detail": FAILED})
        factor = tuned.noise.factor(draw, number, key)
        if isinstance(tuned, Tuned):
            return _tuned_run(tuned, point, factor, draw, silent=number > 0 and fate > 1.0 - faults.silent)
        return _scripted_run(tuned, launched, point, factor)


# -- a program -------------------------------------------------------------------------------------------


def tuned_point(launched: Launched, tuned: Tuned) -> dict[str, str]:
    """The value of each parameter, as the program gets it."""
    given = {name.lstrip("-"): value for name, value in zip(launched.args, launched.args[1:], strict=False)}
    given.update(launched.exports)
    if "config" in given:
        with open(given["config"], encoding="utf-8") as file:
            given.update({name: json.dumps(value) for name, value in json.load(file)["training"].items()})
    return {name: given[name] for name in tuned.factors if name in given and given[name] != "-"}


def speed(tuned: Tuned, point: Mapping[str, str]) -> float:
    """Items per second without noise; 0: out of memory."""
    needed = math.prod(float(point.get(name, "1")) for name in tuned.memory)
    if needed > tuned.wall:
        return 0.0
    fast = 100.0 * math.prod(tuned.factors[name].get(value, 1.0) for name, value in point.items())
    words = [f"{name}={value}" for name, value in sorted(point.items())]
    both = (f"{one} {other}" for place, one in enumerate(words) for other in words[place + 1 :])
    return fast * math.prod(tuned.pairs.get(each, 1.0) for each in both)


def _tuned_run(
    tuned: Tuned, point: Mapping[str, str], factor: float, draw: random.Random, *, silent: bool
) -> Happening:
    rate = speed(tuned, point) * factor
    if not rate:
        return Happening(seconds=1.2, code=1, report={"cause": "rank failed", "detail": OUT_OF_MEMORY})
    begin, each = 1.0 + 0.25 * draw.random(), 40.0 / rate
    peak = sum(float(point.get(name, "1")) for name in tuned.memory) + 100.0 / (1.0 + rate / 100.0)
    if tuned.how == "time":
        seconds = begin + tuned.steps * each
        return Happening([(seconds, 1, "done"), (seconds, 1, f"peak: {peak:.4g} MiB")], seconds)
    writes: list[tuple[float, int | str, str]] = []
    when = begin
    for step in range(tuned.steps):
        shown = rate * (1.0 - 0.5 * 0.3**step) * math.exp(0.004 * draw.gauss(0.0, 1.0))
        when += each * rate / shown
        if silent:
            line = f"step {step}"
        elif tuned.how == "reported":
            line = f'{MARK}{{"rate": {shown:.5g}}}'
        else:
            line = f"step {step}: rate: {shown:.5g} items/s"
        writes.append((when, 1, line))
    writes.append((when, 1, f"peak: {peak:.4g} MiB"))
    if tuned.how == "file":
        writes.append((when, "result.json", json.dumps({"rate": float(f"{rate:.5g}")})))
    return Happening(writes, when + 0.5)


# -- a script of DeepSpeed -------------------------------------------------------------------------------

MICRO = "train_micro_batch_size_per_gpu"
GIB = 1 << 30


class Scripted(NamedTuple):
    """A training script that obeys DeepSpeed's autotuning contract.

    Attributes:
        seed: another one gives other noise and faults.
        half: the micro-batch at which it reaches half of its most samples per second.
        tolls: what each stage costs.
        limits: the largest micro-batch that fits, by stage.
        factors: how many times as fast the value of a key makes it, by ``path=value``.
        profile: whether the profiling run tells the number of parameters.
        logs: whether DeepSpeed logs its steps.
        exits: whether it ends after the steps in which it measures.
    """

    seed: int
    half: float = 8.0
    tolls: Sequence[float] = (0.0, 0.1, 0.2, 0.3)
    limits: Sequence[int] = (64, 64, 64, 64)
    factors: Mapping[str, float] = {}
    profile: bool = True
    logs: bool = True
    exits: bool = True
    noise: Noise = Noise()
    faults: Faults = Faults()
    hosts: Sequence[str] = ("localhost",)


def _config(launched: Launched) -> dict[str, Any]:
    word = launched.args[launched.args.index("--deepspeed_config") + 1]
    if word.endswith(".json"):
        with open(word, encoding="utf-8") as file:
            read: dict[str, Any] = json.load(file)
    else:
        read = json.loads(base64.urlsafe_b64decode(word))
    return read


def ds_point(launched: Launched) -> dict[str, Any]:
    """What differs between the configurations: all but paths and steps; and whether this is the profiling run."""
    config = _config(launched)
    section = config.pop("autotuning", {})
    config.pop("steps_per_print", None)
    config.pop("optimizer", None)
    return {**config, **({"profile": True} if "model_info_path" in section else {})}


def _scripted_run(script: Scripted, launched: Launched, point: Mapping[str, Any], factor: float) -> Happening:
    section = _config(launched)["autotuning"]
    if "model_info_path" in section:
        if not script.profile:
            return Happening(seconds=2.0, code=1, report={"cause": "rank failed", "detail": FAILED})
        info = {"num_params": 300_000_000, "trainable_num_params": 300_000_000, "activation_mem_per_gpu": GIB // 2}
        return Happening([(1.5, section["model_info_path"], json.dumps(info))], 2.0)
    zero = point.get("zero_optimization", {})
    stage, micro = zero.get("stage", 0), point[MICRO]
    if micro > script.limits[stage]:
        return Happening(seconds=2.5, code=1, report={"cause": "rank failed", "detail": OUT_OF_MEMORY})
    fast = 1000.0 * micro / (micro + script.half) / (1.0 + script.tolls[stage]) * factor
    fast *= math.prod(script.factors.get(word, 1.0) for word in _words(point))
    samples = point["train_batch_size"]
    each, last = samples / fast, section["end_profile_step"]
    begin = 3.0 + 0.1 * micro / 16
    writes: list[tuple[float, int | str, str]] = []
    steps = last + (0 if script.exits else 400)
    for step in range(1, steps + 1):
        begin += each * (2.0 if step == 1 else 1.0)
        if script.logs:
            writes.append((begin, 1, f"[deepspeed] step={step}, skipped=0, lr=[0.001], mom=[0.9]"))
        if step == last and script.exits:
            figures = {"throughput": fast * 1.02, "latency": 1e6 * each, "FLOPS_per_gpu": fast * 1e9}
            figures |= {"fwd": 0.3e6 * each, "bwd": 0.6e6 * each, "step": 0.1e6 * each}
            shown = {name: float(f"{value:.6g}") for name, value in figures.items()}
            writes.append((begin, section["metric_path"], json.dumps(shown)))
    return Happening(writes, begin + 0.5)


def _words(config: Mapping[str, Any], above: str = "") -> list[str]:
    words = []
    for key, value in config.items():
        if isinstance(value, Mapping):
            words += _words(value, f"{above}{key}.")
        else:
            words.append(f"{above}{key}={json.dumps(value)}")
    return words
