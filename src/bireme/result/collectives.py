"""Which collectives ranks wait in, and for whom, as text. Pure."""

from __future__ import annotations

from bireme.errors import counted
from bireme.resources.pool import ranges
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MOST_GROUPS = 8
"""Process groups that are named, those with the fewest missing ranks first."""


class GroupProgress(Value):
    """How far a rank is with the collectives of a process group, of PyTorch's flight recorder.

    Attributes:
        name: the same on all its ranks.
        label: what the script calls it.
        called: the number of the last collective that the rank has called.
        waits: the number of the first one that has not ended; 0: all have.
        what: that one, with the sizes of its tensors.
        members: the ranks of the group; empty: they are not known.
    """

    name: str
    label: str
    called: int
    waits: int = 0
    what: str = ""
    members: tuple[int, ...] = ()


def waits(told: Mapping[int, Sequence[GroupProgress]], silent: set[int]) -> list[str]:
    """A line for each process group in which ranks wait.

    Args:
        told: what ranks have answered.
        silent: ranks that have not.
    """
    groups = {rank: {group.name: group for group in each} for rank, each in told.items()}
    names = dict.fromkeys(name for each in groups.values() for name in each)
    found = sorted(filter(None, (_of_group(name, groups, silent) for name in names)))
    lines = [line for _, line in found[:_MOST_GROUPS]]
    if len(found) > _MOST_GROUPS:
        lines.append(f"ranks wait in {counted(len(found) - _MOST_GROUPS, 'more process group')}")
    return lines


def _of_group(name: str, told: Mapping[int, Mapping[str, GroupProgress]], silent: set[int]) -> tuple[int, str] | None:
    """(how many ranks are missing, the line) for one process group; None: no rank waits in it."""
    known = {rank: groups[name] for rank, groups in told.items() if name in groups}
    waiting = {rank: group for rank, group in known.items() if group.waits}
    if not waiting:
        return None
    number = min(group.waits for group in waiting.values())
    calls: dict[str, list[int]] = {}
    for rank, group in sorted(waiting.items()):
        if group.waits == number:
            calls.setdefault(group.what, []).append(rank)
    first = next(iter(waiting.values()))
    members = set(first.members or known)
    late = sorted(rank for rank in members & told.keys() if rank not in known or known[rank].called < number)
    deaf = sorted(members & silent)
    which = f"collective {number} of the group {first.label}"
    if len(calls) > 1:
        return 0, f"{which} differs: " + "; ".join(f"{_ranks(ranks)}: {what}" for what, ranks in calls.items())
    what, ranks = next(iter(calls.items()))
    who = [f"{_ranks(late)} {'has' if len(late) == 1 else 'have'} not called it"] * bool(late)
    who += [f"{_ranks(deaf)} {'does' if len(deaf) == 1 else 'do'} not answer"] * bool(deaf)
    line = f"{_ranks(ranks)} wait{'s' * (len(ranks) == 1)} in {what.partition(' ')[0]}, {which}"
    return len(late) + len(deaf), f"{line}: {' and '.join(who) or 'all its ranks have called it'}"


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {ranges(ranks)}"
