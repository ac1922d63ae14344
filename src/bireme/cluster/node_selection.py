"""Decides which nodes a job may use: from the command line, a hostfile, a scheduler's allocation, or this machine."""

from __future__ import annotations

import os

from bireme import job
from bireme.errors import BadInputError, UnfitError
from bireme.resources import allocation, filters, hostfile
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping

    from bireme.job import JobSpec
    from bireme.resources.filters import NodeFilter
    from bireme.resources.hostfile import HostEntry
    from bireme.resources.pool import Pool


class DeclaredPool(Value):
    """The pool as it was declared.

    Attributes:
        source: where they were declared, for messages.
        scheduler: whose allocation it is; "": it is none.
    """

    entries: tuple[HostEntry, ...]
    source: str
    scheduler: str = ""

    def by_tasks(self) -> str:
        """What the number of tasks of an allocation means for the number of ranks, for messages; "": nothing."""
        tasks = sum(entry.slots or entry.tasks for entry in self.entries) if self.scheduler else 0
        if not tasks:
            return ""
        unless = " where the nodes show no devices" if any(entry.tasks for entry in self.entries) else ""
        return f"; its {tasks} tasks are the slots{unless}"


class Nodes(Value):
    """The nodes of a pool that a job connects to.

    Attributes:
        slots: the slots of each by its name, as far as they are declared; ``None``: the node has to be asked.
    """

    pool: DeclaredPool
    entries: tuple[HostEntry, ...]
    slots: Mapping[str, tuple[str, ...] | None]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the nodes."""
        return tuple(entry.name for entry in self.entries)

    def world(self, spec: JobSpec, where: str = "") -> Pool:
        """The slots of every node, for a job that cannot ask the nodes: those declared, or the scheduler's tasks."""
        known: Pool = {}
        for entry in self.entries:
            declared = self.slots[entry.name]
            if declared is None and not entry.tasks:
                hint = "add slots=N to its line in the hostfile, or :N to its name in --hosts"
                if self.pool.scheduler:
                    hint = f"ask the scheduler for tasks, or name the nodes: --hosts {entry.name}:N,…"
                raise BadInputError(f"no number of slots declared for {entry.name}", hint=hint, where=where)
            known[entry.name] = tuple(map(str, range(entry.tasks))) if declared is None else declared
        return self.active(spec, known)

    def active(self, spec: JobSpec, known: Pool) -> Pool:
        """Apply the job's filters to the nodes that have answered; where all slots are declared, `select` did."""
        if None not in self.slots.values():
            return known
        return active_slots(narrowed(spec, known) if spec.elastic else spec, known, may_be_empty=spec.elastic)


def find(spec: JobSpec, environ: Mapping[str, str]) -> DeclaredPool | None:
    """Find the declared pool; ``None``: only this machine."""
    if spec.hosts.startswith(job.BY_LABELS):
        return DeclaredPool(_by_labels(spec, environ), f"--hosts {spec.hosts}")
    if spec.hosts:
        return DeclaredPool(hostfile.parse_hosts(spec.hosts), "--hosts")
    if spec.hostfile is not None:
        entries = hostfile.read_hostfile(spec.hostfile)
        assert entries is not None
        return DeclaredPool(entries, spec.hostfile)
    allocated = allocation.find_allocation(environ)
    if allocated is not None:
        return DeclaredPool(allocated.entries, f"the {allocated.scheduler} allocation", allocated.scheduler)
    entries = hostfile.read_hostfile(None)
    return None if entries is None else DeclaredPool(entries, hostfile.DEFAULT_HOSTFILE)


def select(spec: JobSpec, pool: DeclaredPool) -> Nodes:
    """Select the nodes to connect to.

    Where the slots of any node are not declared, only filters of whole nodes are applied now.
    """
    numbered = {number: tuple(map(str, range(number))) for number in {entry.slots or 0 for entry in pool.entries}}
    slots = {entry.name: None if entry.slots is None else numbered[entry.slots] for entry in pool.entries}
    if None not in slots.values():
        active = active_slots(spec, {name: known for name, known in slots.items() if known is not None})
        return Nodes(pool, tuple(entry for entry in pool.entries if entry.name in active), dict(active))
    wanted = _by_name(spec, slots)
    entries = tuple(entry for entry in pool.entries if entry.name in wanted)
    return Nodes(pool, entries, {name: slots[name] for name in wanted})


def narrowed(spec: JobSpec, names: Container[str]) -> JobSpec:
    """The job with its filters reduced to these nodes."""
    return _refiltered(spec, lambda node: node if node.host in names else None)


