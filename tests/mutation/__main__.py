"""Mutation testing: changes the program in many small ways, one at a time, and sees whether a test fails.

`make mutants ARGS='--count 330 --list mutants.txt'`; with `ARGS='tune/samplers tune/space --reach tuner.json'` parts of
the tuner are changed. Cosmic Ray makes the changes; which of them are tried is drawn by a seed: first a place, then one
of the changes possible there. The tests run in copies of the repository, so nothing is changed here. First a table is
made of which test reaches which line, which takes some minutes and is kept in a file.
Each mutant is then given the tests that reach its line, the simulations first, the others by what they cost. What they
do not kill is listed as a survivor, which a new test kills, or which is explained. What is in the list is not judged
again, so it can be ended and goes on.

A mutant that makes the tests take too long is listed as such: they pass without it in a fraction of that time, unless
the machine is busy. `--again 'too long'` judges these once more.
"""

from __future__ import annotations

import argparse
import os
import queue
import random
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TypeVar

from tests.kit import order
from tests.mutation.bench import Bench
from tests.mutation.changes import ROOT, SOURCE, Mutant, places
from tests.mutation.choice import EACH, Reach, chosen_tests

Thing = TypeVar("Thing")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    launcher = ["process", "control", "cluster", "launch", "node", "runner", "agent", "elastic"]
    tuner = ["tune/study", "tune/samplers", "tune/store", "tune/report"]
    parser.add_argument("paths", nargs="*", default=launcher + tuner)
    parser.add_argument("--count", type=int, default=330, help="how many mutants (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="chooses them (%(default)s)")
    parser.add_argument("--benches", type=int, default=2, help="how many at a time (%(default)s)")
    parser.add_argument("--list", default="mutants.txt", help="the list, to which is added (%(default)s)")
    parser.add_argument(
        "--reach", default="reach.json", help="which test reaches what; made if not there, of these paths (%(default)s)"
    )
    parser.add_argument("--again", help="judge again what the list has with this verdict")
    parser.add_argument("--each", type=float, default=EACH, help="seconds of tests for one mutant (%(default)s)")
    parser.add_argument("--python", default=str(ROOT / ".venv/bin/python"), help="runs the tests (%(default)s)")
    args = parser.parse_args()
    chance = random.Random(args.seed)
    files = sorted(
        str(path.relative_to(ROOT))
        for word in args.paths
        for path in ([ROOT / SOURCE / word] if word.endswith(".py") else (ROOT / SOURCE / word).rglob("*.py"))
    )
    everywhere = [place for file in files for place in places(file)]
    chance.shuffle(everywhere)
    drawn = list(islice(filter(None, (place.mutant(chance) for place in everywhere)), args.count))
    print(f"{len(drawn)} mutants of {len(everywhere)} places in {len(files)} files", flush=True)
    os.nice(10)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        os.chmod(folder, 0o755)  # some tests become another user
        if not os.path.exists(args.reach):
            benches = [Bench(f"{folder}/reach{number}", args.python) for number in range(args.benches)]
            record(args.reach, args.python, benches, args.paths)
        reached = Reach.load(args.reach)
        judged = dict(read_list(args.list))
        todo = [m for m in drawn if judged.get(key := m.key(), "").startswith(args.again or "-") or key not in judged]
        lock = threading.Lock()

        def work(bench: Bench, mutant: Mutant) -> None:
            tests = reached.tests_for(mutant, args.each)
            begin = time.monotonic()
            state = bench.judge(mutant, tests, reached.seconds) if tests else "survived: no test comes here"
            took = f"{time.monotonic() - begin:.0f} s, {len(tests)} tests"
            with lock, open(args.list, "a") as file:
                file.write("\t".join((*mutant.key(), state, took)) + "\n")

        each_in_turn(todo, [Bench(f"{folder}/{number}", args.python) for number in range(args.benches)], work)
    states = [state for _, state in dict(read_list(args.list)).items()]
    survived = sum(state.startswith("survived") for state in states)
    print(f"{len(states)} judged, {survived} survived")
    return 0


def read_list(file: str) -> Iterator[tuple[tuple[str, str, str], str]]:
    """Of each mutant in the list its key and its verdict, the last one if there are several."""
    if os.path.exists(file):
        for line in Path(file).read_text().splitlines():
            place, operator, change, state, *_ = line.split("\t")
            yield (place, operator, change), state


def record(file: str, python: str, benches: list[Bench], paths: Sequence[str]) -> None:
    """Make the table of what is reached; the tests of one file one after the other."""
    names = chosen_tests(python, paths)
    numbers = {name: number for number, name in enumerate(names)}
    together: dict[str, list[str]] = {}
    for name in names:
        together.setdefault(name.partition("::")[0], []).append(name)
    print(f"{len(names)} tests", flush=True)
    each_in_turn(
        sorted(together.values(), key=lambda tests: -sum(map(order.read().get, tests, [0.2] * len(tests)))),
        benches,
        lambda bench, tests: bench.record(tests, numbers),
    )
    reached = Reach()
    for bench in benches:
        reached.add(names, bench.folder / ".reach")
    reached.save(file)


def each_in_turn(things: Sequence[Thing], benches: list[Bench], work: Callable[[Bench, Thing], object]) -> None:
    """Do the work for each thing, in as many threads as there are benches."""
    waiting: queue.SimpleQueue[Thing] = queue.SimpleQueue()
    for thing in things:
        waiting.put(thing)

    def some(bench: Bench) -> None:
        while True:
            try:
                thing = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                work(bench, thing)
            except Exception:
                traceback.print_exc()

    threads = [threading.Thread(target=some, args=(bench,), daemon=True) for bench in benches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    sys.exit(main())
