"""Finds out whether a script takes ``--local_rank``: a string in its code names it, not a comment or docstring.

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
    """The option by which a program takes its local rank, "" if it takes none.

    Args:
        text: its source.
        python: whether that is Python.
    """
    if not python:
        code = b"\n".join(line for line in text.splitlines() if not line.lstrip().startswith(b"#"))
        return next((flag for flag in SPELLINGS if flag.encode() in code), "")
    if not _quoted(text):
        return ""  # parsing takes milliseconds
    named = _strings(text)
    return next((flag for flag in SPELLINGS if flag in named), "")


def _strings(text: bytes) -> set[str]:
    """The strings in the code, each without what follows a ``=``."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the script's code: Python gives them again when it runs
        try:
            tree = compile(text, "script", "exec", _SYNTAX_ONLY, dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError, MemoryError):  # or of another version of Python
            return _quoted(text)
    return {value.partition("=")[0] for value in _constants(tree) if isinstance(value, str)}


def _quoted(text: bytes) -> set[str]:
    """The spellings that follow a quotation mark anywhere."""
    return {flag for flag in SPELLINGS for mark in "'\"" if f"{mark}{flag}".encode() in text}


def _constants(tree: Any) -> Iterator[object]:
    """The constants of a syntax tree, without docstrings and other statements that are only a constant."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting += node
        elif hasattr(node, "_fields"):
            kind = type(node).__name__
            if kind == "Constant":
                yield node.value
            elif not (kind == "Expr" and type(node.value).__name__ == "Constant"):
                waiting += (getattr(node, name, None) for name in node._fields)
