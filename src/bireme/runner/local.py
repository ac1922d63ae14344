"""A job on this machine: look at the world once, plan, run."""

from __future__ import annotations

import os

from bireme.agent import session
from bireme.logs import rankfiles
from bireme.plan.start import JobFacts, NodeFacts, StartPlan, start_plan
from bireme.resources import cores, devices, filters, ports
from bireme.runner import pidfile, program
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from bireme.job import JobSpec
    from bireme.resources.pool import Pool
    from bireme.supervise.outcome import Outcome

HOST = "localhost"
"""The name of this machine in the pool, as users of the reference write it in filters."""


class Prepared(Value):
    """All that is known before the first process: the plan, and what came up while making it.

    ``lease`` is the rendezvous port's lock; whoever holds it may not let go before the job's end.
    """

    plan: StartPlan
    environ: Mapping[str, str]
    lease: ports.PortLease
    notes: tuple[tuple[str, str], ...]


def prepare(spec: JobSpec, environ: Mapping[str, str]) -> Prepared:
    """Find out what there is and make the plan. Starts nothing, writes nothing.

    Raises:
        BadInputError: whatever is wrong with the job, before anything has happened.
    """
    interpreter, environ = program.interpreter(spec, environ)
    local_rank_flag = program.check(spec, own_interpreter=spec.venv_script is None)
    found, pool, notes = _slots(spec, environ)
    active = filters.apply_filters(
        pool, spec.include, spec.exclude, aliases=filters.local_aliases(HOST), slot_aliases=devices.slot_aliases(found)
    )
    ranks = len(active[HOST])
    node = _node_facts(spec, environ, interpreter, ranks)
    lease, port_note = _port(spec)
    if port_note:
        notes.append(("info", port_note))
    job = JobFacts(
        os.urandom(6).hex(),
        found.accelerator,
        devices.visible_variables(found.accelerator),
        spec.accelerator != "auto",
        local_rank_flag,
        spec.master_addr or "127.0.0.1",
        lease.port,
    )
    node = node.replace(error_dir=os.path.join(_temporary(environ), f"bireme-{job.job_id}"))
    plan = start_plan(spec, active, job, {HOST: node})
    threads = plan.nodes[0].env.get("OMP_NUM_THREADS")
    if threads and ranks > 1 and not node.bound:
        notes.append(("info", f"OMP_NUM_THREADS={threads} for each rank: {node.cores} cores for {ranks} ranks"))
    return Prepared(plan, environ, lease, tuple(notes))


def run(spec: JobSpec, environ: Mapping[str, str] | None = None) -> Outcome:
    """Run the job on this machine and wait for its end.

    Raises:
        BadInputError: see :func:`prepare`.
    """
    log_dir = rankfiles.prepare(spec.rank_log_dir) if spec.rank_log_dir is not None else None
    prepared = prepare(spec, os.environ if environ is None else environ)
    notes = list(prepared.notes)
    pid_file = None
    try:
        if spec.save_pid:
            pid_file = pidfile.create(os.getpid())
            notes.append(("info", f"launcher pid: {os.getpid()} (in {pid_file})"))
        lock = prepared.lease.fileno()
        options = session.Options(
            grace=spec.grace,
            output=spec.output,
            timestamps=spec.timestamps,
            log_level=spec.log_level,
            log_dir=log_dir,
            pid_file=pid_file,
            keep=(lock,) if lock >= 0 else (),
            notes=tuple(notes),
        )
        return session.run(prepared.plan, prepared.plan.nodes[0], options, prepared.environ)
    finally:
        prepared.lease.close()


def _slots(spec: JobSpec, environ: Mapping[str, str]) -> tuple[devices.Devices, Pool, list[tuple[str, str]]]:
    found = devices.discover(spec.accelerator, environ)
    filtered = bool(spec.include or spec.exclude)
    slots, notes = devices.local_slots(found, num_gpus=spec.num_gpus, filtered=filtered)
    return found, {HOST: slots}, [("info", note) for note in notes]


def _node_facts(spec: JobSpec, environ: Mapping[str, str], interpreter: str, ranks: int) -> NodeFacts:
    allowed = cores.allowed_cores()
    bound: tuple[tuple[int, ...], ...] = ()
    if spec.bind_cores or spec.bind_core_list:
        chosen = (
            cores.parse_core_list(spec.bind_core_list, allowed)
            if spec.bind_core_list
            else cores.physical_cores(allowed)
        )
        bound = cores.split_cores(chosen, ranks)
    return NodeFacts(
        hostname=os.uname().nodename.partition(".")[0],
        interpreter=interpreter,
        cwd=os.getcwd(),
        cores=len(allowed),
        error_dir="",
        bound=bound,
        omp_threads_set="OMP_NUM_THREADS" in environ,
    )


def _port(spec: JobSpec) -> tuple[ports.PortLease, str]:
    if spec.master_port is not None:
        return ports.lease_named_port(spec.master_port), ""
    return ports.lease_port()


def _temporary(environ: Mapping[str, str]) -> str:
    """The directory for temporary files (``tempfile`` costs 13 ms)."""
    for path in (environ.get("TMPDIR", ""), "/tmp", os.getcwd()):
        if path and os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK):
            return os.path.abspath(path)
    return "/tmp"
