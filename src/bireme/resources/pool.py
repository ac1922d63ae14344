"""The pool: which hosts there are, and which slots on each."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Pool = dict[str, tuple[str, ...]]
"""Host name to slot ids, both in the order in which ranks are given out.

A slot id is an opaque word: an index, a GPU's UUID, a MIG device's name. An IPv6 host stands
without brackets. A pool is never changed: every step gives another.
"""


def world_size(pool: Mapping[str, tuple[str, ...]]) -> int:
    """How many ranks the pool carries: one on each slot."""
    return sum(map(len, pool.values()))


def listed(words: Iterable[str], most: int = 16) -> str:
    """The words in one line for a message; a cluster's worth of them is cut short."""
    words = list(words)
    if not words:
        return "none"
    rest = len(words) - most
    return ", ".join(words[:most]) + (f" and {rest} more" if rest > 0 else "")
