"""Runs a job on this machine, or one node's part of a job started by hand: finds its resources, plans, runs."""

from __future__ import annotations

import os

from bireme.agent import session
from bireme.agent.crew import LocalCrew
from bireme.agent.facts import node_facts
from bireme.errors import BadInputError, UnfitError
from bireme.job import DEFAULT_PORT
from bireme.logs import rankfiles
from bireme.planning.start import StartPlan, start_plan
from bireme.planning.start_facts import JobFacts
from bireme.planning.trust import may_find_env_file
from bireme.process import activation
from bireme.process.pid_file import PidFile
from bireme.resources import devices, extension_locks, program
from bireme.resources.rendezvous_port import lease_named_port, lease_port
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bireme.job import JobSpec
    from bireme.resources.pool import Pool
    from bireme.resources.rendezvous_port import PortLease
    from bireme.result.outcome import Outcome

HOST = "localhost"
"""The name of this machine in the pool, as users of DeepSpeed write it in filters."""


class Declared(Value):
    """This machine as declared in a pool.

    Attributes:
        name: its name there.
        slots: its slots; ``None``: all that it has.
        tasks: the number of its slots if it shows no device (see `HostEntry`).
        note: what to tell the user about the slots; "": nothing.
    """

    name: str
    slots: tuple[str, ...] | None
    tasks: int = 0
    note: str = ""


class Prepared(Value):
    """All that is decided before the first process is started.

    Attributes:
        plan: the start plan.
        environ: what the ranks inherit.
        lease: the lock of the rendezvous port, to be held until the job ends; ``None``: another node chose the port.
        notes: (level, text) of messages to show.
    """

    plan: StartPlan
    environ: Mapping[str, str]
    lease: PortLease | None
    notes: tuple[tuple[str, str], ...]

    def release(self) -> None:
        """Release the port."""
        if self.lease is not None:
            self.lease.close()


def prepare(spec: JobSpec, environ: Mapping[str, str], declared: Declared | None = None) -> Prepared:
    """Find the resources of this machine and make the plan. Starts and writes nothing.

    Args:
        spec: the job.
        environ: the environment.
        declared: this machine as the pool declares it, with the slots that filters leave; ``None``: there is no pool.

    Raises:
        BadInputError: the job cannot run as described.
    """
    _check_working_directory()
    found = devices.discover(spec.accelerator, environ)
    filtered = bool(spec.include or spec.exclude)
    notes: tuple[str, ...] = ()
    if declared is not None and declared.tasks and not filtered and spec.num_gpus is None:
        from bireme.resources.allocation import slots_by_tasks

        declared = declared.replace(slots=slots_by_tasks(declared.tasks, found.accelerator, environ))
    if declared is not None and declared.slots is not None:
        notes = (declared.note,)
        active = {declared.name: devices.remote_slots(found, declared.slots)}
    else:
        active, notes = _slots_left(spec, found, HOST if declared is None else declared.name)
    (host,) = active
    lease, note = (lease_named_port(spec.master_port), "") if spec.master_port else lease_port()
    said = [("info", text) for text in (*notes, note) if text]
    try:
        _check_address(spec.master_addr, said)
        is_declared = declared is not None and declared.slots is not None
        return _prepare_node(
            spec, environ, active, host, found.accelerator, lease.port, lease, said, declared=is_declared
        )
    except BaseException:
        lease.close()
        raise


