"""Decides where a job runs before anything is started: on this machine, by hand, through agents, or as native ranks.

:func:`resolve` decides it once. :func:`launch` runs the job there, :func:`preview` plans it.
"""

from __future__ import annotations

import os

from bireme.errors import BadInputError
from bireme.logs.console import open_closed_streams
from bireme.options import conflicts
from bireme.planning.environment import TEMPLATES
from bireme.planning.start import Sketch
from bireme.resources import program
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeAlias

    from bireme.cluster.cluster_job import LauncherCommands
    from bireme.cluster.node_selection import DeclaredPool, Nodes
    from bireme.cluster.standby import Standby
    from bireme.job import JobSpec
    from bireme.process.keeper import Keeper
    from bireme.resources.pool import Pool
    from bireme.result.outcome import Outcome
    from bireme.ship.source import SourceTree

    Placement: TypeAlias = "ThisMachine | ByHand | Agents | NativeRanks | Epochs"

_DEFAULT_HOSTFILE = "/job/hostfile"
_SCHEDULERS = ("SLURM_JOB_ID", "PBS_NODEFILE", "LSB_DJOB_HOSTFILE", "LSB_MCPU_HOSTS")


class _Place(Value):
    """Where a job runs."""

    @property
    def restarts_itself(self) -> bool:
        """Whether the job is restarted there, and not as a whole."""
        return False


class ThisMachine(_Place):
    """The job runs on this machine, without agents. ``nodes``: this machine in the pool; ``None``: there is no pool."""

    nodes: Nodes | None = None


class ByHand(_Place):
    """Only this node's part of the job runs: the command is typed on each node (``--no_ssh``, or as for torchrun)."""

    spec: JobSpec
    world: Pool
    node_rank: int

    @property
    def restarts_itself(self) -> bool:
        """PyTorch's agent restarts the ranks that it starts."""
        return self.spec.elastic


class Agents(_Place):
    """The job runs on these nodes, through agents that the launcher starts."""

    nodes: Nodes
    launcher: str


class NativeRanks(_Place):
    """The job runs on these nodes, where the launcher starts every rank itself (``--native_ranks``)."""

    nodes: Nodes
    launcher: str


class Epochs(_Place):
    """Each epoch of the job runs on the nodes available then (elastic training); `bireme.elastic` finds them."""

    @property
    def restarts_itself(self) -> bool:
        """An epoch follows another."""
        return True


def resolve(spec: JobSpec, environ: Mapping[str, str]) -> Placement:
    """Decide where a job runs. Starts nothing, and asks no node."""
    if spec.rendezvous and _is_typed_on_each_node(spec, environ):
        from bireme.launching import by_hand

        place: Placement = ByHand(*by_hand.as_for_torchrun(spec, environ))
    elif spec.elastic and not spec.by_hand:
        place = Epochs()
    else:
        place = _on_nodes(spec, environ)
    if spec.fetch:
        _check_fetch(spec.fetch, place)
    return place


def _check_fetch(values: tuple[str, ...], place: Placement) -> None:
    """Refuse values of ``--fetch`` that are invalid, or that nobody carries out."""
    from bireme.ship import fetch_sender

    wanted = tuple(map(fetch_sender.parse, values))
    if isinstance(place, ByHand):
        what = "no agent brings the files, as each node runs its own command"
        raise BadInputError(what, hint="copy the files from the nodes yourself", where=fetch_sender.WHERE)
    for each in wanted if isinstance(place, ThisMachine) else ():
        if each.folder:
            what = f"the ranks run on this machine, and write {each.pattern!r} here already"
            hint = f"leave out ':{each.folder}', or add --force_multi to get copies"
            raise BadInputError(what, hint=hint, where=fetch_sender.WHERE)


def _is_typed_on_each_node(spec: JobSpec, environ: Mapping[str, str]) -> bool:
    """Whether a command with torchrun's options starts only its own node's part of the job.

    It starts the whole job if there is a pool and the command has no node number. The exception is a command that
    ``srun`` or the like has started several times, as in ``srun torchrun --nnodes 2 --rdzv_endpoint A:P``.
    """
    from bireme.resources.own_task import find_task

    if spec.rendezvous == "static" or find_task(environ).tasks > 1:
        return True
    return _declared_pool(spec.replace(num_nodes=None), environ) is None


