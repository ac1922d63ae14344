"""Finds out whether a script takes an option: a string in its code names it, not a comment or docstring.

Reads the syntax tree without importing ``ast`` or ``tokenize``, which would take longer than the rest of the start.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

SPELLINGS = ("--local_rank", "--local-rank")
_SYNTAX_ONLY = 0x400
"""``ast.PyCF_ONLY_AST``."""


def wanted(text: bytes, *, python: bool) -> str:
    """The option by which a program takes its local rank, "" if it takes none."""
    if not python:
        code = b"\n".join(line for line in text.splitlines() if not line.lstrip().startswith(b"#"))
        return next((flag for flag in SPELLINGS if flag.encode() in code), "")
    if not _quoted(text):
        return ""  # parsing takes milliseconds
    named = _strings(text)
    return next((flag for flag in SPELLINGS if flag in named), "")


def _strings(text: bytes) -> set[str]:
    """The strings in the code, each without what follows a ``=``."""
    tree = syntax_tree(text)
    if tree is None:
        return _quoted(text)
    return {node.value.partition("=")[0] for node in strings(tree)}


def syntax_tree(text: bytes) -> Any:
    """The syntax tree of a script; ``None`` if it cannot be parsed, such as one for a later version of Python."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the script's code: Python gives them again when it runs
        try:
            return compile(text, "script", "exec", _SYNTAX_ONLY, dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None


def strings(tree: Any) -> Iterator[Any]:
    """The strings of a syntax tree, without docstrings and other statements that are only a constant."""
    return (node for node in nodes(tree) if type(node).__name__ == "Constant" and isinstance(node.value, str))


def _quoted(text: bytes) -> set[str]:
    """The spellings that follow a quotation mark anywhere."""
    return {flag for flag in SPELLINGS for mark in "'\"" if f"{mark}{flag}".encode() in text}


def nodes(tree: Any) -> Iterator[Any]:
    """The nodes of a syntax tree, without statements that are only a constant."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting += node
        elif hasattr(node, "_fields") and not (
            type(node).__name__ == "Expr" and type(node.value).__name__ == "Constant"
        ):
            yield node
            waiting += (getattr(node, name, None) for name in node._fields)
