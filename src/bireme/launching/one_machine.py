"""Runs a job on this machine: examines it, plans, runs."""

from __future__ import annotations

import os

from bireme.errors import BadInputError, UnfitError
from bireme.logs import rankfiles
from bireme.one_node.examination import examine, short_hostname, working_directory
from bireme.one_node.part import NodePart
from bireme.one_node.process_tree import ProcessTree
from bireme.planning.environment import job_facts, may_find_env_file
from bireme.planning.start import start_plan
from bireme.resources.devices import slot_aliases, usable_slots
from bireme.resources.rendezvous_port import lease_named_port, lease_port
from bireme.runner import session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeAlias

    from bireme.cluster.node_selection import Nodes
    from bireme.job import JobSpec
    from bireme.one_node.examination import Choose, Examination
    from bireme.planning.start import NodePlan, StartPlan
    from bireme.resources.devices import Devices
    from bireme.resources.pool import Pool
    from bireme.resources.rendezvous_port import PortLease
    from bireme.result.outcome import Outcome
    from bireme.runner.session import Session

    Note: TypeAlias = tuple[str, str]  # level, text


class LocalCrew(NodePart):
    """The crew of one node's part that runs here, without an agent; for the other arguments see `NodePart`."""

    DEFAULT_STDIN: str = "0"

    def __init__(
        self,
        session: Session,
        plan: StartPlan,
        node: NodePlan,
        environ: Mapping[str, str],
        *,
        log_dir: str | None = None,
        keep: Sequence[int] = (),
        at_start: Callable[[], object] = lambda: None,
        at_loss: Callable[[], object] = lambda: None,
        farewell: float = 0.0,
    ) -> None:
        super().__init__(
            session.loop,
            node,
            _ToSession(session, node.host),
            ProcessTree(),
            accelerator=plan.accelerator,
            grace=session.spec.grace,
            rest=session.rest,
            log_dir=log_dir,
            takes_stacks=session.spec.stacks != "never",
            at_loss=at_loss,
            farewell=farewell,
        )
        self._session, self._job_plan, self._environ = session, plan, environ
        self._keep, self._at_start = keep, at_start

    def start(self) -> None:
        """Fork the ranks."""
        output = self._session.planned(self._job_plan)
        self.fork(self._environ, self._stdin, output, keep=self._keep, at_start=self._at_start)

    def _stdin(self, rank: int, null: int) -> int:
        """What a rank reads from: our stdin itself, or a pipe with a copy of it if all ranks read it."""
        session = self._session
        ours = session.terminal.stdin_for_ranks(null) if session.gets_stdin(rank) else null
        if ours == null or session.spec.stdin != "all":
            return ours
        if not self.has_input:
            from bireme.runner.stdin import StdinReader

            self._reader = StdinReader(session, self.write_input)
            self._reader.read_on()
        return self.add_input(self._reader.read_on, answers_of=rank if session.spec.answers else None)


class _ToSession:
    """Tells a session what happens to a node's part that runs here."""

    def __init__(self, session: Session, host: str) -> None:
        self._session, self._host = session, host
        self.down, self.chunk, self.rested, self.eof = session.down, session.chunk, session.rested, session.eof
        self.gone, self.over, self.say = session.gone, session.over, session.console.say
        self.stacks, self.measured = session.stacks, session.measured

    def up(self, rank: int, pid: int, _when: float) -> None:
        self._session.up(rank, pid)

    def guardian_lost(self, pid: int) -> None:
        note = f"the guardian of {self._host} (pid {pid}) was killed"
        self._session.trouble("agent lost", note, self._session.loop.now())

    def unfit(self, reason: str) -> None:
        self._session.trouble("unfit", reason, self._session.loop.now())


HOST = "localhost"
"""The name of this machine in the pool, as users of DeepSpeed write it in filters."""


def run(spec: JobSpec, environ: Mapping[str, str], nodes: Nodes | None = None) -> Outcome:
    """Run the job on this machine and wait for its end.

    Args:
        nodes: this machine as the pool declares it, with the slots that filters leave; ``None``: there is no pool.
    """

    def begin() -> Outcome:
        lease, note = _lease_port(spec)
        with lease:
            plan, inherited, notes = _plan(spec, environ, nodes, lease.port, note)
            return run_part(spec, plan, inherited, notes, os.getpid(), lease.fds)

    return blamed(name_here(nodes), begin)


def preview(spec: JobSpec, environ: Mapping[str, str], nodes: Nodes | None = None) -> StartPlan:
    """The plan of a job on this machine. Its port is not leased."""
    lease, note = _lease_port(spec)
    with lease:
        return _plan(spec, environ, nodes, lease.port, note)[0]


def name_here(nodes: Nodes | None) -> str:
    """This machine's name in the pool."""
    return HOST if nodes is None else nodes.names[0]


def _lease_port(spec: JobSpec) -> tuple[PortLease, str]:
    return (lease_named_port(spec.master_port), "") if spec.master_port else lease_port()


