"""``--dry_run``: the plan for a person's eyes."""

from __future__ import annotations

import shlex

from bireme.cli.masking import masked_environment, masked_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bireme.planning.start import NodePlan, StartPlan


def as_text(plan: StartPlan, commands: Sequence[tuple[str, ...]] = ()) -> str:
    """The plan, several lines; ``commands``: how other nodes are reached."""
    ranks = "1 rank" if plan.world_size == 1 else f"{plan.world_size} ranks"
    nodes = "1 node" if len(plan.nodes) == 1 else f"{len(plan.nodes)} nodes"
    lines = [f"{ranks} on {nodes} ({plan.accelerator}), meeting at {plan.master_addr}:{plan.master_port}"]
    lines += [f"  $ {shlex.join(masked_words(command, of_script=False))}" for command in commands]
    for node in plan.nodes:
        lines += _node(node)
    return "\n".join(lines) + "\n"


def as_json(plan: StartPlan, commands: Sequence[tuple[str, ...]] = ()) -> str:
    """The plan for a machine: the fields of :class:`bireme.planning.start.StartPlan`, and ``launch``, the commands."""
    import json

    tree = {**plan.as_dict(), "launch": [masked_words(command, of_script=False) for command in commands]}
    for node in tree["nodes"]:
        node["env"] = masked_environment(node["env"])
        for worker in node["workers"]:
            worker["env"] = masked_environment(worker["env"])
            worker["argv"] = masked_words(worker["argv"])
    return json.dumps(tree, indent=2) + "\n"


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