def _on_nodes(spec: JobSpec, environ: Mapping[str, str]) -> ThisMachine | ByHand | Agents | NativeRanks:
    """Where a job, or an epoch of it, runs on the nodes of the pool."""
    pool = _declared_pool(spec, environ)
    conflicts.refuse_node_rank(spec, 1 if pool is None else len(pool.entries))
    if pool is None:
        return ThisMachine()
    from bireme.backends import choice
    from bireme.cluster import node_selection

    nodes = node_selection.select(spec, pool)
    if spec.by_hand:
        world = nodes.world(spec)
        assert spec.node_rank is not None
        run_id = spec.run_id or (environ.get("ELASTIC_RUN_ID", "bireme") if spec.elastic else "")
        addressed = spec.replace(master_addr=spec.master_addr or nodes.names[0], run_id=run_id)
        return ByHand(addressed, world, spec.node_rank)
    launcher = choice.choose(spec, pool.scheduler)
    if spec.native_ranks:
        return NativeRanks(nodes, launcher)
    return ThisMachine(nodes) if _is_only_here(spec, nodes) else Agents(nodes, launcher)


def _declared_pool(spec: JobSpec, environ: Mapping[str, str]) -> DeclaredPool | None:
    """The declared pool; ``None``: there is none. Modules that read a pool are imported only if one is declared."""
    declared = spec.hosts or spec.hostfile is not None or os.path.exists(_DEFAULT_HOSTFILE)
    pool = None
    if declared or any(name in environ for name in _SCHEDULERS):
        from bireme.cluster import node_selection

        pool = node_selection.find(spec, environ)
    if pool is None:
        conflicts.refuse_without_pool(spec)
    return pool


def _is_only_here(spec: JobSpec, nodes: Nodes) -> bool:
    """Whether this machine is the only node left, so that it needs no agent."""
    from bireme.resources.locality import is_this_machine

    if spec.force_multi or spec.has_own_names or len(nodes.entries) != 1:
        return False
    return is_this_machine(nodes.entries[0].name)


def launch(
    spec: JobSpec,
    environ: Mapping[str, str] | None = None,
    on_restart: Callable[[Outcome, JobSpec], object] = lambda *_: None,
    on_change: Callable[[Outcome, str], object] = lambda *_: None,
) -> Outcome:
    """Run a job where it belongs, and wait for its end; Ctrl+C is an outcome. For the arguments see `bireme.run`."""
    opened = open_closed_streams()
    try:
        spec, environ = program.recognized(spec), _inherited() if environ is None else environ
        spec = _as_queued(spec, environ)
        place = resolve(spec, environ)
        if spec.events:
            from bireme.runner import event_log

            event_log.prepare(spec.events, anew=not spec.attempt)
        if spec.preload and isinstance(place, ThisMachine) and TEMPLATES not in environ:
            environ = _beside_templates(spec, environ)
        elif spec.keep and not isinstance(place, ThisMachine):
            raise BadInputError("templates are kept on this machine only", hint="leave it out", where="--keep")
        if not spec.restarts or place.restarts_itself:
            return _run(spec, environ, place, on_change=on_change)
        from bireme.launching import restarts

        attempts = _Attempts(spec, environ, place)
        try:
            return restarts.run(spec, attempts.run, on_restart)
        finally:
            attempts.close()
    finally:
        for fd in opened:
            os.close(fd)


def _as_queued(spec: JobSpec, environ: Mapping[str, str]) -> JobSpec:
    """With what Slurm tells a job about its preemptions."""
    if spec.requeue and not environ.get("SLURM_JOB_ID"):
        raise BadInputError("there is no job of Slurm to queue again", hint="leave it out", where="--requeue")
    count, announced = environ.get("SLURM_RESTART_COUNT", ""), environ.get("SBATCH_SIGNAL", "").rpartition(":")[2]
    if count.isdecimal():
        spec = spec.replace(requeues=int(count))
    if announced and spec.checkpoint_signal and not spec.preempt_signal:
        spec = spec.replace(preempt_signal=announced)
        conflicts.refuse_signals("", announced)
    return spec


def _beside_templates(spec: JobSpec, environ: Mapping[str, str]) -> Mapping[str, str]:
    """The environment with the keeper that waits for such jobs (``--keep``), if there is one."""
    from bireme.process import keeper

    try:
        name = keeper.lasting(start=spec.keep)
    except OSError:  # no such sockets, no process: the job has templates of its own
        return environ
    return {**environ, TEMPLATES: name} if name else environ