def _plan(
    spec: JobSpec, environ: Mapping[str, str], nodes: Nodes | None, port: int, port_note: str
) -> tuple[StartPlan, Mapping[str, str], list[Note]]:
    """Examine this machine and make the plan; starts and writes nothing. Also what ranks inherit, and messages."""
    name = name_here(nodes)
    declared = None if nodes is None else nodes.slots[name]
    notes: list[Note] = []

    def choose(found: Devices) -> tuple[tuple[str, ...], Sequence[str]]:
        nonlocal declared
        if nodes is None:
            return slots_left(spec, found, name)
        if (tasks := nodes.entries[0].tasks) and not spec.filtered and spec.num_gpus is None:
            from bireme.resources.allocation import slots_by_tasks

            declared = slots_by_tasks(tasks, found.accelerator, environ)
        if declared is None:
            return slots_left(spec, found, name)
        by_tasks = nodes.pool.by_tasks()
        return usable_slots(found, declared)[0], [f"1 node, from {nodes.pool.source}{by_tasks}"] if by_tasks else []

    check_address(spec.master_addr, notes)
    spec = spec.on_node(short_hostname() if nodes is None else name)
    found = examine_here(spec, environ, choose, notes)
    notes[:0] = [] if spec.attempt else [("info", text) for text in (*found.notes, port_note) if text]
    plan = plan_part(spec, found, {name: found.facts.slots}, name, notes, port=port, declared=declared is not None)
    return plan, found.environ, notes


def slots_left(spec: JobSpec, found: Devices, name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The slots that filters and ``--num_gpus`` leave of this machine, and messages; ``name``: its name in the pool."""
    slots, notes = usable_slots(found, num_gpus=spec.num_gpus, filtered=spec.filtered)
    if slots and not spec.filtered:
        return slots, notes
    from bireme.resources import filters

    left = filters.apply_filters(
        {name: slots},
        spec.include,
        spec.exclude,
        aliases=filters.local_aliases(name),
        slot_aliases=slot_aliases(found),
    )
    return left[name], notes


def examine_here(spec: JobSpec, environ: Mapping[str, str], choose: Choose, notes: list[Note]) -> Examination:
    """Examine this machine, with the variables of ``--export`` and of environment files; adds notes about these."""
    home, here = os.path.expanduser("~"), working_directory()
    chosen: Mapping[str, str] = {}
    if spec.exports or may_find_env_file(environ, home, here):
        from bireme.planning.exports import exports

        exported = exports(environ, spec.exports, home, here)
        notes.extend(() if spec.attempt else exported.notes())
        chosen = exported.chosen()
    found = examine(spec, environ, {**environ, **chosen}, choose)
    found.refuse()
    return found.replace(environ={**found.environ, **chosen})


def plan_part(
    spec: JobSpec, found: Examination, world: Pool, host: str, notes: list[Note], *, port: int = 0, declared: bool
) -> StartPlan:
    """Make the plan of this machine's part; adds messages.

    Args:
        port: the leased port of the rendezvous; 0: this node does not choose it.
        declared: whether the slots were declared, not found here.
    """
    facts = found.facts.replace(port=port)
    job = job_facts(spec, facts, spec.master_addr or "127.0.0.1", declared=declared)
    plan = start_plan(spec, world, job, {host: facts})
    ranks, threads = len(world[host]), plan.nodes[0].env.get("OMP_NUM_THREADS")
    if threads and ranks > 1 and not facts.bound and not spec.attempt:
        notes.append(("info", f"OMP_NUM_THREADS={threads} for each rank: {facts.cores} cores for {ranks} ranks"))
    return plan


def check_address(addr: str | None, notes: list[tuple[str, str]], *, first: bool = True, refuse: bool = True) -> None:
    """Check that the ranks of this machine can meet at an address that the user gave.

    Args:
        first: they meet on this machine.
        refuse: whether a name that cannot be resolved is an error. A pod may start before its name is known.
    """
    if addr is None:
        return
    from bireme.resources.addresses import look_up
    from bireme.resources.locality import is_this_machine

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


def blamed(name: str, begin: Callable[[], Outcome]) -> Outcome:
    """Run a node's part, and name the node as the one at fault if it is unfit or its agent is lost."""
    try:
        outcome = begin()
    except UnfitError as error:
        error.hosts = (name,)
        raise
    return outcome.replace(hosts=(name,)) if outcome.cause in ("agent lost", "unfit") else outcome


def run_part(
    spec: JobSpec,
    plan: StartPlan,
    environ: Mapping[str, str],
    notes: list[Note],
    main_pid: int | None,
    keep: Sequence[int] = (),
) -> Outcome:
    """Run this machine's part of a plan."""
    log_dir = None
    if spec.rank_log_dir is not None:
        log_dir = rankfiles.prepare(spec.rank_log_dir)
    elif spec.log_dir is not None:
        log_dir = rankfiles.prepare(spec.log_dir, "--log_dir")

    def start(at_start: Callable[[], object], at_loss: Callable[[], object]) -> Outcome:
        node = plan.nodes[0]
        return session.run(
            spec,
            notes,
            lambda running: LocalCrew(
                running, plan, node, environ, log_dir=log_dir, keep=keep, at_start=at_start, at_loss=at_loss
            ),
        )

    if not spec.save_pid:
        return start(lambda: None, lambda: None)
    from bireme.process.pid_file import PidFile

    with PidFile(main_pid) as pid_file:
        if pid_file.path is not None:
            notes.append(("info", f"pid {os.getpid()} is in {pid_file.path}"))
        return start(pid_file.create, pid_file.remove)
