"""Runs a job on many nodes: selects them, makes the launcher's commands, and starts a cluster crew. Also dry runs."""

from __future__ import annotations

import os
import sys

from bireme import isolated
from bireme.agent import session
from bireme.agent.machine import Machine
from bireme.backends import base
from bireme.cluster import node_selection
from bireme.cluster.agent_listener import AgentListener
from bireme.cluster.cluster_crew import ClusterCrew
from bireme.cluster.cluster_job import ClusterJob
from bireme.job import DEFAULT_PORT
from bireme.logs import rankfiles
from bireme.planning.exports import exports
from bireme.planning.start import JobFacts, NodeFacts, sketch
from bireme.process.pid_file import PidFile
from bireme.resources import devices
from bireme.resources.locality import find_this_machine
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from bireme.backends.base import Backend, LaunchPlan
    from bireme.cluster.agent_handle import AgentHandle
    from bireme.cluster.epoch import Epoch
    from bireme.cluster.node_selection import Found
    from bireme.job import JobSpec
    from bireme.planning.exports import Exports
    from bireme.planning.start import Sketch
    from bireme.resources.hostfile import HostEntry
    from bireme.resources.pool import Pool
    from bireme.result.outcome import Outcome

    Commands = Callable[[LaunchPlan, Mapping[str, str]], tuple[tuple[str, ...], ...]]

MACHINE = Machine()
ONLY_NODES_KNOW = "<the node says>"
"""Placeholder in a dry run for what is known only after connecting."""


class LauncherCommands(Value):
    """The launcher's command lines, made on demand.

    Attributes:
        number: how many there are.
        part: makes those from a first index up to, but without, a second.
    """

    number: int
    part: Callable[[int, int], tuple[tuple[str, ...], ...]]

    @classmethod
    def of(cls, commands: tuple[tuple[str, ...], ...]) -> LauncherCommands:
        """Wrap command lines that were made already."""
        return cls(len(commands), lambda first, end: commands[first:end])


def run(
    spec: JobSpec,
    environ: Mapping[str, str],
    found: Found,
    *,
    checked: Callable[[Sequence[AgentHandle]], str] | None = None,
    epoch: Epoch | None = None,
    machine: Machine = MACHINE,
) -> Outcome:
    """Start an agent on every node, and the ranks through them; return when nothing is left anywhere.

    Args:
        spec: the job.
        environ: the environment.
        found: the declared pool.
        checked, epoch: see `ClusterJob`.
        machine: this machine.

    Raises:
        BadInputError: the job cannot run as described; nothing was started.
        UnfitError: no port is free for the agents to connect to.
    """
    entries, slots = node_selection.select(spec, found)
    backend = base.load(launcher_name(spec, found))
    hosts = _hosts(entries)
    connects = backend.CHANNEL == "dial"
    executable = base.find_program(backend, environ) if connects or not all(host.local for host in hosts) else ""
    log_dir = rankfiles.prepare(spec.log_dir, "--log_dir") if spec.log_dir is not None else None
    exported = epoch.exports if epoch is not None and epoch.exports is not None else what_travels(spec, environ)

    only_here = all(host.local for host in hosts)
    listener = AgentListener(backend.TOKEN_VARIABLE, environ, only_here=only_here) if connects else None
    # The token goes first: hydra of MPICH 4.0 ignores the last variable of its environment.
    launcher_environ = {**(listener.environment() if listener is not None else {}), **environ}
    launch = _launch(spec, hosts, agent_command(listener), executable, epoch)
    cluster_job = ClusterJob(
        spec,
        launch.hosts,
        tuple(slots[entry.name] for entry in entries),
        lambda known: _active(spec, slots, known),
        exported.variables,
        launcher_environ,
        _commands(spec, backend)(launch, launcher_environ),
        backend,
        spec.heartbeat,
        log_dir,
        checked,
        epoch,
    )
    options = session.SessionOptions.of(spec, _notes(cluster_job, found, exported))

    def run_crew(pid_file: PidFile) -> Outcome:
        """Run the job."""
        return session.run(
            options,
            lambda crew_session: ClusterCrew(crew_session, cluster_job, listener, pid_file, machine),
            machine.loop,
        )

    if epoch is not None:  # the pid file belongs to the whole elastic job
        return run_crew(epoch.pid_file)
    with PidFile(os.getpid() if spec.save_pid else None) as pid_file:
        return run_crew(pid_file)


def what_travels(spec: JobSpec, environ: Mapping[str, str]) -> Exports:
    """The variables to export to other nodes.

    Raises:
        BadInputError: a file that names additional variables cannot be read.
    """
    return exports(environ, spec.exports, os.path.expanduser("~"), os.getcwd())


def _launch(
    spec: JobSpec,
    hosts: tuple[base.HostLaunch, ...],
    agent: tuple[str, ...],
    executable: str,
    epoch: Epoch | None = None,
) -> LaunchPlan:
    """What the backend needs to make the launcher's command lines."""
    return base.LaunchPlan(
        hosts,
        agent,
        executable,
        spec.launcher_args,
        spec.ssh_port,
        root=os.geteuid() == 0,
        connect_timeout=epoch.connect_timeout if epoch is not None else base.CONNECT_TIMEOUT,
    )


