"""``python -m tests.simulation``: run simulated jobs, and report the seeds of those that broke an invariant."""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys
import time
from collections.abc import Sequence

from tests.simulation import asking, elastic, observed, run
from tests.simulation.mutations import MUTATIONS, by_name
from tests.simulation.nodes import quiet_output

MOST_RUNS = 2000
"""How many runs a mutation may survive, from its seed on."""
_HANGS = 120.0
"""Seconds after which a run hangs in one callback, and the whole process is ended with a traceback."""


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--elastic", action="store_true", help="simulate elastic jobs")
    parser.add_argument("--warm", action="store_true", help="simulate elastic jobs with --preload")
    parser.add_argument("--asked", action="store_true", help="simulate jobs that are asked, signalled and preempted")
    parser.add_argument("--seed", type=int, nargs="+", default=[], help="the first seed (default: drawn), or several")
    parser.add_argument("--runs", type=int, default=0, help="how many runs (default: one with --seed, else 1000)")
    parser.add_argument("--steps", type=int, default=0, help="stop after so many steps")
    parser.add_argument("--seconds", type=float, default=0.0, help="stop after so many seconds")
    parser.add_argument("--log", action="store_true", help="show what happens")
    parser.add_argument("--mutation", default="", help="put this fault into the program first; all: each in its turn")
    parser.add_argument("--most", type=int, default=10, help="stop after so many violations")
    asked = parser.parse_args(argv)
    if asked.mutation == "all":
        return _all_mutations(asked.runs)
    if asked.mutation:
        mutation = by_name(asked.mutation)
        mutation.put_in()
        asked.elastic, asked.asked = asked.elastic or mutation.elastic, asked.asked or mutation.asked
        asked.seed = asked.seed or [mutation.seed]
        asked.runs, asked.most = asked.runs or MOST_RUNS, 1
    seeds: Sequence[int] = asked.seed or [int.from_bytes(os.urandom(4), "big")]
    if len(seeds) == 1:
        limited = asked.steps or asked.seconds
        runs = asked.runs or (1 if asked.seed and not limited else 10**9 if limited else 1000)
        seeds = range(seeds[0], seeds[0] + runs)
    out = os.fdopen(quiet_output(), "w", buffering=1)
    observed.observe()
    elastic.observe()
    kinds = {asked.warm: elastic.WarmRun, asked.elastic: elastic.ElasticRun, asked.asked: asking.AskedRun}
    kind: type[run.Run] = kinds.get(True, run.Run)
    begin = time.monotonic()
    steps = done = bad = 0
    outcomes: dict[str, int] = {}
    for number in seeds:
        faulthandler.dump_traceback_later(_HANGS, exit=True, file=out)
        result = kind(number, keep_log=asked.log).go()
        faulthandler.cancel_dump_traceback_later()
        steps, done = steps + result.steps, done + 1
        word = result.words.partition(" ")[0]
        outcomes[word] = outcomes.get(word, 0) + 1
        for line in result.log:
            print(line, file=out)
        if asked.log or result.violation:
            what = f"{result.steps} steps, digest {result.digest:08x}; {result.words}"
            print(f"seed {number}: {result.violation or 'fine'} ({what})", file=out)
        bad += bool(result.violation)
        seconds = time.monotonic() - begin
        if bad >= asked.most or (asked.steps and steps >= asked.steps) or (asked.seconds and seconds >= asked.seconds):
            break
    seconds = time.monotonic() - begin
    print(f"{done} runs, {steps} steps, {bad} violations in {seconds:.1f} s; outcomes: {outcomes}", file=out)
    return 1 if bad else 0


def _all_mutations(runs: int) -> int:
    """Show for each mutation that the simulation finds it; return how many it does not find."""
    survivors = 0
    for mutation in MUTATIONS:
        read, write = os.pipe()
        child = os.fork()  # with all that it imports; each child puts its own fault in
        if child == 0:
            os.dup2(write, 1)
            os._exit(main(["--mutation", mutation.name, "--runs", str(runs or MOST_RUNS)]))
        os.close(write)
        with open(read, encoding="utf-8") as pipe:
            said = pipe.read()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        line = next((line for line in said.splitlines() if line.startswith("seed ")), "")
        killed = code == 1 and line != ""
        survivors += not killed
        print(f"{'killed' if killed else 'SURVIVED'}: {mutation.name}: {(line or said[-300:])[:160]}", flush=True)
    print(f"{len(MUTATIONS) - survivors} of {len(MUTATIONS)} killed")
    return survivors


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
