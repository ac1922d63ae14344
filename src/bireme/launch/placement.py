"""Decides where a job runs before anything is started: on this machine, by hand, through agents, or as native ranks."""

from __future__ import annotations

import os

from bireme.errors import BadInputError
from bireme.launch import one_machine
from bireme.planning.start import Sketch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from bireme.cluster.many_nodes import LauncherCommands
    from bireme.cluster.node_selection import Found
    from bireme.job import JobSpec
    from bireme.result.outcome import Outcome

_DEFAULT_HOSTFILE = "/job/hostfile"
_SCHEDULERS = ("SLURM_JOB_ID", "PBS_NODEFILE", "LSB_DJOB_HOSTFILE", "LSB_MCPU_HOSTS")


def run(spec: JobSpec, environ: Mapping[str, str]) -> Outcome:
    """Run the job where its pool says, and wait for its end.

    Raises:
        BadInputError: the job cannot run as described; nothing was started.
    """
    found = find(spec, environ)
    check_node_rank(spec, 1 if found is None else len(found.entries))
    if found is None:
        return one_machine.run(spec, environ)
    if spec.by_hand:
        return _run_by_hand(spec, environ, found)
    if spec.native_ranks:
        from bireme.cluster import many_nodes, native_ranks

        return native_ranks.run(spec, environ, found, many_nodes.launcher_name(spec, found))
    here = only_here(spec, found)
    if here is not None:
        return one_machine.run(spec, environ, here)
    from bireme.cluster import many_nodes

    return many_nodes.run(spec, environ, found)


def plan(spec: JobSpec, environ: Mapping[str, str]) -> Sketch:
    """What :func:`run` would start, as far as it is known before the nodes have been asked.

    Raises:
        BadInputError: as :func:`run`.
    """
    found = find(spec, environ)
    here = None if found is None else only_here(spec, found)
    if found is not None and here is None:
        from bireme.cluster import many_nodes

        return many_nodes.plan(spec, found)
    prepared = one_machine.prepare(spec, environ, here)
    prepared.release()
    return Sketch.of(prepared.plan)


def check_node_rank(spec: JobSpec, nodes: int) -> None:
    """Refuse ``--node_rank`` without ``--no_ssh``: typed on every node, the command would start as many whole jobs.

    Raises:
        BadInputError: the option was given without ``--no_ssh``.
    """
    if spec.node_rank not in (None, -1) and not spec.by_hand and (nodes > 1 or spec.node_rank != 0):
        hint = "one command starts all nodes; to run it on each node yourself, add --no_ssh"
        raise BadInputError("has an effect only with --no_ssh", hint=hint, where="--node_rank")


def launcher_commands(spec: JobSpec, environ: Mapping[str, str]) -> LauncherCommands | None:
    """The command lines of the launcher, for a dry run; ``None`` where the job runs on this machine alone.

    Raises:
        BadInputError: as :func:`run`.
    """
    found = find(spec, environ)
    if found is None or spec.by_hand:
        return None
    from bireme.cluster import many_nodes, native_ranks

    if spec.native_ranks:
        return many_nodes.LauncherCommands.of(
            (native_ranks.command(spec, environ, found, many_nodes.launcher_name(spec, found)),)
        )
    return None if only_here(spec, found) is not None else many_nodes.launcher_commands(spec, environ, found)


def find(spec: JobSpec, environ: Mapping[str, str]) -> Found | None:
    """The declared pool; ``None``: there is none. Modules that read a pool are imported only where one is declared.

    Raises:
        BadInputError: the declaration cannot be read, or the job needs more than this machine.
    """
    declared = spec.hosts or spec.hostfile is not None or os.path.exists(_DEFAULT_HOSTFILE)
    found = None
    if declared or any(name in environ for name in _SCHEDULERS):
        from bireme.cluster import node_selection

        found = node_selection.find(spec, environ)
    if found is None:
        if spec.num_nodes is not None and spec.num_nodes > 1:
            raise BadInputError(
                f"{spec.num_nodes} nodes requested, but only this machine is known",
                hint="name the others with --hostfile or --hosts",
                where="--num_nodes",
            )
        if spec.by_hand or spec.native_ranks:
            option = "--no_ssh" if spec.by_hand else "--native_ranks"
            raise BadInputError(f"{option} requires a list of nodes", hint="give it with --hostfile or --hosts")
    return found


def only_here(spec: JobSpec, found: Found) -> one_machine.Declared | None:
    """This machine as the pool declares it, if it is the only node left; else ``None``."""
    if spec.force_multi:
        return None
    from bireme.cluster import node_selection
    from bireme.resources.locality import is_this_machine

    entries, slots = node_selection.select(spec, found)
    if len(entries) != 1 or not is_this_machine(entries[0].name):
        return None
    (entry,) = entries
    tasks = node_selection.by_tasks(found)
    note = f"1 node, from {found.source}{tasks}" if tasks else ""
    return one_machine.Declared(entry.name, slots[entry.name], entry.tasks, note)


def _run_by_hand(spec: JobSpec, environ: Mapping[str, str], found: Found) -> Outcome:
    from bireme.cluster import node_selection

    entries, slots = node_selection.select(spec, found)
    world = {}
    for entry in entries:
        declared = slots[entry.name]
        if declared is None:
            raise BadInputError(
                f"no number of slots declared for {entry.name}", hint="add slots=N: --no_ssh cannot ask it"
            )
        world[entry.name] = declared
    if spec.node_rank is None:
        raise BadInputError("--no_ssh requires --node_rank K, the number of this node")
    addressed = spec if spec.master_addr else spec.replace(master_addr=entries[0].name)
    if spec.elastic:
        addressed = addressed.replace(run_id=spec.run_id or environ.get("ELASTIC_RUN_ID", "bireme"))
    return one_machine.run_by_hand(addressed, environ, world, spec.node_rank, os.getpid() if spec.save_pid else None)
