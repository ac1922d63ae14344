"""Landscapes to try a search on: made up, or recorded from real programs. Pure computations, no processes."""

from __future__ import annotations

import csv
import gzip
import itertools
import json
import math
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bireme.tune.space.points import Parameter, Point, Space, key_of
from bireme.tune.space.value_lists import read
from bireme.tune.study.study import Objective, TrialResult

Truth = tuple[str, float, float]
"""(cause, figure without noise, seconds)."""


class Landscape:
    """A space, a goal, and what each point would give.

    ``truth``: of the point with a key. ``repeats``: recorded runs of each point, of which one is drawn for each trial;
    without them, the noise is normal.
    """

    def __init__(
        self,
        name: str,
        space: Space,
        goal: Objective,
        truth: Mapping[str, Truth],
        noise: float,
        repeats: Mapping[str, list[tuple[float, float]]] | None = None,
    ) -> None:
        self.name, self.space, self.goal, self.truth, self.noise = name, space, goal, truth, noise
        self.repeats = repeats or {}
        figures = [figure for cause, figure, _ in truth.values() if cause == "ok"]
        self.best = max(figures) if goal.direction == "maximize" else min(figures)
        self.cost = sum(seconds for _, _, seconds in truth.values())

    def at(self, point: Point) -> Truth:
        """What a point gives."""
        return self.truth[key_of(point)]

    def run(self, point: Point, draw: random.Random) -> TrialResult:
        """One trial."""
        cause, figure, seconds = self.at(point)
        if cause != "ok":
            return TrialResult(cause=cause, seconds=seconds, reason=cause)  # type: ignore[arg-type]  # one of them
        if runs := self.repeats.get(key_of(point)):
            figure, seconds = draw.choice(runs)
        else:
            slower = math.exp(draw.gauss(0, self.noise))
            figure = figure / slower if self.goal.direction == "maximize" else figure * slower
            seconds *= slower
        return TrialResult(metrics={self.goal.name: figure}, seconds=seconds)

    def regret(self, point: Point | None) -> float:
        """How much worse than the best a point is, as a fraction; 1.0 if it does not work."""
        cause, figure, _ = self.at(point) if point is not None else ("failed", 0.0, 0.0)
        if cause != "ok":
            return 1.0
        return 1 - (figure / self.best if self.goal.direction == "maximize" else self.best / figure)


class Formula(Landscape):
    """A landscape of too many points to be listed, whose best figure is 1."""

    def __init__(self, name: str, space: Space, noise: float, formula: Callable[[Point], float]) -> None:
        super().__init__(name, space, Objective("figure", "maximize"), {"": ("ok", 1.0, 1.0)}, noise)
        self._formula = formula

    def at(self, point: Point) -> Truth:
        return "ok", self._formula(point), 1.0


class Listed(Space):
    """Some points of a space: those that were recorded."""

    def __init__(self, parameters: Sequence[Parameter], points: Sequence[Point]) -> None:
        super().__init__(parameters)
        self._listed = [dict(point) for point in points]
        self._keys = set(map(key_of, points))
        self.size = len(self._listed)

    def point(self, index: int) -> dict[str, object]:
        return dict(self._listed[index])

    def points(self) -> Iterator[dict[str, object]]:
        return map(dict, self._listed)

    def allows(self, point: Point) -> bool:
        return key_of(point) in self._keys


def recorded(path: str) -> Landscape:
    """A landscape from a file of runs: ``parameters``, ``goal``, and ``trials`` with all their repeats."""
    with open(path, encoding="utf-8") as file:
        data: dict[str, Any] = json.load(file)
    parameters = [
        Parameter(
            name=each["name"],
            choices=tuple(each["choices"]),
            default=each.get("default", each["choices"][0]),
            ordered=each.get("ordered"),
            memory=each.get("memory", False),
        )
        for each in data["parameters"]
    ]
    space = Listed(tuple(parameters), [trial["point"] for trial in data["trials"]])
    truth: dict[str, Truth] = {}
    repeats: dict[str, list[tuple[float, float]]] = {}
    spreads = []
    for trial in data["trials"]:
        key, figures, seconds = key_of(trial["point"]), trial.get("figures", []), trial["seconds"]
        mean = math.exp(sum(map(math.log, figures)) / len(figures)) if figures else 0.0
        truth[key] = (trial["cause"], mean, sum(seconds) / len(seconds))
        if figures:
            repeats[key] = list(zip(figures, seconds, strict=True))
            spreads.extend(math.log(figure / mean) ** 2 * len(figures) / max(1, len(figures) - 1) for figure in figures)
    noise = math.sqrt(sum(spreads) / len(spreads))
    goal = Objective(data["goal"]["name"], data["goal"]["direction"])
    return Landscape(os.path.basename(path).removesuffix(".json"), space, goal, truth, noise, repeats)


