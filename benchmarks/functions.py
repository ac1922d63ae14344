"""Functions on ranks: what a first call, a call on ranks that stay, and large results cost, beside Python's own pools.

    python benchmarks/functions.py [--rounds 5]

Each round measures all in turn. The first call is compared with ``bireme run`` of an empty script, and with a new
``ProcessPoolExecutor`` (spawn) that runs one call; a call on ranks that stay with one of that executor.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import bireme

RANKS, CALLS = 2, 1000
JOB = {"num_gpus": RANKS, "accelerator": "cpu", "log_level": "error"}


def nothing(value: int = 0) -> int:
    return value


def seconds(do: Callable[[], object]) -> float:
    begin = time.perf_counter()
    do()
    return time.perf_counter() - begin


def run_script() -> None:
    with tempfile.NamedTemporaryFile(suffix=".py") as file:
        words = ("run", "-q", "--accelerator", "cpu", "--num_gpus", str(RANKS), file.name)
        subprocess.run([sys.executable, "-m", "bireme", *words], check=True)


def spawned() -> None:
    with ProcessPoolExecutor(RANKS, mp_context=get_context("spawn")) as pool:
        list(pool.map(nothing, range(RANKS)))


def calls(pool: bireme.Executor | ProcessPoolExecutor) -> float:
    pool.submit(nothing).result()
    return seconds(lambda: [pool.submit(nothing, k).result() for k in range(CALLS)]) / CALLS


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, value in (
            ("bireme run, an empty script [s]", seconds(run_script)),
            ("bireme.launch, a first call [s]", seconds(lambda: bireme.launch(nothing, **JOB))),
            ("ProcessPoolExecutor (spawn), a first call [s]", seconds(spawned)),
        ):
            found.setdefault(name, []).append(value)
        with bireme.Executor(**JOB) as pool:
            found.setdefault("bireme.Executor, a call [ms]", []).append(1000 * calls(pool))
            many = seconds(lambda: sum(1 for _ in pool.map(bytes, [100] * 1_000_000, chunksize=1000)))
            found.setdefault("bireme.Executor, 10^6 results of 100 bytes [s]", []).append(many)
        with ProcessPoolExecutor(RANKS) as own:
            found.setdefault("ProcessPoolExecutor, a call [ms]", []).append(1000 * calls(own))
    for name, values in found.items():
        print(f"{name:48} {statistics.median(values):8.3f}  ({min(values):.3f} to {max(values):.3f})")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    size = 1 << 30
    took = seconds(lambda: bireme.launch(bytes, size, **{**JOB, "num_gpus": 1}))
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(f"a result of 1 GiB: {took:.1f} s, {most / (1 << 20):.2f} GiB more at the caller")
    pids = len(os.listdir("/proc/self/fd"))
    with bireme.Executor(**JOB) as pool:
        calls(pool)
        files = len(os.listdir("/proc/self/fd"))
        rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        calls(pool)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - rss
        print(f"1,000 calls more: {len(os.listdir('/proc/self/fd')) - files} descriptors, {grown} KiB more")
    print(f"afterwards: {len(os.listdir('/proc/self/fd')) - pids} descriptors more")


if __name__ == "__main__":
    main()
