"""Which nodes the job may use: from the command line, a file, the scheduler's allocation, or just this machine."""

from __future__ import annotations

from bireme.resources import allocation, filters, hostfile
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping

    from bireme.job import JobSpec
    from bireme.resources.filters import NodeFilter
    from bireme.resources.hostfile import HostEntry
    from bireme.resources.pool import Pool


class Found(Value):
    """The pool as it was declared. ``source``: where it was found, for a message; ``scheduler``: whose allocation."""

    entries: tuple[HostEntry, ...]
    source: str
    scheduler: str = ""


def find(spec: JobSpec, environ: Mapping[str, str]) -> Found | None:
    """The declared pool; ``None``: this machine.

    Raises:
        BadInputError: a file that was named is missing, or what declares the pool cannot be read.
    """
    if spec.hosts:
        return Found(hostfile.parse_hosts(spec.hosts), "--hosts")
    if spec.hostfile is not None:
        entries = hostfile.read_hostfile(spec.hostfile)
        assert entries is not None
        return Found(entries, spec.hostfile)
    allocated = allocation.find_allocation(environ)
    if allocated is not None:
        return Found(allocated.entries, f"the {allocated.scheduler} allocation", allocated.scheduler)
    entries = hostfile.read_hostfile(None)
    return None if entries is None else Found(entries, hostfile.DEFAULT_HOSTFILE)


def select(spec: JobSpec, found: Found) -> tuple[tuple[HostEntry, ...], dict[str, tuple[str, ...] | None]]:
    """The nodes to connect to, and the slots of those whose number is declared.

    Where a node has to be asked for its slots, only its name can be judged before.

    Raises:
        BadInputError: a filter names a node or slot that is not there, or nothing is left.
    """
    numbered = {number: tuple(map(str, range(number))) for number in {entry.slots or 0 for entry in found.entries}}
    slots = {entry.name: None if entry.slots is None else numbered[entry.slots] for entry in found.entries}
    if None not in slots.values():
        active = resolve(spec, {name: known for name, known in slots.items() if known is not None})
        return tuple(entry for entry in found.entries if entry.name in active), dict(active)
    wanted = _by_name(spec, slots)
    return tuple(entry for entry in found.entries if entry.name in wanted), {name: slots[name] for name in wanted}


def narrowed(spec: JobSpec, names: Container[str]) -> JobSpec:
    """The job with filters that speak of these nodes only.

    Raises:
        BadInputError: a filter cannot be read.
    """
    return _refiltered(spec, lambda node: node if node.host in names else None)


def by_one_name(spec: JobSpec) -> JobSpec:
    """The job with filters that know this machine as ``localhost``, whatever it is called there.

    Raises:
        BadInputError: a filter cannot be read.
    """
    aliases = filters.local_aliases("localhost")
    return _refiltered(spec, lambda node: node.replace(host=aliases.get(node.host, node.host)))


def _refiltered(spec: JobSpec, change: Callable[[NodeFilter], NodeFilter | None]) -> JobSpec:
    """The job with what becomes of each node in its filters; of some, nothing."""

    def changed(text: str, where: str) -> str:
        nodes = map(change, filters.parse_filter(text, where=where) if text else ())
        return "@".join(str(node) for node in nodes if node is not None)

    return spec.replace(include=changed(spec.include, "--include"), exclude=changed(spec.exclude, "--exclude"))


def resolve(spec: JobSpec, pool: Pool, *, may_be_empty: bool = False) -> Pool:
    """The active resources: what filters and numbers leave of a pool whose slots are known.

    Args:
        may_be_empty: leaving nothing is no error.

    Raises:
        BadInputError: as :func:`select`.
    """
    left = _without_avoided(filters.apply_filters(pool, spec.include, spec.exclude, may_be_empty=may_be_empty), spec)
    return filters.take(left, spec.num_nodes, spec.num_gpus)


def _without_avoided(pool: Pool, spec: JobSpec) -> Pool:
    """Without the nodes that are to be avoided, if enough are left then: they may be well again."""
    left = {host: slots for host, slots in pool.items() if host not in spec.avoid}
    return left if len(left) >= (spec.num_nodes or 1) else pool


def _by_name(spec: JobSpec, slots: Mapping[str, tuple[str, ...] | None]) -> list[str]:
    """The nodes that the filters and ``--num_nodes`` may leave, whatever slots they turn out to have."""
    include = filters.parse_filter(spec.include, where="--include") if spec.include else ()
    exclude = filters.parse_filter(spec.exclude, where="--exclude") if spec.exclude else ()
    pool = dict.fromkeys(slots, ("0",))
    names = "@".join(str(node.replace(slots=())) for node in include)
    without = "@".join(str(node) for node in exclude if not node.slots)
    left = _without_avoided(filters.apply_filters(pool, names, without), spec)
    return list(filters.take(left, spec.num_nodes))
