"""What the contestants of ``tune.py`` have found, its tables, and its JSON."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import NamedTuple

import contest

DEEPSPEED = "deepspeed"


class Configuration(NamedTuple):
    stage: int
    micro: int
    accumulation: int

    def __str__(self) -> str:
        return f"stage {self.stage}, {self.micro} x {self.accumulation}"


@dataclass
class Found:
    """What a contestant has measured and chosen, and how many seconds it took."""

    seconds: float
    throughput: dict[Configuration, float]
    winner: Configuration | None
    launched: int
    ties: list[str] = field(default_factory=list)
    """The names of what it cannot tell apart from the winner."""

    @property
    def figure(self) -> float | None:
        return None if self.winner is None else self.throughput.get(self.winner)


Round = Mapping[str, Found]
"""The results of one round, by the contestant's name."""


def means(rounds: Sequence[Round]) -> dict[Configuration, float]:
    """The mean of all figures of each configuration."""
    found = [one for each in rounds for one in each.values()]
    known = sorted({configuration for one in found for configuration in one.throughput})
    return {each: statistics.mean(one.throughput[each] for one in found if each in one.throughput) for each in known}


def differences(rounds: Sequence[Round]) -> list[float]:
    """The differences between two contestants' figures for one configuration in a round, relative to their mean."""
    found = []
    for each in rounds:
        for one, other in combinations([contestant.throughput for contestant in each.values()], 2):
            pairs = [(one[name], other[name]) for name in one.keys() & other.keys()]
            found += [abs(a - b) / statistics.mean((a, b)) for a, b in pairs]
    return found


def part(winner: Configuration | None, figures: Mapping[Configuration, float]) -> str:
    """The winner's figure divided by the best figure."""
    if winner is None or winner not in figures:
        return ""
    return contest.decimals(figures[winner] / max(figures.values()))


def show_round(title: str, found: Round, mean: Mapping[Configuration, float]) -> None:
    """Print the table of one round.

    Args:
        title: the title of the table.
        found: the results of the round.
        mean: the mean figure of each configuration over all rounds.
    """
    deepspeed = found.get(DEEPSPEED)
    rows = [
        (
            name,
            contest.decimals(one.seconds, 1),
            contest.decimals(one.seconds / deepspeed.seconds if deepspeed else None),
            str(one.launched),
            str(len(one.throughput)),
            str(one.winner or "none"),
            contest.decimals(one.figure, 0),
            *(part(one.winner, other.throughput) for other in found.values()),
            part(one.winner, mean),
        )
        for name, one in found.items()
    ]
    there = [f"in {name}" for name in found]
    header = ("tuner", "seconds", "ratio", "launches", "measured", "winner", "figure", *there, "of best")
    contest.table(title, header, rows)


def show_figures(rounds: Sequence[Round], names: Sequence[str], mean: Mapping[Configuration, float]) -> None:
    """Print the table of all configurations, and how much the figures differ.

    Args:
        rounds: all rounds.
        names: the contestants.
        mean: the mean figure of each configuration.
    """
    by_name = {name: means([{name: each[name]} for each in rounds if name in each]) for name in names}
    rows = [
        (str(each), *(contest.decimals(by_name[name].get(each), 0) for name in names), contest.decimals(mean[each], 0))
        for each in mean
    ]
    title = "Samples per second of each configuration (stage, micro-batch x accumulation), as each has measured it"
    contest.table(title, ("configuration", *names, "mean"), rows)
    if apart := differences(rounds):
        middle, most = statistics.median(apart), max(apart)
        print(f"\nTwo contestants' figures for one configuration differ by {middle:.0%} (median), {most:.0%} at most.")


def show_ratios(rounds: Sequence[Round], names: Sequence[str]) -> None:
    """Print the medians over all rounds."""
    seconds = {name: [each[name].seconds if name in each else None for each in rounds] for name in names}
    rows = [
        (
            name,
            contest.decimals(contest.median(mine), 1),
            contest.decimals(contest.ratio(mine, seconds.get(DEEPSPEED))),
        )
        for name, mine in seconds.items()
    ]
    contest.table(f"Medians of {len(rounds)} rounds", ("tuner", "seconds", "ratio"), rows)


def show(rounds: Sequence[Round]) -> None:
    """Print all tables."""
    mean, names = means(rounds), list(dict.fromkeys(name for each in rounds for name in each))
    for number, each in enumerate(rounds, 1):
        title = "The fastest configuration, found by each"
        show_round(f"{title}, round {number}" if len(rounds) > 1 else title, each, mean)
    show_figures(rounds, names, mean)
    if len(rounds) > 1:
        show_ratios(rounds, names)


# -- JSON --------------------------------------------------------------------------------------------------------------


def as_json(rounds: Sequence[Round]) -> list[dict[str, object]]:
    """The results of all rounds."""
    return [
        {
            "round": number,
            "name": name,
            "seconds": one.seconds,
            "launched": one.launched,
            "winner": one.winner,
            "ties": one.ties,
            "throughput": [[*each, figure] for each, figure in sorted(one.throughput.items())],
        }
        for number, each in enumerate(rounds, 1)
        for name, one in each.items()
    ]


def read_json(path: str) -> list[Round]:
    """The rounds of a file of ``--json``."""
    rounds: dict[int, dict[str, Found]] = {}
    with open(path) as file:
        results = json.load(file)["results"]
    for each in results:
        rounds.setdefault(each["round"], {})[each["name"]] = Found(
            each["seconds"],
            {Configuration(*configuration): figure for *configuration, figure in each["throughput"]},
            Configuration(*each["winner"]) if each["winner"] else None,
            each["launched"],
            each["ties"],
        )
    return [rounds[number] for number in sorted(rounds)]
