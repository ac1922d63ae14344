"""Measures whether answers are honest, whether studies end, and whether their forecast is right; prints Markdown.

    python benchmarks/answers.py [--only honest,ends,forecast] [--seeds 200] [--first 0] [--noise 0.03,0.1]

Nothing runs but the simulation; a trial takes 10 seconds of its clock.

- ``honest``: claims and intervals where two, eight or 24 points are the same, under many kinds of noise.
- ``ends``: the runs of a study that goes on until it is sure, and how far its answer is behind the best.
- ``forecast``: the time that is said at the first confirmation, against what it takes.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
from collections.abc import Callable, Iterator, Sequence

from search import table
from search_landscapes import better, equal

from bireme.tune.space.points import Point, key_of
from bireme.tune.study.study import Forecast, Study

PHASES = ("search", "screen", "confirm")

Noise = Callable[[random.Random], Iterator[float]]
"""The noise of one run after the other, in logarithms."""


def normal(size: float) -> Noise:
    return lambda draw: iter(lambda: draw.gauss(0, size), None)


def heavy(draw: random.Random) -> Iterator[float]:
    """Student's t with two degrees of freedom: no variance."""
    while True:
        yield 0.03 * draw.gauss(0, 1) / math.sqrt(draw.expovariate(1))


def skewed(draw: random.Random) -> Iterator[float]:
    while True:
        yield -draw.expovariate(1 / 0.05)


def drifting(draw: random.Random) -> Iterator[float]:
    place = 0.0
    while True:
        place += 0.003
        yield place + draw.gauss(0, 0.02)


def autocorrelated(draw: random.Random) -> Iterator[float]:
    place = 0.0
    while True:
        place = 0.95 * place + draw.gauss(0, 0.02)
        yield place


def bimodal(draw: random.Random) -> Iterator[float]:
    while True:
        yield -0.2 * (draw.random() < 0.3) + draw.gauss(0, 0.01)


def periodic(period: int) -> Noise:
    """Every so many runs, one is 8 % slower."""

    def noise(draw: random.Random) -> Iterator[float]:
        place = draw.randrange(period)
        while True:
            place += 1
            yield -0.08 * (place % period == 0) + draw.gauss(0, 0.01)

    return noise


NOISES: dict[str, Noise] = {
    **{f"normal, {size:.0%}": normal(size) for size in (0.01, 0.03, 0.1, 0.3)},
    "heavy-tailed": heavy,
    "skewed": skewed,
    "drifting": drifting,
    "autocorrelated": autocorrelated,
    "bimodal": bimodal,
    "alternating": periodic(2),
    **{f"every {period} runs": periodic(period) for period in (3, 4, 5, 8, 10)},
}


class Played:
    """A simulated study. ``forecast``: (lower end, middle, upper end) in seconds when the first confirmation began."""

    def __init__(
        self,
        space: object,
        score: Callable[[Point], float],
        noise: Iterator[float],
        *,
        seed: int,
        most: int = 100_000,
        uneven: bool = False,
        **options: object,
    ) -> None:
        now = [0.0]
        study = Study(space, maximize="figure", clock=lambda: now[0], seed=seed, **options)  # type: ignore[arg-type]
        self.runs = dict.fromkeys(("noise", "search", "screen", "confirm"), 0)
        self.began: float | None = None
        self.forecast: Forecast | None = None
        while sum(self.runs.values()) < most and (trial := study.ask()):
            if trial.phase == "confirm" and self.began is None:
                self.began = now[0]
                self.forecast = study.forecast
            now[0] += 10.0
            self.runs[trial.phase] += 1
            size = 1 + 2 * (hash(key_of(trial.point)) % 3) if uneven else 1
            study.tell(trial.name, figure=100 * math.exp(score(trial.point) + size * next(noise)))
        self.answer, self.took, self.over = study.answer, now[0], study.over
        self.total = sum(self.runs.values())


