"""Compares searches and whole studies on landscapes whose best is known, and prints tables in Markdown.

    python benchmarks/search.py [--seeds 50] [--first 0] [--noise 0.01,0.03] [--only runs,budget,equal,whole]
                                [--landscapes gcc,kernel,…] [--sizes 8,24,60]

Nothing runs but the simulation: a trial draws its figure and its seconds from the landscape. Recorded landscapes are
those in ``landscapes/``; the synthetic ones are in ``search_landscapes.py``.

- ``runs``: how many runs a search needs until its answer is a point within 2 % of the true best.
- ``budget``: a study that may take 20 % of the time of a grid with one run of each point, rounds included.
- ``whole``: a study that ends by itself, and what a grid would cost that is repeated until it is as sure.
- ``equal``: how often a study claims a winner where there is none, and where one is better by 4 %.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
from collections.abc import Iterator, Sequence
from itertools import islice

from search_landscapes import Landscape, all_recorded, better, dense, equal, public, synthetic

from bireme.tune.samplers import make
from bireme.tune.samplers.sampler import Observation, best_of, observe
from bireme.tune.space.points import Point
from bireme.tune.study.study import Answer, Study

CLOSE = 0.02
RUNS = 40


class Result:
    """A simulated study: its answer, its cost in grids of one run each, and its runs by phase."""

    def __init__(self, landscape: Landscape, seed: int, seconds: float | None = None) -> None:
        draw, now = random.Random(f"{landscape.name} {seed}"), [0.0]
        goals = [landscape.goal]
        study = Study(landscape.space, goals, seed=seed, seconds=seconds, clock=lambda: now[0])
        self.runs = dict.fromkeys(("noise", "search", "screen", "confirm"), 0)
        while trial := study.ask():
            result = landscape.run(trial.point, draw)
            now[0] += result.seconds
            self.runs[trial.phase] += 1
            study.tell(trial.name, result)
        self.answer: Answer = study.answer
        self.cost = now[0] / landscape.cost
        self.regret = landscape.regret(self.answer.best)
        self.guess = self.regret if self.answer.confirmed else landscape.regret(self.answer.promising)


def regrets(landscape: Landscape, kind: str, seed: int) -> Iterator[float]:
    """How far behind the true best the answer of a search is after each run; the first run is of the default.

    The answer of a search with a model is the point of which it expects the most, of others the best figure.
    """
    draw = random.Random(f"{landscape.name} {seed}")
    options = {"repeats": True} if kind == "model_based" else {}
    sampler, finished = make(kind, seed, **options), dict[str, Observation]()
    point: Point | None = landscape.space.default
    while point is not None:
        result = landscape.run(point, draw)
        value = result.metrics.get(landscape.goal.name)
        if value is not None and landscape.goal.direction == "minimize":
            value = 1 / value
        observe(finished, point, value, result.cause, result.seconds)
        expected, first = sampler.estimates(landscape.space, finished), best_of(finished)
        yield landscape.regret(max(expected, key=lambda each: each[0])[2] if expected else first and first.point)
        point = sampler.propose(landscape.space, finished, {})


def runs_needed(landscape: Landscape, kind: str, seed: int) -> int:
    """Runs until the search would answer with a point within 2 % of the true best; at most as many as points."""
    size = landscape.space.size
    answers = islice(enumerate(regrets(landscape, kind, seed), 1), size)
    return next((count for count, regret in answers if regret <= CLOSE), size)


def behind(landscape: Landscape, kind: str, seed: int) -> float:
    """How far behind the true best the search is after `RUNS` runs."""
    return list(islice(regrets(landscape, kind, seed), RUNS))[-1]


def spread(values: Sequence[float], unit: str = "") -> str:
    """The median, and what nine in ten do not exceed."""
    scale = 100 if unit == "%" else 1
    nine_in_ten = sorted(values)[math.ceil(0.9 * len(values)) - 1]
    return f"{scale * statistics.median(values):.3g} / {scale * nine_in_ten:.3g}"


def table(*rows: Sequence[str]) -> None:
    print("| " + " | ".join(rows[0]) + " |\n|" + "---|" * len(rows[0]))
    for row in rows[1:]:
        print("| " + " | ".join(row) + " |")
    print(flush=True)


def compare_runs(landscapes: Sequence[Landscape], seeds: range) -> None:
    kinds = ["model_based", "random"]
    try:
        import optuna  # noqa: F401

        kinds.insert(1, "optuna:TPE")
    except ImportError:
        print("(optuna is not installed)\n")
    rows = [["landscape", "points", "noise", *kinds]]
    totals = dict.fromkeys(kinds, 0.0)
    for landscape in landscapes:
        cells = []
        for kind in kinds:
            counts = [runs_needed(landscape, kind, seed) for seed in seeds]
            totals[kind] += statistics.median(counts)
            cells.append(spread(counts))
        rows.append([landscape.name, str(landscape.space.size), f"{landscape.noise:.1%}", *cells])
    rows.append(["sum of medians", "", "", *(f"{totals[kind]:g}" for kind in kinds)])
    print(f"### Runs until the answer is within {CLOSE:.0%} of the true best (median / nine in ten)\n")
    table(*rows)


def compare_behind(landscapes: Sequence[Landscape], seeds: range, kinds: Sequence[str]) -> None:
    print(f"### Behind the true best after {RUNS} runs, %, {len(seeds)} seeds (median / nine in ten)\n")
    rows = [["landscape", "points", "noise", *kinds]]
    for landscape in landscapes:
        points = f"{landscape.space.size:,}"
        cells = [spread([behind(landscape, kind, seed) for seed in seeds], "%") for kind in kinds]
        rows.append([landscape.name, points, f"{landscape.noise:.1%}", *cells])
        print("|", " | ".join(rows[-1]), "|", file=sys.stderr, flush=True)
    table(*rows)


def compare_studies(landscapes: Sequence[Landscape], seeds: range, part: float | None) -> None:
    rows = [["landscape", "points", "noise", "answer behind, %", "guess behind, %", "confirmed", "cost, grids", "runs"]]
    if part is None:
        rows[0].append("equally sure grid")
    for landscape in landscapes:
        seconds = None if part is None else part * landscape.cost
        results = [Result(landscape, seed, seconds) for seed in seeds]
        row = [landscape.name, str(landscape.space.size), f"{landscape.noise:.1%}"]
        row.append(spread([each.regret for each in results], "%"))
        row.append(spread([each.guess for each in results], "%"))
        row.append(f"{sum(each.answer.confirmed for each in results) / len(seeds):.0%}")
        row.append(spread([each.cost for each in results]))
        row.append(
            " + ".join(f"{statistics.median(each.runs[phase] for each in results):g}" for phase in results[0].runs)
        )
        if part is None:
            row.append(f"{sure_grid(landscape):.1f}")
        rows.append(row)
    what = "ends by itself" if part is None else f"may take {part:.0%} of the time of a grid"
    print(f"### A study that {what} (median / nine in ten; runs: noise + search + screening + rounds)\n")
    table(*rows)
    print("Behind the true best: the answer (the default, where nothing is confirmed), and the guess (the confirmed")
    print("best; where nothing is confirmed, the point that the study calls the most promising).\n")


def sure_grid(landscape: Landscape) -> float:
    """How often a grid must run each point to tell 2 % at 95 %, with equal shares of the error for all points."""
    share = 0.05 / landscape.space.size
    quantile_of_normal = statistics.NormalDist().inv_cdf(1 - share / 2)
    return max(1.0, math.ceil(2 * (quantile_of_normal * landscape.noise / math.log1p(CLOSE)) ** 2))


def compare_equal(noises: Sequence[float], sizes: Sequence[int], seeds: range) -> None:
    rows = [["what differs", "points", "noise", "claims a winner", "of the better ones", "runs"]]
    for noise in noises:
        for size in sizes:
            kinds = [("nothing", equal(size, noise)), ("a quarter is 4 % better", better(size, noise, 0.04, True))]
            if size <= 24:
                kinds.append(("one is 4 % better", better(size, noise, 0.04, False)))
            for text, landscape in kinds:
                results = [Result(landscape, seed) for seed in seeds]
                claims = [each for each in results if each.answer.confirmed]
                right = sum(each.regret < 0.001 for each in claims) / len(seeds) if text != "nothing" else math.nan
                runs = statistics.mean(sum(each.runs.values()) for each in results)
                row = [text, str(size), f"{noise:.0%}", f"{len(claims) / len(seeds):.1%}"]
                rows.append([*row, "" if math.isnan(right) else f"{right:.1%}", f"{runs:.0f}"])
    print(f"### Claims in {len(seeds)} studies each\n")
    table(*rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--noise", default="0.01,0.03", help="of the synthetic landscapes")
    parser.add_argument("--sizes", default="8,24,60", help="points of the spaces in which most are the same")
    parser.add_argument("--only", default="runs,budget,whole,equal")
    parser.add_argument("--landscapes", default="", help="only those with these names")
    parser.add_argument("--kinds", default="model_based,optuna:TPE,random", help="searches for the table of `behind`")
    parser.add_argument("--public", default="", help="a folder with clones of public recordings, see `public`")
    options = parser.parse_args()
    noises = [float(each) for each in options.noise.split(",")]
    landscapes = [*all_recorded(), *(each for noise in noises for each in synthetic(noise))]
    many = [*landscapes, *dense(0.0), *(public(options.public) if options.public else ())]
    if options.landscapes:
        landscapes = [each for each in landscapes if each.name in options.landscapes.split(",")]
        many = [each for each in many if each.name in options.landscapes.split(",")]
    only, seeds = options.only.split(","), range(options.first, options.first + options.seeds)
    if "runs" in only:
        compare_runs(landscapes, seeds)
    if "behind" in only:
        compare_behind(many, seeds, options.kinds.split(","))
    if "budget" in only:
        compare_studies(landscapes, seeds, 0.2)
    if "whole" in only:
        compare_studies(landscapes, seeds, None)
    if "equal" in only:
        sizes = [int(each) for each in options.sizes.split(",")]
        compare_equal(noises, sizes, range(options.first, options.first + 8 * options.seeds))


if __name__ == "__main__":
    main()