def _notes(cluster_job: ClusterJob, found: Found, exported: Exports) -> Iterator[tuple[str, str]]:
    """The messages to show before anything starts, each with its level."""
    spec, number = cluster_job.spec, len(cluster_job.hosts)
    names = ", ".join(sorted(exported.variables)) or "none"
    yield "debug", f"{number} nodes of {found.source}, by {cluster_job.backend.NAME}; exported variables: {names}"
    if not spec.hosts and spec.hostfile is None and cluster_job.epoch is None:
        yield "info", f"{number} node{'' if number == 1 else 's'}, from {found.source}{node_selection.by_tasks(found)}"
    yield from exported.notes()


def _active(spec: JobSpec, slots: Mapping[str, tuple[str, ...] | None], known: Pool) -> Pool:
    """Apply the filters to the nodes that answered; where all slots are declared, this was done before."""
    if None not in slots.values():
        return known
    return (
        node_selection.resolve(node_selection.narrowed(spec, known), known, may_be_empty=True)
        if spec.elastic
        else node_selection.resolve(spec, known)
    )


def launcher_commands(spec: JobSpec, environ: Mapping[str, str], found: Found) -> LauncherCommands:
    """The launcher's command lines, for a dry run: opens no port and does not look up the launcher.

    Args:
        spec: the job.
        environ: the environment.
        found: the declared pool.

    Raises:
        BadInputError: as :func:`run`.
    """
    entries, _ = _of_the_first_epoch(spec, found)
    here = find_this_machine([entry.name for entry in entries])
    backend = base.load(launcher_name(spec, found))
    arguments: tuple[str, ...] = ("--channel",)
    if backend.CHANNEL == "dial":
        arguments = ("--dial", "<our addresses>", "<a free port>", backend.TOKEN_VARIABLE)
    agent = isolated.command("bireme.agent", *arguments)

    def part(first: int, end: int) -> tuple[tuple[str, ...], ...]:
        return _commands(spec, backend)(_launch(spec, _launches(entries[first:end], here), agent, ""), environ)

    if backend.CHANNEL == "stdio" or spec.elastic:
        return LauncherCommands(len(entries), part)
    return LauncherCommands.of(part(0, len(entries)))


def _of_the_first_epoch(spec: JobSpec, found: Found) -> tuple[tuple[HostEntry, ...], dict[str, tuple[str, ...] | None]]:
    """The nodes of the first epoch: of an elastic job all but the spares, of any other job all."""
    entries, slots = node_selection.select(spec, found)
    return entries[: spec.max_nodes] if spec.elastic else entries, slots


def _commands(spec: JobSpec, backend: Backend) -> Commands:
    """How to make the command lines: in an elastic job, each node has one of its own."""
    make = base.one_by_one(backend) if spec.elastic else backend.commands

    def checked(plan: LaunchPlan, environ: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
        commands = make(plan, environ)
        base.check_length(backend.NAME, commands, environ)
        return commands

    return checked


def launcher_name(spec: JobSpec, found: Found) -> str:
    """The launcher to use, with ``auto`` resolved: slurm in a Slurm allocation, else ssh."""
    if spec.launcher != "auto":
        return spec.launcher
    return "slurm" if found.scheduler == "slurm" else "ssh"


def agent_command(listener: AgentListener | None) -> tuple[str, ...]:
    """The command that starts an agent on a node, with the path of this interpreter."""
    return isolated.command("bireme.agent", *(("--channel",) if listener is None else listener.arguments()))


def _hosts(entries: Sequence[HostEntry]) -> tuple[base.HostLaunch, ...]:
    return _launches(entries, find_this_machine([entry.name for entry in entries]))


def _launches(entries: Sequence[HostEntry], here: str | None) -> tuple[base.HostLaunch, ...]:
    return tuple(
        base.HostLaunch(name=entry.name, user=entry.user, port=entry.port, local=entry.name == here, tasks=entry.tasks)
        for entry in entries
    )


def plan(spec: JobSpec, found: Found) -> Sketch:
    """The start plan as far as it is known before connecting.

    Raises:
        BadInputError: as :func:`run`.
    """
    entries, slots = _of_the_first_epoch(spec, found)
    active = {entry.name: slots[entry.name] or (ONLY_NODES_KNOW,) for entry in entries}
    kind = spec.accelerator if spec.accelerator != "auto" else "cuda"
    job = JobFacts(
        ONLY_NODES_KNOW,
        spec.accelerator,
        devices.visible_variables(kind),
        spec.accelerator != "auto",
        "",
        spec.master_addr or ONLY_NODES_KNOW,
        spec.master_port or DEFAULT_PORT,
    )
    facts = NodeFacts("", sys.executable, os.getcwd(), 0, ONLY_NODES_KNOW, omp_threads_set=True)
    return sketch(spec, active, job, lambda name: facts.replace(hostname=name))
