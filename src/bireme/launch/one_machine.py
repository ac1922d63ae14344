"""Runs a job on this machine: finds its resources, plans, runs."""

from __future__ import annotations

import os

from bireme.agent import session
from bireme.agent.crew import LocalCrew
from bireme.agent.facts import node_facts, short_hostname
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
        declared: this machine as the pool declares it, with the slots that filters leave; ``None``: there is no pool.

    Raises:
        BadInputError: the job cannot run as described.
    """
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
        active, notes = slots_left(spec, found, HOST if declared is None else declared.name)
    (host,) = active
    spec = spec.on_node(short_hostname() if declared is None else host)
    lease, note = (lease_named_port(spec.master_port), "") if spec.master_port else lease_port()
    # A restart says only what may have changed.
    said = [("info", text) for text in (*(() if spec.attempt else notes), note) if text]
    try:
        check_address(spec.master_addr, said)
        is_declared = declared is not None and declared.slots is not None
        return prepare_node(spec, environ, active, host, found.accelerator, lease, said, declared=is_declared)
    except BaseException:
        lease.close()
        raise


def slots_left(spec: JobSpec, found: devices.Devices, name: str) -> tuple[Pool, tuple[str, ...]]:
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

    Raises:
        BadInputError: the job cannot run as described.
    """
    prepared = prepare(spec, environ, declared)
    prepared.release()
    return prepared.plan


def prepare_node(
    spec: JobSpec,
    environ: Mapping[str, str],
    active: Pool,
    host: str,
    accelerator: str,
    lease: PortLease | None,
    notes: list[tuple[str, str]],
    *,
    declared: bool,
) -> Prepared:
    """Make the plan of this machine, whose devices are known.

    Args:
        lease: the lock of the rendezvous port; ``None``: this node does not choose the port.
        notes: messages to show; further ones are added.
        declared: whether the slots were declared, not found here.

    Raises:
        BadInputError: the job cannot run as described.
    """
    _check_working_directory()
    interpreter, environ = activation.interpreter(spec, environ)
    environ = _with_exports(spec, environ, notes)
    job = JobFacts(
        job_id=os.urandom(6).hex(),
        accelerator=accelerator,
        visible_variables=devices.visible_variables(accelerator, declared=declared),
        explicit_accelerator=spec.accelerator != "auto",
        local_rank_flag=program.check(spec, environ, own_interpreter=activation.own_interpreter(spec)),
        master_addr=spec.master_addr or "127.0.0.1",
        master_port=lease.port if lease is not None else spec.master_port or DEFAULT_PORT,
    )
    ranks = len(active[host])
    node = node_facts(spec, environ, interpreter, ranks, job.job_id)
    plan = start_plan(spec, active, job, {host: node})
    threads = plan.nodes[0].env.get("OMP_NUM_THREADS")
    if threads and ranks > 1 and not node.bound and not spec.attempt:
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
    notes.extend(() if spec.attempt else found.notes())
    return {**environ, **found.chosen()}


def check_address(addr: str | None, notes: list[tuple[str, str]], *, first: bool = True, refuse: bool = True) -> None:
    """Check that the ranks of this machine can meet at an address that the user gave.

    Args:
        addr: the address, or a name.
        notes: where warnings are added.
        first: they meet on this machine.
        refuse: whether a name that cannot be resolved is an error. A pod may start before its name is known.
    """
    if addr is None:
        return
    from bireme.resources.locality import is_this_machine
    from bireme.resources.reach import look_up

    if is_this_machine(addr):
        return
    try:
        look_up(addr)
    except OSError:
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

    Raises:
        BadInputError: the job cannot run as described; nothing was started.
    """
    name = HOST if declared is None else declared.name
    return carry_out(spec, name, lambda: prepare(spec, environ, declared), os.getpid())


def carry_out(spec: JobSpec, name: str, prepare: Callable[[], Prepared], main_pid: int | None) -> Outcome:
    """Run this machine's part, and name it as the node at fault if it is unfit or its agent is lost.

    Args:
        name: this machine's name in the pool.
        main_pid: the pid in the name of the pid file, with ``save_pid``.
    """
    try:
        outcome = _run(spec, prepare(), main_pid)
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
                spec,
                notes,
                lambda running: LocalCrew(
                    running,
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
