"""What runs on many nodes, as one value: the job, its nodes, the launcher that starts their agents, what is sent."""

from __future__ import annotations

import os

from bireme.agent import sent_code
from bireme.backends import base, choice
from bireme.errors import BadInputError, counted
from bireme.logs import rankfiles
from bireme.planning.exports import exports
from bireme.resources.locality import find_this_machine
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

    from bireme.backends.base import Backend, HostLaunch
    from bireme.cluster.agent_listener import AgentListener
    from bireme.cluster.node_selection import Nodes
    from bireme.job import JobSpec
    from bireme.planning.exports import Exports
    from bireme.resources.hostfile import HostEntry
    from bireme.resources.pool import Pool
    from bireme.ship.source import SourceTree


class ClusterJob(Value):
    """A job on many nodes, or what nodes are asked by a preflight.

    Attributes:
        one_by_one: whether each node has a launcher process of its own.
        listener: where agents connect; ``None``: over stdin and stdout of their launcher processes.
        allocation: our name for the allocation that the launcher makes; "": it makes none.
        accelerator: the kind of device that every node must have; "": any.
    """

    spec: JobSpec
    nodes: Nodes
    backend: Backend
    hosts: tuple[HostLaunch, ...]
    commands: tuple[tuple[str, ...], ...]
    environ: Mapping[str, str]
    one_by_one: bool
    listener: AgentListener | None
    allocation: str
    exports: Mapping[str, str]
    accelerator: str = ""
    log_dir: str | None = None
    tree: SourceTree | None = None

    def notes(self, exported: Exports) -> Iterator[tuple[str, str]]:
        """The messages to show before anything starts, each with its level."""
        spec, pool, number = self.spec, self.nodes.pool, len(self.nodes.entries)
        names = ", ".join(sorted(exported.variables)) or "none"
        yield "debug", f"{number} nodes of {pool.source}, by {self.backend.NAME}; exported variables: {names}"
        if spec.attempt:
            return  # the first attempt has said it
        if not spec.hosts and spec.hostfile is None and not spec.elastic:
            yield "info", f"{counted(number, 'node')}, from {pool.source}{pool.by_tasks()}"
        yield from exported.notes()
        if self.tree is not None:
            yield from (("warning", note) for note in self.tree.notes)

    @staticmethod
    def find_tree(spec: JobSpec, environ: Mapping[str, str]) -> SourceTree | None:
        """The files to send to the nodes; ``None``: the nodes have them."""
        if spec.ship is None:
            return None
        from bireme.ship import source

        return source.find(spec, environ)

    def active(self, known: Pool) -> Pool:
        """The active resources, once the slots of the nodes are known."""
        return self.nodes.active(self.spec, known)


_PATIENCE = 6
"""Heartbeats for which an agent waits for its code, and then for the job: the runner may be busy with many nodes."""


class LauncherCommands(Value):
    """The launcher's command lines, made on demand."""

    number: int
    part: Callable[[int, int], tuple[tuple[str, ...], ...]]

    @classmethod
    def of(cls, commands: tuple[tuple[str, ...], ...]) -> LauncherCommands:
        """Wrap command lines that were made already."""
        return cls(len(commands), lambda first, end: commands[first:end])


def what_travels(spec: JobSpec, environ: Mapping[str, str]) -> Exports:
    """The variables to export to other nodes."""
    home, cwd = os.path.expanduser("~"), os.getcwd()
    return exports(environ, spec.exports, home, cwd, same_files=not spec.in_containers)


def prepare(
    spec: JobSpec,
    environ: Mapping[str, str],
    nodes: Nodes,
    launcher: str,
    exported: Exports,
    *,
    accelerator: str = "",
    tree: SourceTree | None = None,
    log_dir: str | None = None,
    connect_timeout: int = base.CONNECT_TIMEOUT,
) -> ClusterJob:
    """Find the launcher, open a port for the agents where they connect to us, and make the command lines."""
    tree = tree or ClusterJob.find_tree(spec, environ)
    backend = _backend(spec, launcher)
    hosts = _launches(nodes.entries, _here(spec, nodes))
    connects = backend.CHANNEL == "dial"
    only_here = all(host.local for host in hosts)
    executable = backend.find_program(environ, spec.launcher_args) if connects or not only_here else ""
    listener = None
    if connects:
        from bireme.cluster.agent_listener import AgentListener  # with hmac and TLS, which ssh does not need

        listener = AgentListener(backend.TOKEN_VARIABLE, environ, only_here=only_here)
    # The token goes first: hydra of MPICH 4.0 ignores the last variable of its environment.
    launcher_environ = {**(listener.environment() if listener is not None else {}), **environ}
    agent = _agent(spec, backend, listener.arguments() if listener is not None else ())
    allocation = new_allocation(backend, environ, spec.job_name)
    plan = launch_plan(spec, hosts, agent, allocation, program=executable, connect_timeout=connect_timeout)
    return ClusterJob(
        spec=spec,
        nodes=nodes,
        backend=backend,
        hosts=hosts,
        commands=_commands(spec, backend, plan, launcher_environ),
        environ=launcher_environ,
        one_by_one=_is_one_by_one(spec, backend),
        listener=listener,
        allocation=allocation,
        exports=exported.variables,
        accelerator=accelerator,
        log_dir=None if log_dir is None else rankfiles.prepare(log_dir, "--log_dir"),
        tree=tree,
    )