def all_recorded() -> list[Landscape]:
    """The recorded landscapes."""
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "landscapes")
    return [recorded(os.path.join(folder, name)) for name in sorted(os.listdir(folder)) if name.endswith(".json")]


def public(folder: str) -> list[Landscape]:
    """Landscapes that others have recorded, in clones of their repositories.

    They are not part of this repository. ``FOLDER/DeepPerf``: github.com/DeepPerf/DeepPerf, programs that were measured
    by the SPLConqueror project, one figure for each point: requests/s of Apache, seconds of the others.
    ``FOLDER/benchmark_hub``: github.com/AutoTuningAssociation/benchmark_hub, an OpenCL and CUDA kernel.
    """
    data, hub = Path(folder, "DeepPerf", "Data"), Path(folder, "benchmark_hub", "cachefiles")
    tables = [_table(data / f"{name}_AllNumeric.csv") for name in ("Apache", "LLVM", "SQL", "x264")]
    return [*tables, _kernel(hub / "convolution_milo" / "A100.json.gz")]


def _table(path: Path) -> Landscape:
    """A table of zeros and ones, with the figure in the last column. Columns of which one is 1 are one parameter."""
    with open(path, encoding="utf-8") as file:
        names, *lines = csv.reader(file)
    rows = [tuple(map(int, map(float, line[:-1]))) for line in lines]
    figures = [float(line[-1]) for line in lines]
    groups, at = list[range](), 0
    while at < len(names) - 1:
        ends = range(at + 2, len(names))
        end = next((end for end in ends if all(sum(row[at:end]) == 1 for row in rows)), at + 1)
        groups.append(range(at, end))
        at = end
    parameters, takes = [], list[Callable[[tuple[int, ...]], int]]()
    for columns in groups:
        take = (
            (lambda row, c=columns: row[c[0]])
            if len(columns) == 1
            else (lambda row, c=columns: row[c[0] : c[-1] + 1].index(1))
        )
        if len(values := sorted(set(map(take, rows)))) > 1:
            parameters.append(
                Parameter(name=names[columns[0]], choices=tuple(values), default=take(rows[0]), ordered=len(values) > 2)
            )
            takes.append(take)
    direction = "maximize" if path.name.startswith("Apache") else "minimize"
    points = [{each.name: take(row) for each, take in zip(parameters, takes, strict=True)} for row in rows]
    truth = {
        key_of(point): ("ok", figure, 1.0 if direction == "maximize" else figure)
        for point, figure in zip(points, figures, strict=True)
    }
    goal = Objective("figure", direction)  # type: ignore[arg-type]  # one of the two
    return Landscape(f"public {path.name.partition('_')[0]}", Listed(parameters, points), goal, truth, 0.0)


