"""The result of the preflight: facts for the plan, the inventory of ``bireme check``, and the list of unfit nodes."""

from __future__ import annotations

import os

from bireme.planning.start_facts import NodeFacts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bireme.cluster.agent_handle import AgentHandle
    from bireme.control.messages import Hello


def node_facts(member: AgentHandle, job_id: str) -> NodeFacts:
    """The facts about a node that the plan needs, from its agent's hello."""
    hello = member.hello
    return NodeFacts(
        hostname=hello.hostname,
        interpreter=hello.interpreter,
        cwd=os.getcwd(),
        cores=hello.cores,
        error_dir=os.path.join(hello.temporary, f"bireme-{job_id}"),
        bound=hello.bound,
        omp_threads_set=hello.omp_threads_set,
    )


def inventory(facts: Mapping[str, Hello]) -> str:
    """A table of the nodes and their resources, one line for each; ``facts``: by the nodes' names in the pool."""
    rows = []
    for name, hello in facts.items():
        slots = "cpu" if hello.accelerator == "cpu" else f"{hello.accelerator} {','.join(hello.slots)}"
        rows.append((name, hello.hostname, slots, f"{hello.cores} cores", f"Python {hello.python}"))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = ("  ".join(f"{word:{width}}" for word, width in zip(row, widths, strict=True)) for row in rows)
    return "".join(f"{line.rstrip()}\n" for line in lines)


def complaint(bad: Sequence[AgentHandle], total: int) -> str:
    """The unfit nodes and their problems, as an error message.

    Args:
        bad: the agents of the unfit nodes.
        total: how many nodes the job has.
    """
    lines = [f"{len(bad)} of {total} node{'' if total == 1 else 's'} cannot run the job:"]
    width = max(len(member.name) for member in bad)
    for member in bad:
        said = member.problems or [member.hint]
        for place, problem in enumerate(line for text in said for line in text.splitlines()):
            lines.append(f"  {member.name if not place else '':{width}}  {problem.strip()}")
    return "\n".join(lines)
