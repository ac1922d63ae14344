"""Measures how long a launcher takes to run an empty script, and how much memory it holds.

The bare loop (``programs/bare.py``) is the least that a launcher in Python costs: one interpreter, and ``Popen`` for
each rank. Memory is measured while the ranks sleep, over all processes of the command that are not ranks. It is the
resident memory of the largest, plus the unshared memory of the others, because forks of one process share most pages.
"""

from __future__ import annotations

import sys
import tempfile
import time
from functools import partial

import contest
from contest import Launcher, decimals, milliseconds


def held_mib(launcher: Launcher, ranks: int) -> float:
    """The memory of the launcher in MiB while its ranks sleep."""
    with tempfile.TemporaryDirectory() as folder:
        process, pids = contest.start_scene(launcher, ranks, "wait", folder)
        try:
            time.sleep(0.3)  # the launcher may still be starting
            launching = contest.descendants() - set(pids)
            largest = max(launching, key=contest.rss_kib)
            return (contest.rss_kib(largest) + sum(map(contest.unshared_kib, launching - {largest}))) / 1024
        finally:
            contest.sweep(process)


def main() -> int:
    parser = contest.arguments(__doc__, rounds=20)
    parser.add_argument("--ranks", default="2,16", metavar="N,…", help="numbers of ranks (%(default)s)")
    args = parser.parse_args()
    launchers = contest.contestants(parser, args)
    results = []
    for ranks in map(int, args.ranks.split(",")):
        empty = contest.program("empty.py")
        runs = {name: partial(contest.seconds, it, it.script(ranks, empty)) for name, it in launchers.items()}
        times = contest.take_turns(runs, args.rounds)
        rows = []
        for name, figures in times.items():
            there = [figure for figure in figures if figure is not None]
            middle, best = milliseconds(contest.median(there)), milliseconds(min(there))
            ratio, held = contest.ratio(figures, times.get("bare")), held_mib(launchers[name], ranks)
            rows.append([name, middle, best, decimals(ratio), decimals(held, 1), len(there)])
            results.append({"ranks": ranks, "name": name, "seconds": figures, "ratio": ratio, "held_mib": held})
        header = ["launcher", "median ms", "min ms", "ratio", "MiB", "rounds"]
        contest.table(f"An empty script on {ranks} ranks", header, rows)
    contest.write_json(args.json, benchmark="launch", results=results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
