"""The structure of the package: which modules may import which, and what the launch path may import."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src"

# From top to bottom. A module imports from its own package and from lower layers: not from higher ones, and not from
# its neighbours on the same layer.
LAYERS = (
    {"bireme.__main__", "bireme.agent.__main__", "bireme.deepspeed"},
    {"bireme.cli", "bireme.pytest_plugin"},
    {"bireme.api", "bireme.calls"},
    {"bireme.tune"},
    {"bireme.tune.program", "bireme.tune.deepspeed"},
    {"bireme.tune.launcher"},
    {"bireme.tune.report"},
    {"bireme.tune.execution"},
    {"bireme.tune.store"},
    {"bireme.tune.study"},
    {"bireme.tune.define"},
    {"bireme.tune.samplers"},
    {"bireme.tune.space", "bireme.tune.metrics"},
    {"bireme.tune.requirements"},
    {"bireme.launching"},
    {"bireme.elastic"},
    {"bireme.cluster"},
    {"bireme.agent"},
    {"bireme.ship"},
    {"bireme.control"},
    {"bireme.one_node", "bireme.runner"},
    {"bireme.backends", "bireme.process"},
    {"bireme.logs", "bireme.warm"},
    {"bireme.result"},
    {"bireme.planning"},
    {"bireme.resources"},
    {"bireme.options"},
    {"bireme.job"},
    {"bireme.loop"},
    {"bireme.figure_report", "bireme.validate"},
    {
        "bireme.drafts",
        "bireme.isolated",
        "bireme.jsontext",
        "bireme.rank_numbers",
        "bireme.regular_file",
        "bireme.signal_numbers",
        "bireme.value",
    },
    {"bireme.errors"},
)
DEPTH = {module: depth for depth, layer in enumerate(LAYERS) for module in layer}

# What takes milliseconds to import, and so has no place between the command and the first worker.
HEAVY = {
    "argparse",
    "array",
    "asyncio",
    "collections",
    "ctypes",
    "dataclasses",
    "enum",
    "functools",
    "inspect",
    "json",
    "logging",
    "pathlib",
    "psutil",
    "re",
    "rich",
    "signal",
    "selectors",
    "socket",
    "ssl",
    "subprocess",
    "tempfile",
    "typing",
}


def module_name(path: Path) -> str:
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def top_level(module: str) -> str:
    """The part of a module's name that stands in the table: ``bireme.planning`` for ``bireme.planning.ranks``."""
    parts = module.split(".")
    above = (".".join(parts[:length]) for length in range(len(parts), 2, -1))
    return next((each for each in above if each in DEPTH), ".".join(parts[:2]))


def all_modules() -> dict[str, Path]:
    return {module_name(path): path for path in sorted((SRC / "bireme").rglob("*.py"))}


