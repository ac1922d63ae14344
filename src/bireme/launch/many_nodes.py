"""Runs a job on many nodes: starts a cluster crew for it. Also plans for dry runs."""

from __future__ import annotations

import os

from bireme.cluster import agent_launch
from bireme.cluster.agent_connector import with_python
from bireme.cluster.cluster_crew import ClusterCrew
from bireme.cluster.cluster_job import ClusterJob
from bireme.logs import rankfiles
from bireme.node.machine import MACHINE
from bireme.planning.start import sketch
from bireme.planning.start_facts import NodeFacts, job_facts
from bireme.process.pid_file import PidFile
from bireme.runner import session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bireme.cluster.node_selection import Nodes
    from bireme.job import JobSpec
    from bireme.node.machine import Machine
    from bireme.planning.exports import Exports
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
    *,
    again: str = "",
) -> Outcome:
    """Start an agent on every node, and the ranks through them; return when nothing is left anywhere.

    Args:
        tree: the files to send to the nodes, if they are known already.
        is_last: whether the job ends with an outcome, and is not started again.
        again: why the job begins again: a file of the tree was changed while it was sent.

    Raises:
        BadInputError: the job cannot run as described; nothing was started.
        UnfitError: no port is free for the agents to connect to.
    """
    exported = agent_launch.what_travels(spec, environ)
    job = prepare(spec, environ, nodes, launcher, exported, tree=tree)
    crews: list[ClusterCrew] = []

    def make_crew(running: Session) -> ClusterCrew:
        crews.append(ClusterCrew(running, job, pid_file, machine, is_last))
        return crews[0]

    with PidFile(os.getpid() if spec.save_pid else None) as pid_file:
        outcome = session.run(spec, [("info", again)] if again else job.notes(exported), make_crew, machine.loop)
    if crews[0].tree_changed and not again:
        return run(spec, environ, nodes, launcher, machine, is_last=is_last, again=f"{outcome.note}: sending it again")
    return outcome


def prepare(
    spec: JobSpec,
    environ: Mapping[str, str],
    nodes: Nodes,
    launcher: str,
    exported: Exports,
    accelerator: str = "",
    tree: SourceTree | None = None,
) -> ClusterJob:
    """Make the value that a crew carries out, and open what it needs.

    Args:
        accelerator: the kind of device that every node must have; "": any.
        tree: the files to send to the nodes, if they are known already.

    Raises:
        BadInputError, UnfitError: as :func:`run`.
    """
    tree = tree or ClusterJob.find_tree(spec, environ)
    launch = agent_launch.prepare(spec, environ, nodes, launcher)
    log_dir = rankfiles.prepare(spec.log_dir, "--log_dir") if spec.log_dir is not None else None
    return ClusterJob(
        spec=spec,
        nodes=nodes,
        launch=launch,
        exports=exported.variables,
        accelerator=accelerator,
        log_dir=log_dir,
        tree=tree,
    )


def plan(spec: JobSpec, nodes: Nodes) -> Sketch:
    """The start plan as far as it is known before connecting.

    Raises:
        BadInputError: as :func:`run`.
    """
    active = {name: nodes.slots[name] or (ONLY_NODES_KNOW,) for name in of_the_first_epoch(spec, nodes).names}
    facts = NodeFacts(hostname="", accelerator=spec.accelerator, temporary=ONLY_NODES_KNOW, omp_threads_set=True)
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