def new_allocation(backend: Backend, environ: Mapping[str, str], job_name: str, *, dry: bool = False) -> str:
    """A name for the allocation that the launcher makes, or what is shown for it; "" if it makes none, being in one."""
    if not backend.CANCEL_NAMED or "SLURM_JOB_ID" in environ:
        return ""
    return f"{job_name or 'bireme'}-{'<a new number>' if dry else os.urandom(6).hex()}"


def dry_commands(spec: JobSpec, environ: Mapping[str, str], nodes: Nodes, launcher: str) -> LauncherCommands:
    """The launcher's command lines, for a dry run: opens no port and does not look up the launcher."""
    here = _here(spec, nodes)
    backend = _backend(spec, launcher)
    connects = backend.CHANNEL == "dial"
    place = ("<our addresses>", "<a free port>", backend.TOKEN_VARIABLE) if connects else ()
    agent = _agent(spec, backend, place, short=True)
    allocation = new_allocation(backend, environ, spec.job_name, dry=True)

    def part(first: int, end: int) -> tuple[tuple[str, ...], ...]:
        plan = launch_plan(spec, _launches(nodes.entries[first:end], here), agent, allocation)
        return _commands(spec, backend, plan, environ)

    number = len(nodes.entries)
    return LauncherCommands(number, part) if _is_one_by_one(spec, backend) else LauncherCommands.of(part(0, number))


def _agent(spec: JobSpec, backend: Backend, place: tuple[str, ...], *, short: bool = False) -> tuple[str, ...]:
    """The agent's command line; ``place``: where it finds the runner, if it connects to it."""
    kind: sent_code.Kind = "dial" if backend.CHANNEL == "dial" else "channel"
    patience = _PATIENCE * spec.heartbeat
    python = sent_code.python_words(spec, short=short)
    return sent_code.command(kind, *place, python=python, short=short, patience=patience)


def _is_one_by_one(spec: JobSpec, backend: Backend) -> bool:
    """In an elastic job, each node has a launcher process of its own, so that it can leave alone."""
    return backend.CHANNEL == "stdio" or spec.elastic


def launch_plan(
    spec: JobSpec, hosts: tuple[HostLaunch, ...], agent: tuple[str, ...], allocation: str, **more: Any
) -> base.LaunchPlan:
    """What a backend makes command lines of, as far as the job says it."""
    return base.LaunchPlan(
        hosts=hosts,
        agent=agent,
        extra=spec.launcher_args,
        ssh_port=spec.ssh_port,
        root=os.geteuid() == 0,
        job_name=spec.job_name,
        allocation=allocation,
        **more,
    )


def _commands(
    spec: JobSpec, backend: Backend, plan: base.LaunchPlan, environ: Mapping[str, str]
) -> tuple[tuple[str, ...], ...]:
    commands = (backend.one_by_one if spec.elastic else backend.commands)(plan, environ)
    base.check_length(backend.NAME, commands, environ)
    return commands


def _backend(spec: JobSpec, launcher: str) -> Backend:
    backend = choice.load(launcher)
    if not backend.TEMPLATE and any("{host}" in word for word in spec.launcher_args):
        hint = "add --launcher exec, for a command that reaches a host"
        raise BadInputError(f"{launcher} does not replace {{host}}", hint=hint, where="--launcher_args")
    return backend


def _here(spec: JobSpec, nodes: Nodes) -> str | None:
    """The node that is this machine; ``None``: none, or nobody can tell by its name."""
    return None if spec.has_own_names else find_this_machine(nodes.names)


def _launches(entries: Sequence[HostEntry], here: str | None) -> tuple[HostLaunch, ...]:
    return tuple(
        base.HostLaunch(name=entry.name, user=entry.user, port=entry.port, local=entry.name == here, tasks=entry.tasks)
        for entry in entries
    )
