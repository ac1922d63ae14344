"""The resource pool: the hosts that a job may use, and the slots of each."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

Pool = dict[str, tuple[str, ...]]
"""Host names and their slot ids, both in the order in which ranks are numbered.

A slot id is an opaque word: an index, the UUID of a GPU, or the name of a MIG device. An IPv6 address has no brackets.
A pool is never changed: every step makes a new one.
"""


def quoted(text: str) -> str:
    """The user's text for a message: on one line, and at most 60 characters of it."""
    return repr(text if len(text) <= 60 else text[:57] + "...")


def listed(words: Iterable[str], most: int = 16) -> str:
    """Join words by commas for a message; of more than ``most`` words, the rest is only counted."""
    words = list(words)
    if not words:
        return "none"
    rest = len(words) - most
    return ", ".join(words[:most]) + (f" and {rest} more" if rest > 0 else "")


def ranges(numbers: Iterable[int]) -> str:
    """Numbers in short for a message or label: ``{0, 1, 2, 8}`` becomes ``0-2,8``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{low}-{high}" if low < high else str(low) for low, high in runs)
