"""Chooses the tests for what was changed: `python -m tests.kit.changed [BASE]` prints their files, the nearest first.

Changed is what differs from the commit BASE (by default where this branch has left ``origin/main``), committed or not.
A module's tests are those of its own name and those that import it; where there are none, those of the modules that
import it, or of the whole package. Of more than `MOST` files those count that import the fewest other modules, because
they are about it. `make test-changed` runs the quick tests among them.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.test_layers import all_modules, imports, module_name

ROOT = Path(__file__).parents[2]
MOST = 10
ALWAYS = ("tests/test_layers.py", "tests/test_keywords.py", "tests/test_docs.py")
"""The structure and the documentation: what holds for every module."""
WHOLE = {
    "backends": ("unit/backends/test_commands.py", "unit/backends/test_launcher_contract.py"),
    "cluster": ("unit/cluster/test_agent_protocol.py", "cluster/test_world.py", "cluster/test_manners.py"),
    "elastic": ("unit/launching/test_elastic_job.py", "command/test_elastic_here.py"),
    "tune": ("command/tune/test_command.py", "golden/test_golden.py"),
    "": (
        "command/test_arguments.py",
        "command/test_output.py",
        "command/test_signals.py",
        "unit/agent/test_sent_agent.py",
    ),
}
"""What tests a package as a whole, by starting the command; "": the others."""


def changed(base: str) -> set[str]:
    """The files that differ from a commit, also those that git does not know yet."""

    def lines(*words: str) -> set[str]:
        done = subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True)
        return set(done.stdout.splitlines())

    return lines("diff", "--name-only", base) | lines("ls-files", "--others", "--exclude-standard")


def imported_by(path: Path, module: str, known: Iterable[str]) -> set[str]:
    """The modules of ours that a file imports, at any place."""
    found = {name for _, name in imports(ast.parse(path.read_text(encoding="utf-8")), module, False)}
    return {part for name in found for part in (name, name.rpartition(".")[0]) if part in known}


def files_for(module: str, tests: dict[str, set[str]], sources: dict[str, set[str]]) -> list[str]:
    """The files with a module's tests, the nearest first.

    Args:
        tests: file → the modules that it imports.
        sources: module → the modules that it imports.
    """
    package, _, name = module.removeprefix("bireme.").rpartition(".")
    folder = f"tests/unit/{package.replace('.', '/')}/" if package else "tests/unit/"

    def distance(file: str) -> tuple[bool, bool, int]:
        return f"test_{name.strip('_')}" not in file, not file.startswith(folder), len(tests[file])

    near = {module}
    while near:
        found = [file for file, known in tests.items() if near & known or f"{folder}test_{name}" in file]
        if found:
            return sorted(found, key=distance)[:MOST]
        near = {each for each, known in sources.items() if near & known} - near
    return [f"tests/{file}" for file in WHOLE.get(package.partition(".")[0], WHOLE[""])]


def graph() -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """What each file of tests imports, and what each module does."""
    modules = all_modules()
    sources = {module: imported_by(path, module, modules) for module, path in modules.items()}
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return {str(path.relative_to(ROOT)): imported_by(path, path.stem, modules) for path in files}, sources


def main(base: str = "") -> None:
    """Print the files, separated by spaces."""
    if not base:
        words = ["git", "merge-base", "HEAD", "origin/main"]
        base = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip() or "HEAD"
    tests, sources = graph()
    chosen: list[str] = []
    for file in sorted(changed(base)):
        path = ROOT / file
        if file in tests:
            chosen.insert(0, file)
        elif file.startswith("src/bireme/") and file.endswith(".py") and path.is_file():
            chosen += files_for(module_name(path), tests, sources)
    print(*dict.fromkeys([*chosen, *ALWAYS]))


if __name__ == "__main__":
    main(*sys.argv[1:])