def by_one_name(spec: JobSpec) -> JobSpec:
    """The job with every name of this machine in its filters replaced by ``localhost``."""
    aliases = filters.local_aliases("localhost")
    return _refiltered(spec, lambda node: node.replace(host=aliases.get(node.host, node.host)))


def _refiltered(spec: JobSpec, change: Callable[[NodeFilter], NodeFilter | None]) -> JobSpec:
    """The job with each node in its filters changed; ``None`` removes one."""

    def changed(text: str, where: str) -> str:
        nodes = map(change, filters.parse_filter(text, where=where) if text else ())
        return "@".join(str(node) for node in nodes if node is not None)

    return spec.replace(include=changed(spec.include, "--include"), exclude=changed(spec.exclude, "--exclude"))


def active_slots(spec: JobSpec, pool: Pool, *, may_be_empty: bool = False) -> Pool:
    """The active resources: what filters and limits leave of a pool whose slots are known."""
    left = _without_avoided(filters.apply_filters(pool, spec.include, spec.exclude, may_be_empty=may_be_empty), spec)
    return filters.take(left, spec.num_nodes, spec.num_gpus)


def _without_avoided(pool: Pool, spec: JobSpec) -> Pool:
    """The pool without the nodes to avoid, if enough are left; else all, as these may be well again."""
    left = {host: slots for host, slots in pool.items() if host not in spec.avoid}
    return left if len(left) >= (spec.num_nodes or 1) else pool


def _by_name(spec: JobSpec, slots: Mapping[str, tuple[str, ...] | None]) -> list[str]:
    """The nodes that filters and ``--num_nodes`` may leave, whatever slots they turn out to have."""
    include = filters.parse_filter(spec.include, where="--include") if spec.include else ()
    exclude = filters.parse_filter(spec.exclude, where="--exclude") if spec.exclude else ()
    pool = dict.fromkeys(slots, ("0",))
    names = "@".join(str(node.replace(slots=())) for node in include)
    without = "@".join(str(node) for node in exclude if not node.slots)
    left = _without_avoided(filters.apply_filters(pool, names, without), spec)
    return list(filters.take(left, spec.num_nodes))


_HOSTS = "--hosts"
_LABELS_WAIT = 30
"""Seconds that a launcher may take to list the hosts with some labels."""


def _by_labels(spec: JobSpec, environ: Mapping[str, str]) -> tuple[HostEntry, ...]:
    """Find the hosts of ``LAUNCHER:LABELS[:SLOTS]``, by the launcher's own command."""
    from bireme.backends import choice

    launcher, _, asked = spec.hosts.partition(":")
    if spec.launcher not in ("auto", launcher):
        hint = f"leave out --launcher {spec.launcher}"
        raise BadInputError(f"{spec.hosts!r} is for --launcher {launcher}", hint=hint, where=_HOSTS)
    labels, slots = hostfile.and_slots(asked, _HOSTS)
    if not labels:
        raise BadInputError("no labels", hint=f"name some, as in {_HOSTS} {launcher}:app=train", where=_HOSTS)
    backend = choice.load(launcher)
    question = (backend.find_program(environ), *backend.query(labels, spec.launcher_args))
    try:
        names = backend.found(_answer(question, environ))
    except ValueError as error:
        raise UnfitError(f"{launcher} did not print a list of hosts: {error}", where=_HOSTS) from None
    if not names:
        raise BadInputError(f"nothing with the labels {labels} is running", hint=backend.NO_LABELS, where=_HOSTS)
    return tuple(hostfile.HostEntry(name=name, slots=slots) for name in names)


def _answer(question: tuple[str, ...], environ: Mapping[str, str]) -> bytes:
    """What the command has printed."""
    import subprocess

    from bireme.process.kernel import die_with_parent

    name, this = os.path.basename(question[0]), os.getpid()
    try:
        done = subprocess.run(
            question,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_LABELS_WAIT,
            check=False,
            preexec_fn=lambda: die_with_parent(this),
        )
    except subprocess.TimeoutExpired:
        raise UnfitError(f"{name} did not answer within {_LABELS_WAIT} s", where=_HOSTS) from None
    except OSError as error:
        raise UnfitError(f"{name} cannot be started: {error.strerror}", where=_HOSTS) from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        said = [line for line in said if line.lower().startswith("error")] or said
        why = said[-1] if said else f"exit code {done.returncode}"
        raise UnfitError(f"{name} cannot list the hosts: {why}", where=_HOSTS)
    return done.stdout
