"""Tests that values with more than four fields are built by keyword."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.test_layers import all_modules

MOST = 4
TABLE_ROWS = {"Option", "Excludes"}
"""Rows of the tables in ``bireme.options``, which are read as columns."""


def name_of(node: ast.expr) -> str:
    """The last part of a dotted name; "": it is none."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def values(trees: list[ast.Module]) -> dict[str, int]:
    """The number of fields of each class that derives from ``Value``."""
    classes = {node.name: node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}

    def fields(name: str) -> int | None:
        """The number of fields; ``None``: it is no value."""
        if name == "Value":
            return 0
        if name not in classes:
            return None
        inherited = [count for base in classes[name].bases if (count := fields(name_of(base))) is not None]
        own = [node for node in classes[name].body if isinstance(node, ast.AnnAssign)]
        return inherited[0] + len(own) if inherited else None

    return {name: count for name in classes if (count := fields(name)) is not None}


def positional(tree: ast.Module, large: set[str]) -> Iterator[tuple[int, str]]:
    """Line and class of each call of these classes with a positional argument; ``cls`` in their methods counts."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args and name_of(node.func) in large:
            yield node.lineno, name_of(node.func)
        if isinstance(node, ast.ClassDef) and node.name in large:
            calls = [inner for inner in ast.walk(node) if isinstance(inner, ast.Call)]
            yield from ((call.lineno, node.name) for call in calls if call.args and name_of(call.func) == "cls")


def test_large_values_are_built_by_keyword() -> None:
    trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in all_modules().items()}
    large = {name for name, count in values(list(trees.values())).items() if count > MOST} - TABLE_ROWS
    found = [f"{module}:{line} {name}" for module, tree in trees.items() for line, name in positional(tree, large)]
    assert large and not found, "\n".join(found)


def test_positional_arguments_are_found() -> None:
    """The check itself."""
    source = """
class Small(Value):
    a: int
    b: int
class Large(Small):
    c: int
    d: int
    e: int = 0
    @classmethod
    def of(cls): return cls(1, 2, 3, 4)
class Other:
    a: int; b: int; c: int; d: int; e: int
Small(1, 2)
module.Large(1, b=2)
Large(a=1, b=2, c=3, d=4)
Other(1, 2, 3, 4, 5)
"""
    tree = ast.parse(source)
    assert values([tree]) == {"Small": 2, "Large": 5}
    assert sorted(positional(tree, {"Large"})) == [(10, "Large"), (14, "Large")]