def imports(tree: ast.AST, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of all that is imported anywhere in a module, function bodies included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = node.module or ""
            if node.level:
                package = module.split(".") if is_package else module.split(".")[:-1]
                package = package[: len(package) - (node.level - 1)]
                origin = ".".join([*package, *([origin] if origin else [])])
            yield from ((node.lineno, f"{origin}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in {"import_module", "__import__"} and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value


def wrong_arrows(source: str, module: str, is_package: bool = False) -> list[str]:
    """One line for each import in ``source`` that the layers do not allow."""
    wrong = []
    own = top_level(module)
    for line, imported in imports(ast.parse(source), module, is_package):
        target = top_level(imported)
        if not imported.startswith("bireme.") or target in {own, "bireme.__version__"}:
            continue
        if target not in DEPTH:
            wrong.append(f"{module}:{line} imports {imported}: name its own module, or place {target} in LAYERS")
        elif DEPTH[target] == DEPTH[own]:
            wrong.append(f"{module}:{line} imports its neighbour {imported}")
        elif DEPTH[target] < DEPTH[own]:
            wrong.append(f"{module}:{line} imports {imported}, which lies above it")
    return wrong


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """The groups of modules of which each leads to each other one (Tarjan's strongly connected components)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        number[module] = low[module] = len(number)
        stack.append(module)
        for target in sorted(edges[module]):
            if target not in number:
                visit(target)
                low[module] = min(low[module], low[target])
            elif target in stack:
                low[module] = min(low[module], number[target])
        if low[module] == number[module]:
            group = stack[stack.index(module) :]
            del stack[-len(group) :]
            if len(group) > 1:
                found.append(sorted(group))

    for module in edges:
        if module not in number:
            visit(module)
    return found


def module_graph(sources: dict[str, str]) -> dict[str, set[str]]:
    """Which module imports which, late imports and those under TYPE_CHECKING included.

    The package ``bireme`` itself is left out: every import of a module in it imports it first, and it imports nothing.
    """
    graph: dict[str, set[str]] = {}
    for module, source in sources.items():
        is_package = any(other.startswith(f"{module}.") for other in sources)
        named = {name for _, name in imports(ast.parse(source), module, is_package)}
        targets = {name if name in sources else name.rpartition(".")[0] for name in named}
        graph[module] = (targets & sources.keys()) - {module}
    return graph


def test_no_circles_of_imports() -> None:
    sources = {name: path.read_text(encoding="utf-8") for name, path in all_modules().items() if name != "bireme"}
    found = circles(module_graph(sources))
    assert not found, "modules that import each other: " + "; ".join(", ".join(group) for group in found)


def test_circles_are_found() -> None:
    """The check itself: a circle is seen, late or only for types as the imports in it may be."""
    sources = {
        "bireme.a": "from bireme.b import x",
        "bireme.b": "def late():\n    from bireme import c",
        "bireme.c": "if TYPE_CHECKING:\n    import bireme.a",
        "bireme.d": "from bireme import a, b, c",
    }
    assert circles(module_graph(sources)) == [["bireme.a", "bireme.b", "bireme.c"]]
    assert circles(module_graph({**sources, "bireme.c": ""})) == []


def test_every_module_has_a_layer() -> None:
    unplaced = {top_level(module) for module in all_modules() if module != "bireme"} - DEPTH.keys()
    assert not unplaced, f"place these in LAYERS (tests/test_layers.py): {', '.join(sorted(unplaced))}"


def test_imports_only_go_down() -> None:
    wrong = [
        arrow
        for module, path in all_modules().items()
        if top_level(module) in DEPTH
        for arrow in wrong_arrows(path.read_text(encoding="utf-8"), module, path.name == "__init__.py")
    ]
    assert not wrong, "\n".join(wrong)


def test_no_module_takes_a_public_name() -> None:
    """Once ``bireme.x`` is imported, ``bireme.x`` is that module, whatever else the package offers by that name."""
    import bireme

    modules = {module.removeprefix("bireme.").partition(".")[0] for module in all_modules()}
    assert not modules & set(bireme.__all__)


def test_wrong_arrows_are_found() -> None:
    """The check itself: whatever way an import is written, one that goes up or aside is seen."""
    plan = "bireme.planning.ranks"
    assert wrong_arrows("import bireme.launching", plan) == [f"{plan}:1 imports bireme.launching, which lies above it"]
    assert wrong_arrows("from bireme import runner", plan)
    assert wrong_arrows("from bireme.launching.one_machine import start", plan)
    assert wrong_arrows("def late():\n    from bireme.launching import start", plan)
    assert wrong_arrows("if TYPE_CHECKING:\n    from bireme.launching import start", plan)
    assert wrong_arrows("from ..runner import start", plan)
    assert wrong_arrows("from .. import runner", plan)
    assert wrong_arrows("from ..runner import start", "bireme.planning", is_package=True)
    assert wrong_arrows("importlib.import_module('bireme.launching')", plan)
    assert wrong_arrows("from bireme import run", plan)
    assert wrong_arrows("from bireme.value import Value", "bireme.drafts") == [
        "bireme.drafts:1 imports its neighbour bireme.value.Value"
    ]
    assert wrong_arrows("from bireme.backends import ssh", "bireme.process.group")


def test_right_arrows_pass() -> None:
    plan = "bireme.planning.ranks"
    assert wrong_arrows("import os, sys\nfrom collections import abc", plan) == []
    assert wrong_arrows("from bireme import __version__\nfrom bireme.job import JobSpec", plan) == []
    assert wrong_arrows("from bireme.planning.ports import choose\nfrom . import ports", plan) == []
    assert wrong_arrows("from .ports import choose\nfrom ..job import JobSpec", plan) == []
    assert wrong_arrows("from . import ports", "bireme.planning", is_package=True) == []


def test_the_package_itself_imports_nothing() -> None:
    """``bireme/__init__.py`` is run before any of our modules: what it imports, all of them pay for."""
    body = ast.parse((SRC / "bireme" / "__init__.py").read_text(encoding="utf-8")).body
    run_at_import = [
        node
        for statement in body
        if not isinstance(statement, (ast.FunctionDef, ast.ClassDef))
        and not (isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING")
        for node in ast.walk(statement)
    ]
    imported = [ast.unparse(node) for node in run_at_import if isinstance(node, (ast.Import, ast.ImportFrom))]
    assert not imported


@pytest.mark.parametrize(
    ("modules", "heavy"),
    [
        ("bireme.cli.run, bireme.api", HEAVY),
        ("bireme.cli.run, bireme.api, bireme.launching.many_nodes, bireme.backends.ssh", HEAVY | {"hashlib", "hmac"}),
        (
            "bireme.agent.remote, bireme.one_node.machine, bireme.one_node.examination",
            HEAVY | {"hashlib", "hmac"},
        ),
    ],
)
def test_the_way_to_the_first_worker_stays_cheap(modules: str, heavy: set[str]) -> None:
    # -S: what the installed environment imports on its own account (.pth files) is not our doing.
    code = f"import sys, {modules}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env={"PYTHONPATH": str(SRC)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    loaded = heavy & set(done.stdout.split())
    assert not loaded, f"imported: {', '.join(sorted(loaded))}; `python -X importtime -S -c '{code}'` shows by whom"


EVERY_MODULE = """
import importlib, pkgutil, bireme
for found in pkgutil.walk_packages(bireme.__path__, "bireme."):
    try:
        importlib.import_module(found.name)
    except ImportError as error:
        assert error.name in ('numpy', 'hjson', 'rich', 'pytest', '_pytest'), error
"""


def test_the_module_of_signal_numbers_has_no_enums() -> None:
    """For mypy it is the real one."""
    wrong = []
    for path in SRC.rglob("*.py"):
        text = path.read_text()
        if "signal_numbers as signal" in text:
            used = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)]
            wrong += [f"{path.stem}:{node.lineno}" for node in used if ast.unparse(node) == "signal.Signals"]
    assert wrong == []


def test_every_module_can_be_imported() -> None:
    """By any supported version of Python, and without a warning; the tuner's packages may be missing."""
    environ = {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-S", "-W", "error", "-c", EVERY_MODULE]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("folder", "pattern"), [(Path(__file__).parent, "test_*.py"), (SRC, "[!_]*.py")])
def test_each_file_has_a_name_of_its_own(folder: Path, pattern: str) -> None:
    """A report names a test by it, and a reader a module."""
    names = [path.name for path in folder.rglob(pattern)]
    assert sorted(names) == sorted(set(names))
