"""What ``--include``, ``--exclude``, ``--num_nodes`` and ``--num_gpus`` leave of a pool.

The filters' grammar is DeepSpeed's (``deepspeed --include``)::

    FILTER = NODE [":" SLOT ["," SLOT ...]] ["@" FILTER]

with node sets such as ``node[01-16]`` for NODE.

Hosts stand without a user and IPv6 addresses in brackets (``[fe80::1]:0,2``), so ``@`` and ``:``
have one meaning each. A node without slots stands for all its slots. Slots are opaque words
(``3``, ``GPU-8932f937``, ``MIG-GPU-8932f937/1/0``), except that a number may have zeros before it.

Where we differ from DeepSpeed: ``a@a:0`` names all slots of ``a`` (there, only slot 0); and
whatever cannot be done is refused with what there is, also a filter that leaves nothing.
"""

from __future__ import annotations

import os

from bireme.errors import BadInputError
from bireme.resources.pool import Pool, listed
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_SEPARATORS = frozenset("@:,[]")
_NO_BRACKETS = str.maketrans("", "", "[],")  # they stand in a node set
_IN_IPV6 = frozenset("0123456789abcdefABCDEF:.")


class NodeFilter(Value):
    """One node of a filter; no ``slots`` means all of them."""

    host: str
    slots: tuple[str, ...] = ()

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{','.join(self.slots)}" if self.slots else host


def parse_filter(text: str, *, where: str = "") -> tuple[NodeFilter, ...]:
    """Read a filter; its nodes come in the order of the text, repeated ones too.

    Args:
        text: the filter.
        where: the option that it was given to, for the error.

    Raises:
        BadInputError: the text does not follow the grammar.
    """
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
    """What the filters leave of the pool, in the pool's order, without hosts that have no slot.

    Args:
        pool: what there is.
        include: the only slots to use; empty when not given.
        exclude: the slots not to use; empty when not given.
        aliases: other names of the pool's hosts, see :func:`local_aliases`.
        slot_aliases: other names of the pool's slots, see :func:`bireme.resources.devices.slot_aliases`.
        may_be_empty: leaving nothing is no error.

    Raises:
        BadInputError: both filters are given, one is malformed or names what is not there, or
            nothing is left.
    """
    if include and exclude:
        raise BadInputError("--include and --exclude cannot be given together")
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
        raise BadInputError(
            "no slot is left to run on", hint=f"there are: {_summary(pool)}", where=where if text else ""
        )
    return left


def take(pool: Mapping[str, tuple[str, ...]], num_nodes: int | None = None, num_gpus: int | None = None) -> Pool:
    """The first ``num_nodes`` hosts, and the first ``num_gpus`` slots of each; all where ``None``.

    Raises:
        BadInputError: a number is less than 1 or more than there are.
    """
    if num_nodes is not None:
        _at_least_one(num_nodes, "--num_nodes")
        if num_nodes > len(pool):
            raise BadInputError(
                f"{num_nodes} nodes are asked for, there {_are(len(pool))}", hint=listed(pool), where="--num_nodes"
            )
    if num_gpus is not None:
        _at_least_one(num_gpus, "--num_gpus")
    taken = dict(list(pool.items())[:num_nodes])
    for host, slots in taken.items():
        if num_gpus is not None and num_gpus > len(slots):
            raise BadInputError(
                f"{num_gpus} slots are asked for on each node, {host} has {len(slots)}", where="--num_gpus"
            )
    return {host: slots[:num_gpus] for host, slots in taken.items()}


def local_aliases(pool_name: str = "localhost") -> dict[str, str]:
    """This machine's names and loopback addresses, each with the pool's name for it.

    Nothing is asked of the network: a resolver that does not answer would cost seconds.
    """
    node = os.uname().nodename
    return dict.fromkeys((node, node.partition(".")[0], "localhost", "127.0.0.1", "::1"), pool_name)


def _node(text: str, where: str) -> NodeFilter:
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        address, percent, zone = host.partition("%")
        well_formed = ":" in address and _IN_IPV6.issuperset(address) and (not percent or _is_word(zone))
        if not (bracket and well_formed):
            raise _malformed(text, "brackets stand only around an IPv6 address, as in [fe80::1]:0,2", where)
        colon, slots = rest[:1], rest[1:]
        if colon not in ("", ":"):
            raise _malformed(text, "after ']' comes ':' and the slots, or nothing", where)
    else:
        host, colon, slots = text.partition(":")
        host = host.strip()
        # A dash at the beginning would be read as an option by ssh and its kin.
        if not _is_word(host.translate(_NO_BRACKETS)) or host.startswith("-"):
            raise _malformed(text, "it must be NODE or NODE:SLOT,SLOT; nodes are separated by '@'", where)
        if ":" in slots:
            raise _malformed(text, "after ':' come slots and commas; IPv6 stands in brackets: [fe80::1]:0,2", where)
    if not colon:
        return NodeFilter(host)
    words = tuple(slot.strip() for slot in slots.split(","))
    if not all(map(_is_word, words)):
        raise _malformed(text, "after ':' come the slots, separated by commas, as in worker-0:0,2", where)
    return NodeFilter(host, words)


def _expanded(node: NodeFilter, where: str) -> tuple[NodeFilter, ...]:
    """The nodes of a node set (``node[01-16]:0``), each with the set's slots."""
    if "[" not in node.host and "]" not in node.host:
        return (node,)
    from bireme.resources.hostfile import node_set

    names = node_set(node.host, where, "it must be NODE or NODE:SLOT,SLOT; a set is node[01-16]")
    return tuple(node.replace(host=name) for name in names)


def _is_word(text: str) -> bool:
    return bool(text) and text.isprintable() and " " not in text and _SEPARATORS.isdisjoint(text)


def _malformed(text: str, hint: str, where: str) -> BadInputError:
    return BadInputError(f"{_quoted(text)} is not a node and its slots", hint=hint, where=where)


def _known_host(pool: Mapping[str, tuple[str, ...]], host: str, aliases: Mapping[str, str], where: str) -> str:
    for name in (host, aliases.get(host, host)):
        if name in pool:
            return name
    raise BadInputError(f"there is no node {_quoted(host)}", hint=f"there are: {listed(pool)}", where=where)


def _known_slot(
    pool: Mapping[str, tuple[str, ...]], host: str, slot: str, aliases: Mapping[str, str], where: str
) -> str:
    number = (slot.lstrip("0") or "0") if slot.isdecimal() else slot  # DeepSpeed reads 03 as 3
    for name in (slot, number, aliases.get(slot, slot)):
        if name in pool[host]:
            return name
    raise BadInputError(
        f"node {host} has no slot {_quoted(slot)}", hint=f"its slots are: {listed(pool[host])}", where=where
    )


def _at_least_one(number: int, where: str) -> None:
    if number < 1:
        raise BadInputError(f"{number} is too few: at least 1 is needed", where=where)


def _summary(pool: Mapping[str, tuple[str, ...]]) -> str:
    return listed((f"{host}:{','.join(slots)}" for host, slots in pool.items()), most=4)


def _are(number: int) -> str:
    return "is 1" if number == 1 else f"are {number}"


def _quoted(text: str) -> str:
    """The user's text, on one line and of a bearable length whatever is in it."""
    return repr(text if len(text) <= 60 else text[:57] + "...")
