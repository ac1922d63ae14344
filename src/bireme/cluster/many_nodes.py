"""A job on many nodes: what is known before connecting, and the crew that carries it."""

from __future__ import annotations

import os
import sys

from bireme import isolated
from bireme.agent import session
from bireme.backends import base
from bireme.cluster import node_selection
from bireme.cluster.agent_listener import AgentListener
from bireme.cluster.cluster_crew import ClusterCrew
from bireme.cluster.cluster_job import ClusterJob
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

ONLY_NODES_KNOW = "<the node says>"
"""Stands in a dry run for what is found out only after connecting."""


class EngineCommands(Value):
    """Command lines that are made when they are looked at. ``part``: those from one on, up to another."""

    number: int
    part: Callable[[int, int], tuple[tuple[str, ...], ...]]

    @classmethod
    def of(cls, commands: tuple[tuple[str, ...], ...]) -> EngineCommands:
        """Those that are there."""
        return cls(len(commands), lambda first, end: commands[first:end])


def run(
    spec: JobSpec,
    environ: Mapping[str, str],
    found: Found,
    *,
    checked: Callable[[Sequence[AgentHandle]], str] | None = None,
    epoch: Epoch | None = None,
) -> Outcome:
    """Start an agent on every node, and the ranks through them; return when nothing is left anywhere.

    Args:
        spec: the job.
        environ: the environment.
        found: the pool.
        checked, epoch: see `ClusterJob`.

    Raises:
        BadInputError: the job cannot be run as described; nothing was started.
    """
    entries, slots = node_selection.select(spec, found)
    backend = base.load(launcher_name(spec, found))
    hosts = _hosts(entries)
    dials = backend.CHANNEL == "dial"
    executable = base.find_program(backend, environ) if dials or not all(host.local for host in hosts) else ""
    log_dir = rankfiles.prepare(spec.log_dir, "--log_dir") if spec.log_dir is not None else None
    travelling = epoch.exports if epoch is not None and epoch.exports is not None else what_travels(spec, environ)

    only_here = all(host.local for host in hosts)
    dial = AgentListener(backend.TOKEN_VARIABLE, environ, only_here=only_here) if dials else None
    # The token comes first: MPICH 4.0's hydra does not see the last variable of its environment.
    engine_environ = {**(dial.environment() if dial is not None else {}), **environ}
    launch = _launch(spec, hosts, agent_words(dial), executable, epoch)
    cluster_job = ClusterJob(
        spec,
        launch.hosts,
        tuple(slots[entry.name] for entry in entries),
        lambda known: _active(spec, slots, known),
        travelling.variables,
        engine_environ,
        _commands(spec, backend)(launch, engine_environ),
        backend,
        spec.heartbeat,
        log_dir,
        checked,
        epoch,
    )
    options = session.SessionOptions.of(spec, _notes(cluster_job, found, travelling))
    if epoch is not None:  # the file is the job's
        return session.run(options, lambda crew_session: ClusterCrew(crew_session, cluster_job, dial, epoch.pid_file))
    with PidFile(os.getpid() if spec.save_pid else None) as pid_file:
        return session.run(options, lambda crew_session: ClusterCrew(crew_session, cluster_job, dial, pid_file))


def what_travels(spec: JobSpec, environ: Mapping[str, str]) -> Exports:
    """The variables that other nodes get.

    Raises:
        BadInputError: a file that names more of them cannot be read.
    """
    return exports(environ, spec.exports, os.path.expanduser("~"), os.getcwd())


def _launch(
    spec: JobSpec,
    hosts: tuple[base.HostLaunch, ...],
    agent: tuple[str, ...],
    executable: str,
    epoch: Epoch | None = None,
) -> LaunchPlan:
    """What an engine is asked for."""
    return base.LaunchPlan(
        hosts,
        agent,
        executable,
        spec.launcher_args,
        spec.ssh_port,
        root=os.geteuid() == 0,
        connect_timeout=epoch.connect_timeout if epoch is not None else base.CONNECT_TIMEOUT,
    )