def own_slots(spec: JobSpec, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The slots of this machine that a job may use.

    Raises:
        BadInputError: a filter or ``--num_gpus`` asks for slots that this machine does not have.
    """
    active, _ = _slots_left(spec, devices.discover(spec.accelerator, environ), HOST)
    return active[HOST]


def _slots_left(spec: JobSpec, found: devices.Devices, name: str) -> tuple[Pool, tuple[str, ...]]:
    """The slots that filters and ``--num_gpus`` leave of this machine, and messages; ``name``: its name in the pool."""
    slots, notes = devices.local_slots(found, num_gpus=spec.num_gpus, filtered=bool(spec.include or spec.exclude))
    if slots and not spec.include and not spec.exclude:
        return {name: slots}, notes
    from bireme.resources import filters

    active = filters.apply_filters(
        {name: slots},
        spec.include,
        spec.exclude,
        aliases=filters.local_aliases(name),
        slot_aliases=devices.slot_aliases(found),
    )
    return active, notes


def plan(spec: JobSpec, environ: Mapping[str, str], declared: Declared | None = None) -> StartPlan:
    """The plan of a job on this machine. Its port is not leased.

    Args:
        spec: the job.
        environ: the environment.
        declared: this machine as the pool declares it; ``None``: there is no pool.

    Raises:
        BadInputError: the job cannot run as described.
    """
    prepared = prepare(spec, environ, declared)
    prepared.release()
    return prepared.plan


def prepare_by_hand(spec: JobSpec, environ: Mapping[str, str], world: Pool, node_rank: int) -> Prepared:
    """Make the plan of one node of a job whose nodes and slots are given, as for DeepSpeed's per-node launcher.

    Args:
        spec: the job.
        environ: the environment.
        world: the slots of every node.
        node_rank: the number of this node, from 0.

    Raises:
        BadInputError: the job cannot run as described, or there is no node of that number.
    """
    if not 0 <= node_rank < len(world):
        raise BadInputError(
            f"no such node: {node_rank} (the job has {len(world)})",
            hint=f"expected 0 to {len(world) - 1}",
            where="--node_rank",
        )
    _check_working_directory()
    accelerator = devices.discover(spec.accelerator, environ).accelerator
    host = list(world)[node_rank]
    port = spec.master_port or DEFAULT_PORT
    notes: list[tuple[str, str]] = []
    if spec.by_hand:
        _check_address(spec.master_addr, notes, first=node_rank == 0 and spec.rendezvous != "c10d", refuse=False)
    return _prepare_node(spec, environ, world, host, accelerator, port, None, notes, declared=not spec.rendezvous)


def _prepare_node(
    spec: JobSpec,
    environ: Mapping[str, str],
    active: Pool,
    host: str,
    accelerator: str,
    port: int,
    lease: PortLease | None,
    notes: list[tuple[str, str]],
    *,
    declared: bool,
) -> Prepared:
    interpreter, environ = activation.interpreter(spec, environ)
    environ = _with_exports(spec, environ, notes)
    job = JobFacts(
        job_id=os.urandom(6).hex(),
        accelerator=accelerator,
        visible_variables=devices.visible_variables(accelerator, declared=declared),
        explicit_accelerator=spec.accelerator != "auto",
        local_rank_flag=program.check(spec, environ, own_interpreter=activation.own_interpreter(spec)),
        master_addr=spec.master_addr or "127.0.0.1",
        master_port=port,
    )
    ranks = len(active[host])
    node = node_facts(spec, environ, interpreter, ranks, job.job_id)
    plan = start_plan(spec, active, job, {host: node})
    threads = plan.nodes[0].env.get("OMP_NUM_THREADS")
    if threads and ranks > 1 and not node.bound:
        notes.append(("info", f"OMP_NUM_THREADS={threads} for each rank: {node.cores} cores for {ranks} ranks"))
    notes += (("warning", text) for text in extension_locks.warnings(environ))
    return Prepared(plan, environ, lease, tuple(notes))


def _with_exports(spec: JobSpec, environ: Mapping[str, str], notes: list[tuple[str, str]]) -> Mapping[str, str]:
    """The environment with the variables of ``--export`` and of environment files, as on many nodes; adds notes."""
    home = os.path.expanduser("~")
    if not spec.exports and not may_find_env_file(environ, home, os.getcwd()):
        return environ
    from bireme.planning.exports import exports

    found = exports(environ, spec.exports, home, os.getcwd())
    notes.extend(found.notes())
    return {**environ, **found.chosen()}


def _check_address(addr: str | None, notes: list[tuple[str, str]], *, first: bool = True, refuse: bool = True) -> None:
    """Check that the ranks of this machine can meet at an address that the user gave.

    Args:
        addr: the address, or a name.
        notes: where warnings are added.
        first: they meet on this machine.
        refuse: whether a name that cannot be resolved is an error. A pod may start before its name is known.
    """
    if addr is None:
        return
    import _socket

    from bireme.resources.locality import is_this_machine

    if is_this_machine(addr):
        return
    try:
        _socket.getaddrinfo(addr, None)
    except (OSError, UnicodeError):
        if refuse:
            hint = "leave the option out: on one machine the ranks meet at 127.0.0.1"
            raise BadInputError(f"no such address: {addr!r}", hint=hint, where="--master_addr") from None
        notes.append(("warning", f"--master_addr: no such address: {addr!r}"))
        return
    if first:
        notes.append(("warning", f"--master_addr: {addr} is not an address of this machine"))


def _check_working_directory() -> None:
    try:
        os.getcwd()
    except OSError:
        raise BadInputError("the working directory no longer exists", hint="change to one that exists") from None


def run(spec: JobSpec, environ: Mapping[str, str], declared: Declared | None = None) -> Outcome:
    """Run the job on this machine and wait for its end.

    Args:
        spec: the job.
        environ: the environment.
        declared: this machine as the pool declares it; ``None``: there is no pool.

    Raises:
        BadInputError: the job cannot run as described; nothing was started.
    """
    name = HOST if declared is None else declared.name
    return _at_fault(name, lambda: _run(spec, prepare(spec, environ, declared), os.getpid()))


def prepare_node(spec: JobSpec, environ: Mapping[str, str], world: Pool, node_rank: int) -> Prepared:
    """Make the plan of one node, as :func:`prepare_by_hand` does.

    The plan of an elastic job starts PyTorch's agent, which starts the ranks.

    Args:
        spec: the job.
        environ: the environment.
        world: the slots of every node.
        node_rank: the number of this node, from 0.

    Raises:
        BadInputError: the job cannot run as described, or its Python does not have PyTorch, which it needs.
    """
    if not spec.elastic:
        return prepare_by_hand(spec, environ, world, node_rank)
    from bireme.launch.with_torch import interpreter_with_torch
    from bireme.planning.torchrun import by_torchrun

    interpreter = interpreter_with_torch(spec, environ)
    prepared = prepare_by_hand(spec, environ, world, node_rank)
    return prepared.replace(plan=by_torchrun(prepared.plan, spec, interpreter, len(world)))


def run_by_hand(
    spec: JobSpec, environ: Mapping[str, str], world: Pool, node_rank: int, main_pid: int | None
) -> Outcome:
    """Run one node's part of a job and wait for its end.

    Args:
        spec: the job.
        environ: the environment.
        world: the slots of every node.
        node_rank: the number of this node, from 0.
        main_pid: the pid in the name of the pid file, with ``save_pid``.

    Raises:
        BadInputError: the job cannot run as described; nothing was started.
    """
    prepared = prepare_node(spec, environ, world, node_rank)
    return _at_fault(list(world)[node_rank], lambda: _run(spec, prepared, main_pid))


def _at_fault(name: str, carry_out: Callable[[], Outcome]) -> Outcome:
    """Run, and name this machine as the node at fault if it is unfit or its agent is lost."""
    try:
        outcome = carry_out()
    except UnfitError as error:
        error.hosts = (name,)
        raise
    return outcome.replace(hosts=(name,)) if outcome.cause in ("agent lost", "unfit") else outcome


def _run(spec: JobSpec, prepared: Prepared, main_pid: int | None) -> Outcome:
    notes = list(prepared.notes)
    try:
        log_dir = None
        if spec.rank_log_dir is not None:
            log_dir = rankfiles.prepare(spec.rank_log_dir)
        elif spec.log_dir is not None:
            log_dir = rankfiles.prepare(spec.log_dir, "--log_dir")
        with PidFile(main_pid if spec.save_pid else None) as pid_file:
            if pid_file.path is not None:
                notes.append(("info", f"pid {os.getpid()} is in {pid_file.path}"))
            return session.run(
                session.SessionOptions.of(spec, notes),
                lambda session: LocalCrew(
                    session,
                    prepared.plan,
                    prepared.plan.nodes[0],
                    prepared.environ,
                    grace=spec.grace,
                    log_dir=log_dir,
                    keep=prepared.lease.fds if prepared.lease is not None else (),
                    at_start=pid_file.create,
                    at_loss=pid_file.remove,
                ),
            )
    finally:
        prepared.release()