def honest(seeds: range, noises: Sequence[str], sizes: Sequence[int], most: int) -> None:
    rows = [["noise", "points", "claims", "intervals that miss", "runs"]]
    for name in [*NOISES, "heteroscedastic"]:
        if noises and not any(each in name for each in noises):
            continue
        for size in sizes:
            claims = missed = compared = 0
            runs = []
            for seed in seeds:
                draw = random.Random(f"{name} {size} {seed}")
                uneven = name == "heteroscedastic"
                noise = NOISES.get(name, normal(0.03))(draw)
                played = Played(
                    {"x": list(range(size))}, lambda _: 0.0, noise, seed=seed, uneven=uneven, most=most, confirm="sure"
                )
                claims += played.answer.confirmed
                missed += any(not each.low <= 1 <= (each.high or math.inf) for each in played.answer.compared)
                compared += bool(played.answer.compared)
                runs.append(played.total)
            row = [name, str(size), f"{claims / len(seeds):.1%}", f"{missed / len(seeds):.1%}"]
            rows.append([*row, f"{statistics.mean(runs):.0f}"])
            print(rows[-1], flush=True)
    print(f"### Claims, and studies with an interval that misses, where all points are the same, {len(seeds)} each\n")
    table(*rows)


def ends(seeds: range, noises: Sequence[float], most: int) -> None:
    rows = [["what differs", "noise", "runs", "search + screening + rounds", "more than 2 % behind", "confirmed"]]
    for noise in noises:
        for text, landscape in (
            ("one is 10 % better", better(24, noise, 0.10, False)),
            ("one is 4 % better", better(24, noise, 0.04, False)),
            ("a quarter is 4 % better", better(24, noise, 0.04, True)),
            ("nothing", equal(24, noise)),
        ):
            best = max(figure for _, figure, _ in landscape.truth.values())
            played = []
            behind = 0
            for seed in seeds:
                draw = random.Random(f"{text} {noise} {seed}")
                score = lambda point, land=landscape: math.log(land.truth[key_of(point)][1] / 100)  # noqa: E731
                one = Played(landscape.space, score, normal(noise)(draw), seed=seed, most=most, confirm="sure")
                found = one.answer.best
                behind += found is None or landscape.truth[key_of(found)][1] < best / 1.02
                played.append(one)
            phases = " + ".join(
                f"{statistics.mean(each.runs[phase] for each in played):.0f}"
                for phase in ("search", "screen", "confirm")
            )
            row = [text, f"{noise:.0%}", f"{statistics.mean(each.total for each in played):.0f}", phases]
            confirmed = sum(each.answer.confirmed for each in played) / len(seeds)
            rows.append([*row, f"{behind / len(seeds):.1%}", f"{confirmed:.0%}"])
            print(rows[-1], flush=True)
    print(f"### Studies of 24 points that go on until they are sure, {len(seeds)} each\n")
    table(*rows)


def forecasts(seeds: range, most: int) -> None:
    rows = [["--confirm", "noise", "studies with a confirmation", "within a factor of 2", "median of said / took"]]
    for confirm in ("50%", "sure"):
        for noise in (0.01, 0.03, 0.1):
            ratios = []
            for seed in seeds:
                draw = random.Random(f"forecast {noise} {seed}")
                best = [draw.gauss(0, 0.05) for _ in range(12)]
                score = lambda point, best=best: best[int(str(point["x"]))]  # noqa: E731
                space = {"x": list(range(len(best)))}
                played = Played(space, score, normal(noise)(draw), seed=seed, most=most, confirm=confirm)
                if played.began is not None and played.forecast is not None:
                    ratios.append(max(played.forecast.seconds, 1.0) / max(played.took - played.began, 1.0))
            near = sum(0.5 <= each <= 2 for each in ratios) / max(1, len(ratios))
            middle = f"{statistics.median(ratios):.2f}" if ratios else ""
            rows.append([confirm, f"{noise:.0%}", str(len(ratios)), f"{near:.0%}", middle])
            print(rows[-1], flush=True)
    print(f"### What is said at the first confirmation, and what it took, {len(seeds)} studies of 12 points each\n")
    table(*rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--only", default="honest,ends,forecast")
    parser.add_argument("--noise", default="0.03,0.1", help="of ends")
    parser.add_argument("--kinds", default="", help="of noise, for honest: only those whose names contain one of these")
    parser.add_argument("--sizes", default="2,8,24", help="numbers of equal points")
    parser.add_argument("--most", type=int, default=6000, help="runs of a study")
    options = parser.parse_args()
    seeds, only = range(options.first, options.first + options.seeds), options.only.split(",")
    if "honest" in only:
        kinds = [each for each in options.kinds.split(",") if each]
        honest(seeds, kinds, [int(each) for each in options.sizes.split(",")], options.most)
    if "ends" in only:
        ends(seeds, [float(each) for each in options.noise.split(",")], options.most)
    if "forecast" in only:
        forecasts(seeds, options.most)


if __name__ == "__main__":
    main()
