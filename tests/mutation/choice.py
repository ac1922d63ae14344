"""The tests by which a change is judged: those that reach it, the cheapest for what they reach first."""

from __future__ import annotations

import ast
import json
import random
import re
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.kit import order
from tests.mutation.changes import ROOT, SOURCE, Mutant

SIMULATIONS = (
    "python -m tests.simulation --seed 1 --runs 60",
    "python -m tests.simulation --elastic --seed 1 --runs 40",
)
"""They stand in the list of tests, each as one."""
FOLDERS = (
    *(f"unit/{name}" for name in ("agent", "cluster", "control", "elastic", "launch", "node", "process", "result")),
    *("unit/planning/test_start.py", "unit/resources/test_devices.py", "unit/backends/test_long_lists.py"),
    *("unit/backends/test_launcher_contract.py", "command", "cluster"),
)
TUNE = {
    "tune/study": ("unit/tune/study", "golden/test_promises.py"),
    "tune/samplers": ("unit/tune/samplers", "unit/tune/space/test_constraints.py"),
    "tune/store": ("unit/tune/store", "unit/tune/execution/test_study_run.py"),
    "tune/report": ("unit/tune/report", "golden/test_consistency.py"),
    "tune/space": ("unit/tune/space", "unit/tune/define/test_declarations.py", "unit/tune/samplers/test_search.py"),
    "tune": ("unit/tune", "command/tune"),
}
"""Parts of the tuner, and the tests by which they are judged, instead of the simulations and the folders above."""
INSIDE = ("tests/unit/",)
LONGEST = 6.0
"""Seconds: a test that takes longer is left out."""
VARIANTS = 4
"""So many of a test with parameters that starts processes are taken."""
EACH = 25.0
"""Seconds of tests for one mutant at most."""
ENGINES = ("slurm", "pdsh", "openmpi", "mpich", "mvapich", "impi", "openmpi5")


def chosen_tests(python: str, paths: Sequence[str]) -> list[str]:
    """The simulations, and every test that is quick enough, on one engine where it is made for several.

    Args:
        paths: what is changed.
    """
    parts = {next((part for part in TUNE if path.startswith(part)), "") for path in paths}
    folders = dict.fromkeys(folder for part in sorted(parts) for folder in (TUNE[part] if part else FOLDERS))
    words = [python, "-m", "pytest", "--collect-only", "-q", *(f"tests/{folder}" for folder in folders)]
    text = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    named = [line for line in text.splitlines() if "::" in line]
    length = order.read()
    over_ssh = {line.replace("ssh", "*") for line in named if "ssh" in line}
    tests, variants = list(SIMULATIONS if "" in parts else ()), Counter[str]()
    random.Random(1).shuffle(named)
    for name in named:
        same = re.sub("|".join(sorted(ENGINES, key=len, reverse=True)), "*", name)
        if length.get(name, 0) <= LONGEST and (same == name or same not in over_ssh):
            function = name.partition("[")[0]
            variants[function] += 1
            if variants[function] <= VARIANTS or function.startswith(INSIDE):
                tests.append(name)
    return sorted(tests)


class Reach:
    """Which test reaches which line, and how long it takes."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        """Of each test that passes without a mutant."""
        self.lines: dict[str, dict[int, set[str]]] = {}
        """File → line → tests."""

    def add(self, names: list[str], folder: Path) -> None:
        """Read what a bench has recorded."""
        bad = set()
        for line in (folder / "tests").read_text().splitlines():
            number, seconds, outcome = line.split(" ")
            self.seconds[names[int(number)]] = float(seconds)
            if outcome:
                bad.add(names[int(number)])
        for name in bad:
            del self.seconds[name]
        for file in folder.glob("lines-*"):
            for line in file.read_text().splitlines():
                number, path, at = line.split(" ")
                if number != "-1" and names[int(number)] in self.seconds:
                    self.lines.setdefault(f"{SOURCE}/{path}", {}).setdefault(int(at), set()).add(names[int(number)])

    def save(self, file: str) -> None:
        """The tests by their numbers."""
        names = list(self.seconds)
        place = {name: number for number, name in enumerate(names)}
        lines = {
            path: {line: sorted(place[name] for name in tests) for line, tests in found.items()}
            for path, found in self.lines.items()
        }
        Path(file).write_text(json.dumps({"tests": self.seconds, "lines": lines}))

    @classmethod
    def load(cls, file: str) -> Reach:
        read, found = json.loads(Path(file).read_text()), cls()
        found.seconds, names = read["tests"], list(read["tests"])
        for path, lines in read["lines"].items():
            found.lines[path] = {int(line): {names[number] for number in tests} for line, tests in lines.items()}
        return found

    def tests_for(self, mutant: Mutant, most: float) -> list[str]:
        """Those that reach its line; then those that reach its function; then those that reach its file."""
        lines = self.lines.get(mutant.file, {})
        within = function_around(mutant)
        hits: dict[str, int] = {}
        for tests in lines.values():
            for name in tests:
                hits[name] = hits.get(name, 0) + 1
        at_line = lines.get(mutant.line, set())
        in_function = set().union(*(lines.get(line, set()) for line in within))
        chosen: list[str] = []
        left = most
        for group in (at_line, in_function - at_line, set(hits) - in_function - at_line):
            if chosen and left < most / 2:
                break
            value = {name: (self.seconds[name] + 0.02) / hits[name] for name in group.difference(SIMULATIONS)}
            value.update((name, 0.0) for name in group.intersection(SIMULATIONS))
            nth: dict[str, int] = {}
            ranked = []
            for name in sorted(group, key=value.__getitem__):
                function = name.partition("[")[0]
                nth[function] = nth.get(function, -1) + 1
                ranked.append((nth[function], value[name], name))
            for _, _, name in sorted(ranked):
                if self.seconds[name] <= left:
                    chosen.append(name)
                    left -= self.seconds[name] + 0.05
        return sorted(chosen, key=lambda name: (name not in SIMULATIONS, self.seconds[name]))


def function_around(mutant: Mutant) -> range:
    """The lines of the innermost function that has the mutant's line, without that of its ``def``."""
    tree = ast.parse((ROOT / mutant.file).read_text(encoding="utf-8"))
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body[0].lineno <= mutant.line <= (node.end_lineno or 0)
    ]
    if not around:
        return range(0)
    inner = max(around, key=lambda node: node.lineno)
    return range(inner.body[0].lineno, (inner.end_lineno or 0) + 1)
