"""Runs a job on many nodes: starts a cluster crew for it. Also plans for dry runs."""

from __future__ import annotations

import os

from bireme.cluster import cluster_job
from bireme.cluster.cluster_crew import ClusterCrew, WholeJob
from bireme.cluster.connections import with_python
from bireme.one_node.machine import MACHINE
from bireme.planning.environment import NodeFacts, job_facts
from bireme.planning.start import sketch
from bireme.process.pid_file import PidFile
from bireme.runner import session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bireme.cluster.cluster_job import LauncherCommands
    from bireme.cluster.node_selection import Nodes
    from bireme.cluster.standby import Standby
    from bireme.job import JobSpec
    from bireme.one_node.machine import Machine
    from bireme.planning.start import Sketch
    from bireme.result.outcome import Outcome
    from bireme.runner.session import Session
    from bireme.ship.source import SourceTree

ONLY_NODES_KNOW = "<the node says>"
"""Placeholder in a dry run for what is known only after connecting."""


def run(
    spec: JobSpec,
    environ: Mapping[str, str],
    nodes: Nodes,
    launcher: str,
    machine: Machine = MACHINE,
    tree: SourceTree | None = None,
    is_last: Callable[[Outcome], bool] = lambda _: True,
    standby: Standby | None = None,
    *,
    again: str = "",
) -> Outcome:
    """Start an agent on every node, and the ranks through them; return when nothing is left anywhere.

    Args:
        standby: where agents may wait, before this attempt and after it.
        again: why the job begins again: a file of the tree was changed while it was sent.
    """
    exported = cluster_job.what_travels(spec, environ)
    job = cluster_job.prepare(spec, environ, nodes, launcher, exported, tree=tree, log_dir=spec.log_dir)
    crews: list[ClusterCrew] = []

    def make_crew(running: Session) -> ClusterCrew:
        crews.append(ClusterCrew(running, job, pid_file, machine, WholeJob(spec, is_last, standby)))
        return crews[0]

    with PidFile(os.getpid() if spec.save_pid else None) as pid_file:
        outcome = session.run(spec, [("info", again)] if again else job.notes(exported), make_crew, machine.loop)
    if crews[0].nodes.tree_changed and not again:
        why = f"{outcome.note}: sending it again"
        return run(spec, environ, nodes, launcher, machine, is_last=is_last, standby=standby, again=why)
    return outcome


def preview(
    spec: JobSpec, environ: Mapping[str, str], nodes: Nodes, launcher: str
) -> tuple[Sketch, LauncherCommands | None]:
    """The plan as far as it is known before connecting, and the launcher's command lines."""
    first = of_the_first_epoch(spec, nodes)
    return plan(spec, nodes), cluster_job.dry_commands(spec, environ, first, launcher)


def plan(spec: JobSpec, nodes: Nodes) -> Sketch:
    """The start plan as far as it is known before connecting."""
    active = {name: nodes.slots[name] or (ONLY_NODES_KNOW,) for name in of_the_first_epoch(spec, nodes).names}
    temporary = f"{ONLY_NODES_KNOW}/bireme"
    facts = NodeFacts(hostname="", accelerator=spec.accelerator, temporary=temporary, omp_threads_set=True)
    addr = spec.master_addr or ONLY_NODES_KNOW
    job = job_facts(spec, facts, addr, declared=False, job_id=ONLY_NODES_KNOW)
    return sketch(spec, active, job, lambda name: facts.replace(hostname=name, interpreter=_interpreter(spec, name)))


def _interpreter(spec: JobSpec, name: str) -> str:
    """The Python of the ranks on a node, as far as it is known before connecting."""
    from bireme.resources.active_environment import python_of  # for a dry run only

    python = with_python(spec, name).python
    return ONLY_NODES_KNOW if python is None else python_of(python) or python


def of_the_first_epoch(spec: JobSpec, nodes: Nodes) -> Nodes:
    """The nodes of the first epoch: of an elastic job all but the spares, of any other job all."""
    return nodes.replace(entries=nodes.entries[: spec.max_nodes]) if spec.elastic else nodes