def _notes(cluster_job: ClusterJob, found: Found, travelling: Exports) -> Iterator[tuple[str, str]]:
    """What is said before anything starts, each with its level."""
    spec, number = cluster_job.spec, len(cluster_job.hosts)
    names = ", ".join(sorted(travelling.variables)) or "none"
    yield "debug", f"{number} nodes of {found.source}, by {cluster_job.backend.NAME}; variables that travel: {names}"
    if not spec.hosts and spec.hostfile is None and cluster_job.epoch is None:
        yield "info", f"{number} node{'' if number == 1 else 's'}, from {found.source}"
    yield from travelling.notes()


def _active(spec: JobSpec, slots: Mapping[str, tuple[str, ...] | None], known: Pool) -> Pool:
    """What the filters leave of the nodes that have answered; where all slots are declared, they have spoken before."""
    if None not in slots.values():
        return known
    return (
        node_selection.resolve(node_selection.narrowed(spec, known), known, may_be_empty=True)
        if spec.elastic
        else node_selection.resolve(spec, known)
    )


def engine_commands(spec: JobSpec, environ: Mapping[str, str], found: Found) -> EngineCommands:
    """The command lines by which the nodes would be reached, for a dry run: nothing is listened on or looked up.

    Raises:
        BadInputError: as :func:`run`.
    """
    entries, _ = _of_the_first_epoch(spec, found)
    here = find_this_machine([entry.name for entry in entries])
    backend = base.load(launcher_name(spec, found))
    words: tuple[str, ...] = ("--channel",)
    if backend.CHANNEL == "dial":
        words = ("--dial", "<our addresses>", "<a free port>", backend.TOKEN_VARIABLE)
    agent = isolated.command("bireme.agent", *words)

    def part(first: int, end: int) -> tuple[tuple[str, ...], ...]:
        return _commands(spec, backend)(_launch(spec, _launches(entries[first:end], here), agent, ""), environ)

    if backend.CHANNEL == "stdio" or spec.elastic:
        return EngineCommands(len(entries), part)
    return EngineCommands.of(part(0, len(entries)))


def _of_the_first_epoch(spec: JobSpec, found: Found) -> tuple[tuple[HostEntry, ...], dict[str, tuple[str, ...] | None]]:
    """The nodes of an elastic job that are not spares, if all of them are there; of another job, all."""
    entries, slots = node_selection.select(spec, found)
    return entries[: spec.max_nodes] if spec.elastic else entries, slots


def _commands(spec: JobSpec, backend: Backend) -> Commands:
    """How the agents are started: one by one where nodes may come and go."""
    make = base.one_by_one(backend) if spec.elastic else backend.commands

    def checked(plan: LaunchPlan, environ: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
        commands = make(plan, environ)
        base.check_length(backend.NAME, commands, environ)
        return commands

    return checked


def launcher_name(spec: JobSpec, found: Found) -> str:
    """``auto`` decided: Slurm's own way inside its allocation, else ssh."""
    if spec.launcher != "auto":
        return spec.launcher
    return "slurm" if found.scheduler == "slurm" else "ssh"


def agent_words(dial: AgentListener | None) -> tuple[str, ...]:
    """The command that starts an agent over there: the same interpreter, by its path."""
    return isolated.command("bireme.agent", *(("--channel",) if dial is None else dial.arguments()))


def _hosts(entries: Sequence[HostEntry]) -> tuple[base.HostLaunch, ...]:
    return _launches(entries, find_this_machine([entry.name for entry in entries]))


def _launches(entries: Sequence[HostEntry], here: str | None) -> tuple[base.HostLaunch, ...]:
    return tuple(base.HostLaunch(entry.name, entry.user, entry.port, entry.name == here) for entry in entries)


def plan(spec: JobSpec, environ: Mapping[str, str], found: Found) -> Sketch:
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
        spec.master_port or 29500,
    )
    facts = NodeFacts("", sys.executable, os.getcwd(), 0, ONLY_NODES_KNOW, omp_threads_set=True)
    return sketch(spec, active, job, lambda name: facts.replace(hostname=name))
