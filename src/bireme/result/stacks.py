"""The stacks of ranks as text: ranks with the same stack share a line, the smallest group first. Pure."""

from __future__ import annotations

from bireme.resources.pool import ranges
from bireme.result.collectives import GroupProgress, waits
from bireme.result.rank_use import behind
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MOST_FRAMES = 64
"""Frames of a thread that are kept, from the innermost."""

_SHOWN = 5
"""Frames of ours, of a script, that a line names at most."""
_WRAPPERS = ("wrapper", "inner", "wrapped", "decorated", "decorate_context", "_fn", "__call__")
"""Functions that stand between a script and what it calls: they say nothing."""


class Frame(Value):
    """A frame of Python. ``own``: it belongs to the script, not to a library."""

    function: str
    file: str
    line: int
    own: bool = True


class RankStack(Value):
    """What one process of a rank was doing.

    Attributes:
        thread: "" for the main thread of the rank's own process; else which thread or process it is.
        state: such as ``asleep`` or ``running``, with what the kernel knows.
        frames: from the innermost; empty: they could not be read.
        reason: why they could not be read.
        cpu, io: seconds of processor time and bytes that the rank, and what is below it, has used so far; only of the
            main thread.
        step: the number of the step that the script has reported; -1: none; only of the main thread.
        groups: its process groups, if their flight recorder has answered; only of the main thread.
        nccl: what NCCL finds wrong with the whole job; only of one rank of a node.
    """

    rank: int
    thread: str = ""
    state: str = ""
    frames: tuple[Frame, ...] = ()
    reason: str = ""
    cpu: float = 0.0
    io: int = 0
    step: float = -1.0
    groups: tuple[GroupProgress, ...] = ()
    nccl: str = ""


def merged(stacks: Iterable[RankStack], hosts: dict[int, str], *, own: str = "") -> str:
    """The stacks as text: a line for each different one, those of the fewest ranks first; then who waits for whom.

    Args:
        hosts: the node of each rank.
        own: the folder of the scripts, which are named without it.
    """
    groups: dict[tuple[str, str, str], list[int]] = {}
    spent: dict[int, float] = {}  # seconds of processor time of ranks whose stack is not known
    stacks = list(stacks)
    for each in stacks:
        if each.groups and not (each.frames or each.reason):
            continue  # it has ended, and left this
        if not each.frames and not each.thread:
            spent[each.rank] = each.cpu
        said = call_chain(each.frames, own) or each.reason or "no stack"
        groups.setdefault((each.thread, said, each.state), []).append(each.rank)
    world = len({rank for ranks in groups.values() for rank in ranks})
    rows = [
        (
            _who(sorted(set(ranks)), hosts, _in_one_line(thread)),
            _in_one_line(said),
            _in_one_line(_state(state, ranks, world, {} if thread else spent)),
        )
        for (thread, said, state), ranks in sorted(groups.items(), key=lambda each: (len(each[1]), each[1], each[0][0]))
    ]
    widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    lines = [f"{who:{widths[0]}}  {said:{widths[1]}}  {state}".rstrip() for who, said, state in rows]
    late = behind({each.rank: each.step for each in stacks if not each.thread})
    lines += [late] * bool(late)
    told = {each.rank: each.groups for each in stacks if each.groups}
    lines += waits(told, {each.rank for each in stacks} - told.keys())
    nccl = next((each.nccl for each in stacks if each.nccl), "")
    return "\n".join([*lines, *(f"NCCL: {line}" for line in nccl.splitlines())])


def _in_one_line(text: str) -> str:
    """Names of threads, functions and files are the program's own, and may contain anything."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def _state(state: str, ranks: Sequence[int], world: int, spent: dict[int, float]) -> str:
    count, cpu = len(set(ranks)), sorted(spent[rank] for rank in ranks if rank in spent)
    here = f"{count} of {world} are here" if 1 < count < world else ""
    used = " to ".join(dict.fromkeys(f"{each:.1f}" for each in (*cpu[:1], *cpu[-1:])))
    return ", ".join(filter(None, (state, used and f"{used} s of CPU", here)))


def _who(ranks: Sequence[int], hosts: dict[int, str], thread: str) -> str:
    nodes = list(dict.fromkeys(hosts.get(rank, "") for rank in ranks))
    where = f" on {nodes[0]}" if len(nodes) == 1 and nodes[0] and len(set(hosts.values())) > 1 else ""
    who = f"rank{'s' if len(ranks) > 1 else ''} {ranges(ranks)}{where}"
    return f"{who}, {thread}" if thread else who


def call_chain(frames: Sequence[Frame], folder: str = "") -> str:
    """The calls, the innermost first: ``all_reduce ← train.py:41 step ← train.py:60``.

    Of libraries only the function that the script has called is named; without a frame of a script, the innermost.
    """
    first_own = next((place for place, frame in enumerate(frames) if frame.own), None)
    if first_own is None:
        return " ← ".join(_named(frame, folder) for frame in frames[:_SHOWN])
    words = [_called(frames[:first_own])] if first_own else []
    own = [frame for frame in frames[first_own:] if frame.own]
    words += [_named(frame, folder) for frame in own[:_SHOWN]]
    return " ← ".join(words) + (" ← …" if len(own) > _SHOWN else "")


def _called(frames: Sequence[Frame]) -> str:
    """The function of a library that the script has called: the outermost that says something."""
    names = [frame.function.rpartition(".")[2] for frame in reversed(frames)]
    return next((name for name in names if name not in _WRAPPERS and not name.startswith(("_", "<"))), names[0])


def _named(frame: Frame, folder: str) -> str:
    path = frame.file.removeprefix(folder.rstrip("/") + "/") if folder else frame.file
    path = path if not path.startswith("/") else path.rpartition("/")[2]
    return f"{path}:{frame.line}" + (f" {frame.function}" if frame.function != "<module>" else "")
