"""Measures under a virtual clock how well the tuner's scheduler packs a cluster, and what its decisions cost.

It schedules experiments of mixed widths (1x1 to 4x8) and durations (1 to 10 minutes) on 1,000 nodes of 8 slots.
``makespan`` is relative to a lower bound: all work spread over all slots, or the longest experiment. With few
experiments, the last ones leave most of the cluster idle under any schedule. ``slowest ms`` is the longest time of a
single decision, ``peak MiB`` the growth of the process; each run has its own process.
Run it as ``python benchmarks/schedule.py [--tasks 1000,3000,10000] [--rounds 1]``.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from pathlib import Path

import contest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.unit.tune.execution.simulation import bound, cluster, makespan, mixed_load  # noqa: E402

from bireme.tune.execution.slot_scheduler import Order, Scheduler, StartTask  # noqa: E402

WAYS: dict[str, tuple[Order, bool]] = {
    "fifo": ("fifo", False),
    "fifo+backfill": ("fifo", True),
    "longest": ("longest", False),
    "longest+backfill": ("longest", True),
}


class Timed(Scheduler):
    """A scheduler that records the time of its slowest decision."""

    slowest = 0.0

    def decide(self) -> tuple[StartTask, ...]:
        begin = time.process_time()
        starts = super().decide()
        self.slowest = max(self.slowest, time.process_time() - begin)
        return starts


def measure(way: str, number: int, nodes: int, slots: int) -> dict[str, float]:
    """Run one schedule to its end.

    Args:
        way: a key of :data:`WAYS`.
        number: the number of experiments.
        nodes: the number of nodes.
        slots: the number of slots of each node.

    Returns:
        The relative makespan, CPU seconds (including the simulation), seconds of the slowest decision, MiB of growth.
    """
    before = contest.status_kib(os.getpid(), "VmHWM")
    begin = time.process_time()
    tasks = mixed_load(number)
    order, backfill = WAYS[way]
    scheduler = Timed(cluster(nodes, slots), order=order, backfill=backfill)
    ratio = makespan(scheduler, tasks) / bound(tasks, nodes * slots)
    cpu = time.process_time() - begin
    grown = contest.status_kib(os.getpid(), "VmHWM") - before
    return {"ratio": ratio, "cpu": cpu, "slowest": scheduler.slowest, "mib": grown / 1024}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--tasks", default="1000,3000,10000", metavar="N,…", help="numbers of experiments (%(default)s)"
    )
    parser.add_argument("--nodes", type=int, default=1000, help="the number of nodes (%(default)s)")
    parser.add_argument("--slots", type=int, default=8, help="slots of each node, at least 8 (%(default)s)")
    parser.add_argument(
        "--rounds", type=int, default=1, help="the number of runs, of which the minimum counts (%(default)s)"
    )
    parser.add_argument("--only", default=",".join(WAYS), metavar="NAME,…", help="run only these (%(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write every single measurement into this file")
    options = parser.parse_args()
    if strange := [name for name in options.only.split(",") if name not in WAYS]:
        parser.error(f"--only: unknown name: {strange[0]!r} (expected: {', '.join(WAYS)})")
    if options.nodes < 4 or options.slots < 8:
        parser.error("--nodes, --slots: the widest experiments need 4 nodes of 8 slots")
    return options


def main() -> int:
    options = arguments()
    results = []
    for number in map(int, options.tasks.split(",")):
        rows = []
        for way in options.only.split(","):
            contest.progress(f"{number} experiments: {way}")
            # Each run needs a new process: the memory of the last run would hide that of the next.
            with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
                call = (way, number, options.nodes, options.slots)
                runs = [pool.apply(measure, call) for _ in range(options.rounds)]
            results.append({"tasks": number, "name": way, "runs": runs})
            best = {name: min(run[name] for run in runs) for name in runs[0]}
            cells = [contest.decimals(best["ratio"], 3), contest.decimals(best["cpu"])]
            rows.append([way, *cells, contest.milliseconds(best["slowest"]), contest.decimals(best["mib"], 1)])
        contest.progress("")
        title = f"{number:,} experiments on {options.nodes:,} nodes x {options.slots} slots"
        contest.table(title, ["way", "makespan", "cpu s", "slowest ms", "peak MiB"], rows)
    contest.write_json(options.json, benchmark="schedule", results=results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
