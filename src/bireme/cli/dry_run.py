"""``--dry_run``: prints the plan of a job as text or as JSON, with secrets masked."""

from __future__ import annotations

import shlex

from bireme.errors import counted
from bireme.planning.masking import masked_environment, masked_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Any

    from bireme.cluster.cluster_job import LauncherCommands
    from bireme.planning.start import NodePlan, Sketch


def as_text(sketch: Sketch, commands: LauncherCommands | None = None) -> str:
    """The plan as lines of text; of many nodes, only the first and last ones are printed in full.

    Args:
        commands: the commands of the launcher; ``None`` if no other node takes part.
    """
    plan, number = sketch.head, len(sketch.ranks)
    size = f"{counted(plan.world_size, 'rank')} on {counted(number, 'node')}"
    lines = [f"{size} ({plan.accelerator}), meeting at {plan.master_addr}:{plan.master_port}"]
    if commands is not None:
        first, end = _left_out(commands.number)
        lines += [_command(command) for command in commands.part(0, first)]
        if first < end:
            lines.append(f"  … {end - first} more commands (--json prints all)")
            lines += [_command(command) for command in commands.part(end, commands.number)]
    first, end = _left_out(number)
    for node in sketch.part(0, first):
        lines += _node(node)
    if first < end:
        lines += ["", _summary(sketch, first, end)]
        for node in sketch.part(end, number):
            lines += _node(node)
    return "\n".join(lines) + "\n"


_IN_FULL = 32
"""The most nodes that are printed in full; of more nodes, the first ``_FIRST`` and last ``_LAST`` are."""
_FIRST, _LAST = 4, 2
_LONGEST = 4096
"""Longest word of a command, in characters, that is not shortened; the list of many nodes is longer."""


def _left_out(number: int) -> tuple[int, int]:
    """The range of items, out of ``number``, that are not printed."""
    return (number, number) if number <= _IN_FULL else (_FIRST, number - _LAST)


def _summary(sketch: Sketch, first: int, end: int) -> str:
    """One line for the nodes that are not printed, counted by their number of ranks, most frequent first."""
    from collections import Counter

    counts = Counter(sketch.ranks[first:end]).most_common()
    by_ranks = ", ".join(f"{nodes} with {counted(ranks, 'rank')}" for ranks, nodes in counts[:4])
    others = f" and {sum(nodes for _, nodes in counts[4:])} with others" if counts[4:] else ""
    begin = sum(sketch.ranks[:first])
    last = begin + sum(sketch.ranks[first:end]) - 1
    return f"… nodes {first} to {end - 1}: {by_ranks}{others}; ranks {begin} to {last} (--json prints all)"


def _command(command: Sequence[str]) -> str:
    words = masked_words(command, of_script=False)
    if max(map(len, words)) > _LONGEST:
        words = [
            word if len(word) <= _LONGEST else f"{word[:200]}… {len(word) - 200} characters more" for word in words
        ]
    return f"  $ {shlex.join(words)}"


def as_json(sketch: Sketch, commands: LauncherCommands | None = None) -> Iterator[str]:
    """The plan as JSON: the fields of :class:`bireme.planning.start.StartPlan`, and the commands as ``launch``.

    Yields pieces of the text, so that a large plan is never in memory at once.
    """
    import json

    fields = sketch.head.as_dict()
    del fields["nodes"]
    yield json.dumps(fields, indent=2).removesuffix("\n}")
    yield from _items("nodes", (_tree(node) for node in sketch.part(0, len(sketch.ranks))))
    number = 0 if commands is None else commands.number
    launch = (commands.part(place, place + 1)[0] for place in range(number)) if commands is not None else ()
    yield from _items("launch", (masked_words(command, of_script=False) for command in launch))
    yield "\n}\n"


def _items(name: str, values: Iterable[object]) -> Iterator[str]:
    """Yield a list as the next field of an object, indented like ``json.dumps``."""
    import json

    between = f',\n  "{name}": ['
    end = "]"
    for value in values:
        yield between + "\n    " + json.dumps(value, indent=2).replace("\n", "\n    ")
        between, end = ",", "\n  ]"
    yield end if between == "," else between + end


def _tree(node: NodePlan) -> dict[str, Any]:
    """The fields of a node, with secrets masked."""
    tree = node.as_dict()
    tree["env"] = masked_environment(tree["env"])
    for worker in tree["workers"]:
        worker["env"] = masked_environment(worker["env"])
        worker["argv"] = masked_words(worker["argv"])
    return tree


def _node(node: NodePlan) -> list[str]:
    slots = ",".join(worker.slot for worker in node.workers)
    lines = ["", f"node {node.node_rank}: {node.host}, slots {slots}, in {node.cwd}"]
    lines += [f"    {pair}" for pair in _pairs(node.env)]
    for worker in node.workers:
        bound = f", cores {','.join(map(str, worker.cores))}" if worker.cores else ""
        lines.append(f"  rank {worker.rank}: slot {worker.slot}{bound}")
        lines += [f"    {pair}" for pair in _pairs(worker.env)]
        lines.append(f"    $ {shlex.join(masked_words(worker.argv))}")
    return lines


def _pairs(env: Mapping[str, str]) -> list[str]:
    return [f"{name}={shlex.quote(value)}" for name, value in masked_environment(env).items()]
