"""Selects nodes and slots of a pool by ``--include``, ``--exclude``, ``--num_nodes`` and ``--num_gpus``.

Filters have the grammar of DeepSpeed (``deepspeed --include``)::

    FILTER = NODE [":" SLOT ["," SLOT ...]] ["@" FILTER]

with node sets such as ``node[01-16]`` for NODE.

Hosts are written without a user, and IPv6 addresses in brackets (``[fe80::1]:0,2``), so ``@`` and ``:`` have one
meaning each. A node without slots means all its slots. Slots are opaque words (``3``, ``GPU-8932f937``,
``MIG-GPU-8932f937/1/0``), except that a number may have leading zeros.

Two differences from DeepSpeed: ``a@a:0`` means all slots of ``a`` (there, only slot 0); and every error names the
available nodes or slots, also for a filter that leaves nothing.
"""

from __future__ import annotations

import os

from bireme.errors import BadInputError
from bireme.options import conflicts
from bireme.resources.pool import Pool, listed, quoted
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_SEPARATORS = frozenset("@:,[]")
_NO_BRACKETS = str.maketrans("", "", "[],")  # part of a node set
_IN_IPV6 = frozenset("0123456789abcdefABCDEF:.")


class NodeFilter(Value):
    """One node of a filter; empty ``slots`` mean all."""

    host: str
    slots: tuple[str, ...] = ()

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{','.join(self.slots)}" if self.slots else host


def parse_filter(text: str, *, where: str = "") -> tuple[NodeFilter, ...]:
    """Read a filter, keeping the order of its nodes, and repetitions."""
    nodes = (_node(node.strip(), where) for node in text.split("@"))
    return tuple(one for node in nodes for one in _expanded(node, where))


def apply_filters(
    pool: Mapping[str, tuple[str, ...]],
    include: str = "",
    exclude: str = "",
    *,
    aliases: Mapping[str, str] | None = None,
    slot_aliases: Mapping[str, str] | None = None,
    may_be_empty: bool = False,
) -> Pool:
    """Apply the filters ("": not given) to a pool; keeps its order, and drops hosts without slots.

    Args:
        aliases: other names of the pool's hosts, see :func:`local_aliases`.
        slot_aliases: other names of the pool's slots, see :func:`bireme.resources.devices.slot_aliases`.
    """
    if include and exclude:
        conflicts.refuse({"--include": include, "--exclude": exclude})
    text, where = (include, "--include") if include else (exclude, "--exclude")
    named: dict[str, set[str]] = {}
    for node in parse_filter(text, where=where) if text else ():
        host = _known_host(pool, node.host, aliases or {}, where)
        slots = (_known_slot(pool, host, slot, slot_aliases or {}, where) for slot in node.slots)
        named.setdefault(host, set()).update(slots if node.slots else pool[host])

    left: Pool = {}
    for host, slots_there in pool.items():
        mine = named.get(host, ())
        if kept := tuple(slot for slot in slots_there if (slot in mine) == bool(include)):
            left[host] = kept
    if not left and not may_be_empty:
        there = listed((f"{host}:{','.join(slots)}" for host, slots in pool.items()), most=4)
        raise BadInputError("no slots left to run on", hint=f"available: {there}", where=where if text else "")
    return left


def take(pool: Mapping[str, tuple[str, ...]], num_nodes: int | None = None, num_gpus: int | None = None) -> Pool:
    """Take the first hosts of a pool, and the first slots of each; ``None``: all."""
    if num_nodes is not None:
        _at_least_one(num_nodes, "--num_nodes")
        if num_nodes > len(pool):
            what = f"{num_nodes} nodes requested, {len(pool)} available"
            raise BadInputError(what, hint=f"nodes: {listed(pool)}", where="--num_nodes")
    if num_gpus is not None:
        _at_least_one(num_gpus, "--num_gpus")
    taken = dict(list(pool.items())[:num_nodes])
    for host, slots in taken.items():
        if num_gpus is not None and num_gpus > len(slots):
            raise BadInputError(f"{num_gpus} slots per node requested, {host} has {len(slots)}", where="--num_gpus")
    return {host: slots[:num_gpus] for host, slots in taken.items()}


def local_aliases(pool_name: str = "localhost") -> dict[str, str]:
    """Names and loopback addresses of this machine, each with its name in the pool.

    No name is resolved: a resolver that does not answer would take seconds.
    """
    node = os.uname().nodename
    return dict.fromkeys((node, node.partition(".")[0], "localhost", "127.0.0.1", "::1"), pool_name)


def _node(text: str, where: str) -> NodeFilter:
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        address, percent, zone = host.partition("%")
        well_formed = ":" in address and _IN_IPV6.issuperset(address) and (not percent or _is_word(zone))
        if not (bracket and well_formed):
            raise _malformed(text, "expected an IPv6 address in the brackets, as in [fe80::1]:0,2", where)
        colon, slots = rest[:1], rest[1:]
        if colon not in ("", ":"):
            raise _malformed(text, "expected ':' and slots after ']', or nothing", where)
    else:
        host, colon, slots = text.partition(":")
        host = host.strip()
        # ssh and the like would take a leading dash for an option.
        if not _is_word(host.translate(_NO_BRACKETS)) or host.startswith("-"):
            raise _malformed(text, "expected NODE or NODE:SLOT,SLOT; separate nodes by '@'", where)
        if ":" in slots:
            raise _malformed(text, "write an IPv6 address in brackets, as in [fe80::1]:0,2", where)
    if not colon:
        return NodeFilter(host)
    words = tuple(slot.strip() for slot in slots.split(","))
    if not all(map(_is_word, words)):
        raise _malformed(text, "expected slots after ':', separated by commas, as in worker-0:0,2", where)
    return NodeFilter(host, words)


def _expanded(node: NodeFilter, where: str) -> tuple[NodeFilter, ...]:
    """The nodes of a node set (``node[01-16]:0``), each with its slots."""
    if "[" not in node.host and "]" not in node.host:
        return (node,)
    from bireme.resources.hostfile import node_set

    names = node_set(node.host, where, "expected NODE or NODE:SLOT,SLOT; write a set as node[01-16]")
    return tuple(node.replace(host=name) for name in names)


def _is_word(text: str) -> bool:
    return bool(text) and text.isprintable() and " " not in text and _SEPARATORS.isdisjoint(text)


def _malformed(text: str, hint: str, where: str) -> BadInputError:
    return BadInputError(f"not a node and its slots: {quoted(text)}", hint=hint, where=where)


def _known_host(pool: Mapping[str, tuple[str, ...]], host: str, aliases: Mapping[str, str], where: str) -> str:
    for name in (host, aliases.get(host, host)):
        if name in pool:
            return name
    hint = f"nodes: {listed(pool)}"
    if host.replace(",", "").isdecimal() and pool:
        hint = f"to choose slots, put the node in front: {where} {next(iter(pool))}:{host}"
    raise BadInputError(f"no such node in the pool: {quoted(host)}", hint=hint, where=where)


def _known_slot(
    pool: Mapping[str, tuple[str, ...]], host: str, slot: str, aliases: Mapping[str, str], where: str
) -> str:
    number = (slot.lstrip("0") or "0") if slot.isdecimal() else slot  # DeepSpeed reads 03 as 3
    for name in (slot, number, aliases.get(slot, slot)):
        if name in pool[host]:
            return name
    raise BadInputError(f"node {host} has no slot {quoted(slot)}", hint=f"its slots: {listed(pool[host])}", where=where)


def _at_least_one(number: int, where: str) -> None:
    if number < 1:
        raise BadInputError(f"must be at least 1, not {number}", where=where)