def _kernel(path: Path) -> Landscape:
    """A recording of Kernel Tuner: milliseconds of a kernel, or why it did not run."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        data: dict[str, Any] = json.load(file)
    parameters = [
        Parameter(name=name, choices=tuple(values)) for name, values in data["tune_params"].items() if len(values) > 1
    ]
    truth: dict[str, Truth] = {}
    repeats: dict[str, list[tuple[float, float]]] = {}
    points = []
    for each in data["cache"].values():
        point = {parameter.name: each[parameter.name] for parameter in parameters}
        points.append(point)
        # Compiling takes most of the time of a run.
        seconds = (each["compile_time"] + each.get("benchmark_time", 0.0)) / 1000
        works = isinstance(each["time"], float)
        truth[key_of(point)] = ("ok", each["time"], seconds) if works else ("failed", 0.0, seconds)
        if works:
            repeats[key_of(point)] = [(time, seconds) for time in each["times"]]
    goal = Objective("ms", "minimize")
    return Landscape("public convolution", Listed(parameters, points), goal, truth, 0.0, repeats)


def dense(noise: float) -> list[Landscape]:
    """Landscapes of ranges with more numbers than anybody can try."""

    def peak(centre: float, width: float) -> Callable[[Point], float]:
        return lambda point: 1 / (1 + ((_number(point, "x") / 10**6 - centre) / width) ** 2)

    def decades(point: Point) -> float:
        return 1 / (1 + math.log10(_number(point, "x") / 3000) ** 2)

    def rates(point: Point) -> float:
        rate, drop, batch = (_number(point, name) for name in ("lr", "drop", "batch"))
        # The larger the batch, the larger the best rate.
        off = math.log10(rate / (3e-5 * batch**0.5)), 4 * (drop - 0.1), 0.7 * math.log10(batch / 50)
        return math.exp(-0.3 * sum(each**2 for each in off)) * (0.2 if rate > 0.03 else 1.0)

    def space(**values: str) -> Space:
        return Space([read(name, text, where=name) for name, text in values.items()])

    million, log = space(x="1..1000000"), space(x="1..1000000:log")
    reals = space(lr="1e-5..1e-1:log", drop="0.0..0.5", batch="1..4096:log")
    return [
        *(
            Formula(f"integer {at:g}", million, noise, peak(at, width))
            for at, width in ((0.37, 0.09), (0.7, 0.2), (0.12, 0.05))
        ),
        Formula("integer of decades", million, noise, decades),
        Formula("log integer", log, noise, decades),
        Formula("rates", reals, noise, rates),
    ]


def _number(point: Point, name: str) -> float:
    return float(str(point[name]))


def synthetic(noise: float) -> list[Landscape]:
    """All synthetic landscapes, with this noise."""
    return [make(noise) for make in (training, pipeline, sharding, compression, flags, pragmas, switches, kernel)]


def equal(size: int, noise: float) -> Landscape:
    """All points are the same: whoever finds a winner is fooled."""
    rest = size // 4
    space = _space(a=range(4), b=range(rest))
    return _build("equal", space, "maximize", noise, lambda point: ("ok", 100.0, 10.0))


def better(size: int, noise: float, effect: float, structured: bool) -> Landscape:
    """A quarter of the points, or only one, is better by ``effect``, and the default is not among them."""
    space = _space(a=range(4), b=range(size // 4))

    def truth(point: Point) -> Truth:
        good = point["a"] == 2 and (structured or point["b"] == size // 8)
        return "ok", 100.0 * (1 + effect * good), 10.0

    return _build("structured" if structured else "needle", space, "maximize", noise, truth)


# -- made up ----------------------------------------------------------------------------------------------


def training(noise: float) -> Landscape:
    """Throughput rises with the batch and saturates, until the memory is full; compiling takes time and helps."""

    def truth(point: Point) -> Truth:
        batch, compiled, half, workers = _numbers(point, "batch", "compile", "half", "workers")
        if batch * (1.0 if half else 1.8) * (0.85 if compiled else 1.0) > 150:
            return "out of memory", 0.0, 12.0
        step = 0.02 + batch * 0.001 / (1.7 if half else 1.0) / (1.25 if compiled else 1.0)
        step = max(step, batch * 0.0022 / (0.5 + workers))
        return "ok", batch / step, 15.0 + 25.0 * compiled + 100 * step

    space = _space(batch=[8, 16, 32, 64, 96, 128, 192, 256], compile=[0, 1], half=[0, 1], workers=[1, 2, 4, 8])
    return _build("training", space, "maximize", noise, truth, memory=("batch",))


def pipeline(noise: float) -> Landscape:
    """The slowest of three stages limits the rate: mostly plateaus."""

    def truth(point: Point) -> Truth:
        readers, prefetch, decoders, chunk = _numbers(point, "readers", "prefetch", "decoders", "chunk")
        rate = min(90 * readers**0.8, 240 * (1 - 0.7 ** (prefetch + 1)), 60 * decoders, 300 * chunk / (chunk + 16))
        if readers + decoders > 12:
            rate *= 12 / (readers + decoders)
        return "ok", rate, 20.0

    space = _space(readers=[1, 2, 4, 6, 8], prefetch=[0, 1, 2, 4, 8], decoders=[1, 2, 3, 4, 6], chunk=[8, 32, 128])
    return _build("pipeline", space, "maximize", noise, truth)


def sharding(noise: float) -> Landscape:
    """The more is sharded, the more fits, and the slower it is: the wall is elsewhere for each stage."""

    def truth(point: Point) -> Truth:
        stage, micro, offload, overlap = _numbers(point, "stage", "micro", "offload", "overlap")
        need = 40 / (1 + stage) * (0.3 if offload else 1.0) + micro * 1.5 + 4 * overlap
        if need > 48:
            return "out of memory", 0.0, 25.0
        wire = 0.04 * (1 + 0.5 * stage) * (0.55 if overlap else 1.0)
        step = micro * 0.01 + 0.03 + wire + 0.12 * offload * (1 - 0.15 * stage)
        return "ok", micro / step, 30.0 + 20 * step

    space = _space(stage=[0, 1, 2, 3], micro=[1, 2, 4, 8, 12, 16, 20, 24, 28, 32], offload=[0, 1], overlap=[0, 1])
    return _build("sharding", space, "maximize", noise, truth, memory=("micro",))


def compression(noise: float) -> Landscape:
    """Time is minimized, and bad points take twenty times as long as good ones."""

    def truth(point: Point) -> Truth:
        level, threads, window, long = _numbers(point, "level", "threads", "window", "long")
        work = 2.0 * 1.25**level * (1 + 0.04 * abs(window - 21)) * (1.3 if long else 1.0)
        written = 30.0 * 0.93**level * (0.85 if long else 1.0) * (1 - 0.01 * (window - 17))
        return "ok", work / threads**0.85 + written + 0.4 * threads, work / threads**0.85 + written + 0.4 * threads

    space = _space(level=range(1, 20), threads=[1, 2, 4, 8], window=[17, 21, 24], long=[0, 1])
    return _build("compression", space, "minimize", noise, truth)


def flags(noise: float) -> Landscape:
    """Categories that interact in pairs, without an order."""
    names, draw = ("opt", "march", "math", "unroll"), random.Random(11)
    kinds = [f"k{number}" for number in range(4)]
    single = {(name, kind): draw.gauss(0, 0.12) for name in names for kind in kinds}
    pairs = {
        (one, first, other, second): draw.gauss(0, 0.05)
        for one, other in itertools.combinations(names, 2)
        for first in kinds
        for second in kinds
    }

    def truth(point: Point) -> Truth:
        score = sum(single[name, str(point[name])] for name in names)
        score += sum(value for (a, x, b, y), value in pairs.items() if point[a] == x and point[b] == y)
        return "ok", 10 * math.exp(-score), 8.0 + 10 * math.exp(-score)

    space = _space(**dict.fromkeys(names, kinds))
    return _build("flags", space, "minimize", noise, truth)


def pragmas(noise: float) -> Landscape:
    """One choice decides, the rest matters little; some combinations are refused."""

    def truth(point: Point) -> Truth:
        journal, sync = str(point["journal"]), str(point["sync"])
        cache, page = _numbers(point, "cache", "page")
        if journal == "off" and sync == "extra":
            return "failed", 0.0, 1.0
        rate = {"delete": 100, "truncate": 118, "persist": 125, "memory": 180, "wal": 260, "off": 230}[journal]
        slower = {"extra": 1.6, "full": 1.35, "normal": 1.0}[sync]
        slower = 1 + (slower - 1) * (0.4 if journal == "wal" else 1.0)
        rate *= 1 - 0.12 * math.exp(-cache / 8) - 0.02 * abs(math.log2(page / 8))
        return "ok", rate / slower, 3.0 + 1000 * slower / rate

    kinds = ["delete", "truncate", "persist", "memory", "wal", "off"]
    space = _space(journal=kinds, sync=["full", "normal", "extra"], cache=[2, 8, 32, 128], page=[1, 2, 4, 8, 16, 32])
    return _build("pragmas", space, "maximize", noise, truth)


def switches(noise: float) -> Landscape:
    """Eight switches: most do nothing, three matter, and two only together."""

    def truth(point: Point) -> Truth:
        on = _numbers(point, *"abcdefgh")
        score = 0.08 * on[1] + 0.05 * on[4] - 0.1 * on[2] + (0.14 if on[5] and on[6] else -0.03 * (on[5] + on[6]))
        return "ok", 100 * math.exp(score), 10.0

    return _build("switches", _space(**{name: [0, 1] for name in "abcdefgh"}), "maximize", noise, truth)


def kernel(noise: float) -> Landscape:
    """Tiles of a matrix product: a ridge where their product fits the cache, cliffs beyond, and a few that crash."""

    def truth(point: Point) -> Truth:
        m, n, k, warps = _numbers(point, "m", "n", "k", "warps")
        shared = (m * k + k * n) * 2 / 1024
        if shared > 100 or m * n / (32 * warps) > 256:
            return "failed", 0.0, 2.0
        busy = min(1.0, m * n / 16384) ** 0.35 * min(1.0, k / 32) ** 0.2
        busy *= 1 - 0.06 * abs(math.log2(m / n)) - (0.15 if shared > 48 else 0.0) - 0.05 * abs(math.log2(warps / 4))
        return "ok", 1 / busy, 4.0 + 6 / busy

    space = _space(m=[16, 32, 64, 128, 256], n=[16, 32, 64, 128, 256], k=[16, 32, 64, 128], warps=[1, 2, 4, 8])
    return _build("kernel", space, "minimize", noise, truth)


def _numbers(point: Point, *names: str) -> Iterator[Any] | list[Any]:
    return [point[name] for name in names]


def _space(**choices: Sequence[object]) -> Space:
    return Space(tuple(Parameter(name=name, choices=tuple(values)) for name, values in choices.items()))


def _build(
    name: str,
    space: Space,
    direction: Any,
    noise: float,
    truth: Callable[[Point], Truth],
    memory: Sequence[str] = (),
) -> Landscape:
    space = Space(tuple(each.replace(memory=each.name in memory) for each in space.parameters))
    goal = Objective("figure", direction)
    return Landscape(name, space, goal, {key_of(point): truth(point) for point in space.points()}, noise)
