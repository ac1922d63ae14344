"""Which CPU cores there are, and a share of them for each rank."""

from __future__ import annotations

import os

from bireme.errors import BadInputError
from bireme.resources._files import listing, read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

_LIST = "--bind_core_list"
_BIND = "--bind_cores_to_rank"


def allowed_cores() -> set[int]:
    """The cores that this process may use: what a container or a batch system left it.

    Raises:
        BadInputError: the system cannot bind processes to cores (macOS).
    """
    if not hasattr(os, "sched_getaffinity"):
        raise BadInputError("this system cannot bind a process to cores", hint="leave this option out", where=_BIND)
    return os.sched_getaffinity(0)


def usable() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def bound(core_list: str | None, *, physical: bool, ranks: int) -> tuple[tuple[int, ...], ...]:
    """The cores of each of ``ranks`` ranks: of the list, or of all physical cores; empty when neither is asked for.

    Raises:
        BadInputError: the list is no list, or there are fewer cores than ranks.
    """
    if core_list:
        return split_cores(parse_core_list(core_list), ranks, where=_LIST)
    return split_cores(physical_cores(allowed_cores()), ranks) if physical else ()


def parse_core_list(text: str, allowed: Collection[int] | None = None) -> tuple[int, ...]:
    """Read a list such as ``0,2-5``; the cores come in the order of the text.

    Args:
        text: numbers and ranges, both ends included, separated by commas.
        allowed: the cores that may be named; by default those that this process may use.

    Raises:
        BadInputError: the list is malformed, names a core twice, or one that may not be used.
    """
    allowed = allowed_cores() if allowed is None else allowed
    cores: list[int] = []
    for word in text.split(","):
        first, dash, last = (part.strip() for part in word.partition("-"))
        low, high = _number(first), _number(last if dash else first)
        if low is None or high is None:
            raise BadInputError(f"{word[:40]!r} is not a core or a range of cores", hint="as in: 0,2-5", where=_LIST)
        if low > high:
            raise BadInputError(f"{word.strip()!r} runs backwards", hint=f"write {high}-{low}", where=_LIST)
        for core in range(low, high + 1):
            if core not in allowed:  # also what stops at the first core of an absurdly long range
                raise BadInputError(
                    f"core {core} may not be used", hint=f"those that may: {_ranges(allowed)}", where=_LIST
                )
            if core in cores:
                raise BadInputError(f"core {core} stands there twice", where=_LIST)
            cores.append(core)
    return tuple(cores)


def physical_cores(allowed: Collection[int], root: str = "/") -> tuple[int, ...]:
    """One hardware thread for each physical core: the first that is allowed.

    They are ordered by package, NUMA node and core, so that neighbours in the list share their
    memory. A core about which the kernel tells nothing counts as a whole one.

    Args:
        allowed: the cores that may be used.
        root: where ``/sys`` is looked for.
    """
    node_of: dict[int, int] = {}
    nodes = os.path.join(root, "sys/devices/system/node")
    for name in listing(nodes):
        if name.startswith("node") and name[4:].isdecimal():
            for core in _members(read(os.path.join(nodes, name, "cpulist"))):
                node_of[core] = int(name[4:])

    found: list[tuple[int, int, int, int]] = []
    seen: set[int] = set()
    for core in sorted(allowed):
        if core in seen:
            continue
        topology = os.path.join(root, f"sys/devices/system/cpu/cpu{core}/topology")
        seen.update(_members(read(os.path.join(topology, "thread_siblings_list"))))
        package = _number(read(os.path.join(topology, "physical_package_id"))) or 0
        number = _number(read(os.path.join(topology, "core_id")))
        found.append((package, node_of.get(core, 0), core if number is None else number, core))
    return tuple(core for *_, core in sorted(found))


def split_cores(cores: tuple[int, ...], ranks: int, *, where: str = _BIND) -> tuple[tuple[int, ...], ...]:
    """A share of the cores for each rank: neighbours in the list, and as many for each.

    Cores that cannot be shared evenly stay idle, as with DeepSpeed: all ranks wait for the
    slowest, so that a larger share for some of them gains nothing.

    Raises:
        BadInputError: there are fewer cores than ranks.
    """
    if len(cores) < ranks:
        raise BadInputError(
            f"{ranks} ranks cannot each have a core of their own: {len(cores)} may be used", where=where
        )
    each = len(cores) // ranks
    return tuple(cores[rank * each : (rank + 1) * each] for rank in range(ranks))


def _number(text: str) -> int | None:
    # No core has more digits, and int() raises upon thousands of them.
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None


def _members(text: str) -> list[int]:
    """The numbers in a list of the kernel's: ``0,64`` or ``0-3,8``."""
    members: list[int] = []
    for word in text.split(","):
        first, dash, last = word.partition("-")
        low, high = _number(first), _number(last if dash else first)
        if low is not None and high is not None:
            members.extend(range(low, high + 1))
    return members


def _ranges(numbers: Collection[int]) -> str:
    """The other way round: ``{0, 1, 2, 8}`` as ``0-2,8``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{low}-{high}" if low < high else str(low) for low, high in runs)
