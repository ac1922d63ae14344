"""Finds the usable CPU cores, and divides them among the ranks of a node."""

from __future__ import annotations

import os

from bireme.errors import BadInputError, number_in
from bireme.regular_file import listing, text_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

_LIST = "--bind_core_list"
_BIND = "--bind_cores_to_rank"


def allowed_cores() -> set[int]:
    """The cores that this process may use, as limited by a container or a scheduler."""
    if not hasattr(os, "sched_getaffinity"):
        raise BadInputError("this system cannot bind processes to cores", hint="leave out this option", where=_BIND)
    return os.sched_getaffinity(0)


def usable() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def bound(core_list: str | None, *, physical: bool, ranks: int) -> tuple[tuple[int, ...], ...]:
    """The cores of each local rank, from the list or, if ``physical``, from all physical ones; empty: none is bound."""
    if core_list:
        return split_cores(parse_core_list(core_list), ranks, where=_LIST)
    return split_cores(physical_cores(allowed_cores()), ranks) if physical else ()


def parse_core_list(text: str, allowed: Collection[int] | None = None) -> tuple[int, ...]:
    """Read a list such as ``0,2-5``, both ends included, keeping its order.

    Args:
        allowed: the cores that the list may name; by default those that this process may use.
    """
    allowed = allowed_cores() if allowed is None else allowed
    cores: list[int] = []
    for word in text.split(","):
        first, dash, last = (part.strip() for part in word.partition("-"))
        low, high = number_in(first), number_in(last if dash else first)
        if low is None or high is None:
            raise BadInputError(
                f"{word[:40]!r} is not a core or a range of cores", hint="expected e.g. 0,2-5", where=_LIST
            )
        if low > high:
            raise BadInputError(f"the range {word.strip()!r} is reversed", hint=f"write {high}-{low}", where=_LIST)
        for core in range(low, high + 1):
            if core not in allowed:  # also ends an absurdly long range at its first such core
                from bireme.resources.pool import ranges

                raise BadInputError(f"core {core} is not available", hint=f"available: {ranges(allowed)}", where=_LIST)
            if core in cores:
                raise BadInputError(f"core {core} is listed twice", where=_LIST)
            cores.append(core)
    return tuple(cores)


def physical_cores(allowed: Collection[int], root: str = "/") -> tuple[int, ...]:
    """One hardware thread for each physical core: the first that is allowed.

    They are ordered by package, NUMA node and core, so that neighbours in the list share memory. A core without
    topology in ``/sys`` counts as a physical one.
    """
    node_of: dict[int, int] = {}
    nodes = os.path.join(root, "sys/devices/system/node")
    for name in listing(nodes):
        if name.startswith("node") and name[4:].isdecimal():
            for core in _members(text_of(os.path.join(nodes, name, "cpulist"))):
                node_of[core] = int(name[4:])

    found: list[tuple[int, int, int, int]] = []
    seen: set[int] = set()
    for core in sorted(allowed):
        if core in seen:
            continue
        topology = os.path.join(root, f"sys/devices/system/cpu/cpu{core}/topology")
        seen.update(_members(text_of(os.path.join(topology, "thread_siblings_list"))))
        package = number_in(text_of(os.path.join(topology, "physical_package_id"))) or 0
        number = number_in(text_of(os.path.join(topology, "core_id")))
        found.append((package, node_of.get(core, 0), core if number is None else number, core))
    return tuple(core for *_, core in sorted(found))


def split_cores(cores: tuple[int, ...], ranks: int, *, where: str = _BIND) -> tuple[tuple[int, ...], ...]:
    """Divide the cores among the ranks: equal numbers of neighbouring cores.

    Cores that are left over stay idle, as with DeepSpeed: all ranks wait for the slowest, so a larger share for some
    ranks gains nothing.
    """
    if len(cores) < ranks:
        raise BadInputError(f"{ranks} ranks need a core each, {len(cores)} available", where=where)
    each = len(cores) // ranks
    return tuple(cores[rank * each : (rank + 1) * each] for rank in range(ranks))


def _members(text: str) -> list[int]:
    """The numbers of a list as the kernel writes it: ``0,64`` or ``0-3,8``."""
    members: list[int] = []
    for word in text.split(","):
        first, dash, last = word.partition("-")
        low, high = number_in(first), number_in(last if dash else first)
        if low is not None and high is not None:
            members.extend(range(low, high + 1))
    return members
