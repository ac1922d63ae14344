"""Finds options of Bireme after the script, which gets them instead: the most common mistake of new users.

A script may have an option of the same name. So nothing is said if its code, or possibly another file, names it.
"""

from __future__ import annotations

import os
import re
import sys
from itertools import chain, islice

from bireme.resources.program import nodes, syntax_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Any

    from bireme.options.option import Option

_PARSERS = {"click", "typer", "fire", "absl", "docopt"}
"""Modules that parse a command line, but define no options themselves, besides those of Python."""
_PARSES = re.compile(
    "(?:^|_)(?:args?|argv|arguments?|parse[a-z]*|flags?|opts?|options?|hydra|cli|main|app|config)(?:_|$)"
    "|Arg(?:ument)?s?|Pars(?:e|er|ing)|Flags|Options"
)
"""Names of what may read the command line, where they are imported from another file."""
_PASSES_ON = {"subprocess", "runpy", "execv", "execve", "execvp", "execvpe"}
_MOST_FILES = 200


def misplaced(args: Sequence[str], suspects: Mapping[str, Option], text: bytes, folders: Sequence[str]) -> list[str]:
    """The words after the script that were meant for us: options, and their values.

    Args:
        suspects: those that are options of ours, each with the option.
        folders: where it imports modules from.
    """
    tree = syntax_tree(text)
    if tree is None or not text:
        return []
    named = set(_named(tree)) | ({*_words(text.decode(errors="replace"))} if b"docopt" in text else set())
    imported = list(_imported(tree))
    others = (each for each in imported if each[0] not in sys.stdlib_module_names and each[0] not in _PARSERS)
    if ("argv" in named and named & _PASSES_ON) or any(_PARSES.search(name) for each in others for name in each):
        return []
    beside = list(_text_beside({each[0] for each in imported}, folders))
    found: list[str] = []
    for place, word in enumerate(args):
        option = suspects.get(word)
        if option is None:
            continue
        name = word[2:].partition("=")[0].replace("-", "_")
        # argparse takes an abbreviation: --num_gpus for its --num_gpus_per_node
        if not any(known.startswith(name) for known in named) and not any(name in text for text in beside):
            value = args[place + 1 : place + 2] if "=" not in word and option.takes_next else ()
            found += (word, *(text for text in value if not text.startswith("-")))
    return found


def _named(tree: Any) -> Iterator[str]:
    """All names in the code, and the words of strings that may be options, with ``_`` for ``-``."""
    for node in nodes(tree):
        for field in node._fields:
            value = getattr(node, field, None)
            if isinstance(value, str) and (value.startswith("-") or " " not in value):
                yield from _words(value)


def _words(text: str) -> Iterator[str]:
    return (word.replace("-", "_") for word in re.findall(r"[A-Za-z][\w-]*", text))


def _imported(tree: Any) -> Iterator[list[str]]:
    """The parts of each full name that the script imports."""
    for node in nodes(tree):
        if type(node).__name__ in ("Import", "ImportFrom"):
            module = getattr(node, "module", None) or ""
            yield from (f"{module}.{alias.name}".strip(".").split(".") for alias in node.names)


def _text_beside(modules: Iterable[str], folders: Iterable[str]) -> Iterator[str]:
    """The text of the modules that stand beside the script, with ``_`` for ``-``."""
    bases = [os.path.join(folder, module) for folder in folders for module in modules]
    inside = (os.path.join(place, name) for base in bases for place, _, names in os.walk(base) for name in names)
    files = (path for path in chain((f"{base}.py" for base in bases), inside) if path.endswith(".py"))
    for path in islice(filter(os.path.isfile, files), _MOST_FILES):
        try:
            with open(path, errors="replace") as file:
                yield file.read(1 << 20).replace("-", "_")
        except OSError:
            continue