class _Attempts:
    """The attempts of a job: the first where it was placed, all in one copy of the tree, with the same templates."""

    def __init__(self, first: JobSpec, environ: Mapping[str, str], place: Placement) -> None:
        self._first, self._environ, self._place = first, environ, place
        self._tree: SourceTree | None = None
        self._keeper: Keeper | None = None
        self._standby: Standby | None = None
        if isinstance(place, Agents):
            from bireme.cluster.cluster_job import ClusterJob

            self._tree = ClusterJob.find_tree(first, environ)
        if first.preload and isinstance(place, ThisMachine) and TEMPLATES not in environ:
            from bireme.process.keeper import Keeper

            if (keeper := Keeper.started()) is not None:
                self._keeper, self._environ = keeper, {**environ, TEMPLATES: keeper.name}
        elif first.preload and isinstance(place, Agents):
            from bireme.cluster.standby import Standby

            self._standby = Standby()

    def run(self, spec: JobSpec, is_last: Callable[[Outcome], bool]) -> Outcome:
        """Run an attempt."""
        there = self._place if spec is self._first else resolve(spec, self._environ)
        tree = self._tree if spec is self._first or self._tree is None else self._tree.replace(notes=())  # said once
        return _run(spec, self._environ, there, tree, is_last, standby=self._standby)

    def close(self) -> None:
        """End what has waited for another attempt."""
        for each in (self._keeper, self._standby):
            if each is not None:
                each.close()


def _inherited() -> Mapping[str, str]:
    """The environment that this process was started with.

    In the C locale, Python sets ``LC_CTYPE`` in ``os.environ`` (:pep:`538`); ranks must not inherit that.
    """
    if os.environ.get("LC_CTYPE") not in ("C.UTF-8", "C.utf8", "UTF-8"):
        return os.environ
    try:
        with open("/proc/self/environ", "rb") as file:
            ours = any(entry.startswith(b"LC_CTYPE=") for entry in file.read().split(b"\0"))
    except OSError:
        return os.environ
    return os.environ if ours else {name: value for name, value in os.environ.items() if name != "LC_CTYPE"}


def _run(
    spec: JobSpec,
    environ: Mapping[str, str],
    place: Placement,
    tree: SourceTree | None = None,
    is_last: Callable[[Outcome], bool] = lambda _: True,
    on_change: Callable[[Outcome, str], object] = lambda *_: None,
    standby: Standby | None = None,
) -> Outcome:
    if isinstance(place, ThisMachine):
        from bireme.launching import one_machine

        return one_machine.run(spec, environ, place.nodes)
    if isinstance(place, ByHand):
        from bireme.launching import by_hand

        return by_hand.run(place.spec, environ, place.world, place.node_rank, os.getpid())
    if isinstance(place, NativeRanks):
        from bireme.launching import native

        return native.run(spec, environ, place.nodes, place.launcher)
    if isinstance(place, Agents):
        from bireme.launching import many_nodes

        return many_nodes.run(spec, environ, place.nodes, place.launcher, tree=tree, is_last=is_last, standby=standby)
    from bireme.launching import elastic

    return elastic.run(spec, environ, on_change)


def preview(spec: JobSpec, environ: Mapping[str, str] | None = None) -> tuple[Sketch, LauncherCommands | None]:
    """What a job would start, as far as it is known before the nodes have been asked.

    Returns:
        The plan (that of the first epoch if the job is elastic), and the launcher's command lines; ``None``: no
        launcher is used.
    """
    spec, environ = program.recognized(spec), _inherited() if environ is None else environ
    place = resolve(spec, environ)
    if isinstance(place, Epochs):  # the given address is used only while it is the first node's
        run_id = spec.run_id or "<made at the start>"
        spec = spec.replace(master_addr=None, num_nodes=None, run_id=run_id)
        place = _on_nodes(spec, environ)
    if isinstance(place, ThisMachine):
        from bireme.launching import one_machine

        return Sketch.of(one_machine.preview(spec, environ, place.nodes)), None
    if isinstance(place, ByHand):
        from bireme.launching import by_hand

        return Sketch.of(by_hand.preview(place.spec, environ, place.world, place.node_rank)), None
    if isinstance(place, NativeRanks):
        from bireme.launching import native

        return native.preview(spec, environ, place.nodes, place.launcher)
    from bireme.launching import many_nodes

    return many_nodes.preview(spec, environ, place.nodes, place.launcher)
