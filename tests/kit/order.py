"""The order of the tests: what is known to take long comes first, and all workers of xdist end at about the same time.

`--dist worksteal` gives each worker a stretch of the list, all of the same number of tests, and whoever has finished
takes from the end of another's. So every stretch gets a fair part of what is known to take long (`longest.txt`), and at
its end what takes no time. Long tests wait more than they compute. So between two of the longest stands one of the
shorter ones, and most of the tests of unknown length, which compute, stand between all of these. Tests that share what
is costly to start (Slurm's cluster, a browser: a fixture of the session) go to as few workers as can finish these in
time, because each worker starts its own, and come first there, where nobody takes them away.

`python -m tests.kit.order LOG` makes the table from the log of a whole run with `--durations=0`.
"""

from __future__ import annotations

import math
import re
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest

TABLE = Path(__file__).parent / "longest.txt"
LEAST = 3.0
"""Seconds from which on a test stands in the table."""

BETWEEN = 0.7
"""Part of the tests of unknown length that stands between the known ones."""

SHORT = 1.0
"""What a test of a group takes if it does not stand there."""


def read(table: Path = TABLE) -> dict[str, float]:
    """Test → seconds."""
    lines = (line.split(maxsplit=1) for line in table.read_text(encoding="utf-8").splitlines())
    return {test: float(seconds) for seconds, test in lines}


def stretches(count: int, workers: int) -> list[int]:
    """How many tests each worker is given at first, as xdist computes it."""
    sizes: list[int] = []
    for number in range(workers):
        sizes.append((count - sum(sizes)) // (workers - number))
    return sizes


def share_out(seconds: Sequence[float], groups: Sequence[str], workers: int) -> list[int]:
    """The order in which the tests are listed for the workers, as places in the given order.

    Args:
        seconds: for each test how long it takes, 0 where that is not known.
        groups: for each test the name of the group that few workers are to run, or "".
        workers: how many there are.
    """
    known = sorted((place for place, length in enumerate(seconds) if length), key=lambda place: -seconds[place])
    rest = [place for place, length in enumerate(seconds) if not length]
    fair = sum(seconds) / workers
    bins: list[list[int]] = [[] for _ in range(workers)]
    load = [0.0] * workers
    sizes = stretches(len(seconds), workers)
    for group in [*sorted(set(groups) - {""}), ""]:
        mine = [place for place in known if groups[place] == group]
        few = math.ceil(sum(seconds[place] for place in mine) / fair) if group and mine else workers
        chosen = sorted(range(workers), key=load.__getitem__)[:few]
        for place in mine:
            open_ones = [number for number in range(workers) if len(bins[number]) < sizes[number]]
            allowed = [number for number in open_ones if number in chosen]
            number = min(allowed or open_ones, key=load.__getitem__)
            bins[number].append(place)
            load[number] += seconds[place]
    for one, size in zip(bins, sizes, strict=True):
        one.sort(key=lambda place: (not groups[place], -seconds[place]))
        shared = sum(bool(groups[place]) for place in one)
        one[:] = alternating(one[:shared]) + alternating(one[shared:])
        short, rest = rest[: size - len(one)], rest[size - len(one) :]
        one[:] = mixed(one, short)
    return [place for one in bins for place in one]


def alternating(known: Sequence[int]) -> list[int]:
    """The first, the last, the second, the last but one …: a short test after each long one."""
    return [known[-1 - turn // 2] if turn % 2 else known[turn // 2] for turn in range(len(known))]


def mixed(known: Sequence[int], short: Sequence[int]) -> list[int]:
    """The known ones with most of the short ones evenly between them, and the others of these at the end."""
    listed: list[int] = []
    share = BETWEEN * len(short) / max(len(known), 1)
    for number, place in enumerate(known):
        listed += [place, *short[int(number * share) : int((number + 1) * share)]]
    return listed + list(short[int(len(known) * share) :])


def group_of(item: pytest.Item) -> str:
    """The costly fixture that it needs, as far as its fixtures and its name tell; each worker has an ssh cluster."""
    named = getattr(item, "_fixtureinfo", None)
    for name, found in named.name2fixturedefs.items() if named else ():
        if found[-1].scope == "session" and found[-1].baseid and name not in ("_subreaper", "_ssh_cluster"):
            return name
    return "_slurm_cluster" if "slurm" in item.name.partition("[")[2] else ""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Every worker collects all tests, and all come to the same order."""
    workers = getattr(config, "workerinput", {"workercount": 1})["workercount"]
    table = read()
    groups = list(map(group_of, items))
    seconds = [table.get(item.nodeid, SHORT if group else 0.0) for item, group in zip(items, groups, strict=True)]
    items[:] = [items[place] for place in share_out(seconds, groups, workers)]


def main(log: str) -> None:
    """Write the table anew: setup, call and teardown of a test together, but not the start of a cluster."""
    found: dict[str, float] = defaultdict(float)
    text = Path(log).read_text(encoding="utf-8", errors="replace")
    for length, phase, test in re.findall(r"^([\d.]+)s (setup|call|teardown) +(tests/.*)$", text, flags=re.MULTILINE):
        found[test] += 0.0 if phase == "setup" else float(length)
    longest = sorted(((length, test) for test, length in found.items() if length >= LEAST), reverse=True)
    TABLE.write_text("".join(f"{length:.1f} {test}\n" for length, test in longest), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
