"""The changes: where Cosmic Ray can change the program, and how."""

from __future__ import annotations

import ast
import difflib
import random
from dataclasses import dataclass
from pathlib import Path

from cosmic_ray import plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCE = "src/bireme"

EQUAL = ("Is_Eq", "IsNot_NotEq", "Eq_Is", "NotEq_IsNot")
"""Changes that do nothing where constants are compared, which is where we use these operators."""
OPERATORS = {
    name: operator()
    for name in sorted(plugins.operator_names())
    if not (operator := plugins.get_operator(name)).arguments() and not name.endswith(EQUAL)
}


@dataclass(frozen=True)
class Mutant:
    """A change of one place of one file."""

    file: str
    line: int
    operator: str
    code: str

    def change(self, original: str) -> str:
        """The line before and after."""
        lines = difflib.unified_diff(original.splitlines(), self.code.splitlines(), lineterm="", n=0)
        return " ".join(
            line[0] + line[1:].strip() for line in lines if line[0] in "+-" and line[:3] not in ("+++", "---")
        )

    def key(self) -> tuple[str, str, str]:
        """What identifies it in the list."""
        original = (ROOT / self.file).read_text(encoding="utf-8")
        return f"{self.file}:{self.line}", self.operator, self.change(original)


class Bare(ast.NodeTransformer):
    """Leaves annotations out, which are never evaluated."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant(None)
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        """What only type checkers see."""
        return None if "TYPE_CHECKING" in ast.dump(node) else node

    def visit_If(self, node: ast.If) -> ast.AST | None:
        """What only type checkers see."""
        return None if "TYPE_CHECKING" in ast.dump(node.test) else self.generic_visit(node)


def meaning(code: str) -> str:
    """What of a module has an effect."""
    return ast.dump(Bare().visit(ast.parse(code)))


@dataclass(frozen=True)
class Place:
    """Where Cosmic Ray can change a file, and how: by which occurrence of which operator."""

    file: str
    line: int
    ways: tuple[tuple[str, int], ...]

    def mutant(self, chance: random.Random) -> Mutant | None:
        """One change, or nothing if it has no effect."""
        name, occurrence = chance.choice(self.ways)
        code = (ROOT / self.file).read_text(encoding="utf-8")
        try:
            changed = mutate_code(code, OPERATORS[name], occurrence)
            if changed is None or meaning(changed) == meaning(code):
                return None
        except (SyntaxError, AttributeError):  # the second: an exception with a dot in its name
            return None
        return Mutant(self.file, self.line, name.removeprefix("core/"), changed)


def places(file: str) -> list[Place]:
    """Every place of a file at which something can be changed."""
    tree = get_ast((ROOT / file).read_text(encoding="utf-8"))
    found: dict[tuple[int, int], list[tuple[str, int]]] = {}
    nodes = list(ast_nodes(tree))
    for name, operator in OPERATORS.items():
        begins = (begin for node in nodes for begin, _ in operator.mutation_positions(node))
        for occurrence, begin in enumerate(begins):
            found.setdefault(begin, []).append((name, occurrence))
    return [Place(file, line, tuple(ways)) for (line, _), ways in sorted(found.items())]
