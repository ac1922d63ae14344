"""The grammar of filters, and what they leave of a pool."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bireme.cluster.node_selection import DeclaredPool, select
from bireme.errors import BadInputError
from bireme.job import JobSpec, Program
from bireme.resources.filters import NodeFilter, apply_filters, local_aliases, parse_filter, take
from bireme.resources.hostfile import HostEntry
from bireme.resources.pool import Pool, listed

POOL: Pool = {"worker-0": ("0", "1", "2", "3"), "worker-1": ("0", "1", "2", "3")}
ALL = ("0", "1", "2", "3")

# What DeepSpeed answers for the pool above; the pairs were checked against it.
GOLDEN_INCLUDE = [
    ("worker-0", {"worker-0": ALL}),
    ("worker-1:2", {"worker-1": ("2",)}),
    ("worker-1:3,0", {"worker-1": ("0", "3")}),
    ("worker-1:0,0,2,2", {"worker-1": ("0", "2")}),
    ("worker-0@worker-1:0,2", {"worker-0": ALL, "worker-1": ("0", "2")}),
    ("worker-1@worker-0", {"worker-0": ALL, "worker-1": ALL}),
    ("worker-1:1@worker-0:3", {"worker-0": ("3",), "worker-1": ("1",)}),
    ("worker-1:0@worker-1:2", {"worker-1": ("0", "2")}),
    ("worker-1@worker-1", {"worker-1": ALL}),
    ("worker-0:01,003", {"worker-0": ("1", "3")}),
    ("worker-0: 1, 2", {"worker-0": ("1", "2")}),
]
GOLDEN_EXCLUDE = [
    ("worker-0", {"worker-1": ALL}),
    ("worker-1:0", {"worker-0": ALL, "worker-1": ("1", "2", "3")}),
    ("worker-1:3,0", {"worker-0": ALL, "worker-1": ("1", "2")}),
    ("worker-1:0,1,2,3", {"worker-0": ALL}),
    ("worker-0@worker-1:0,2", {"worker-1": ("1", "3")}),
    ("worker-0:0@worker-0:1", {"worker-0": ("2", "3"), "worker-1": ALL}),
]
REFUSED_BY_BOTH = [
    "jeff",
    "worker-0:4",
    "worker-0:0,4",
    "worker-0@jeff",
    "worker-0:",
    "worker-0:0,",
    "worker-0:,0",
    "worker-0:x",
    "worker-0:0:1",
    "@worker-0",
    "worker-0@",
    "worker-0@@worker-1",
    "worker-0,worker-1",
    ":0",
    "@",
    " ",
]


def apply_one(pool: Pool, option: str, text: str) -> Pool:
    return apply_filters(pool, include=text) if option == "include" else apply_filters(pool, exclude=text)


@pytest.mark.parametrize(("text", "left"), GOLDEN_INCLUDE)
def test_include_as_the_reference(text: str, left: Pool) -> None:
    result = apply_filters(POOL, include=text)
    assert result == left
    assert list(result) == list(left), "hosts come in the pool's order"


@pytest.mark.parametrize(("text", "left"), GOLDEN_EXCLUDE)
def test_exclude_as_the_reference(text: str, left: Pool) -> None:
    assert apply_filters(POOL, exclude=text) == left


@pytest.mark.parametrize("text", REFUSED_BY_BOTH)
@pytest.mark.parametrize("option", ["include", "exclude"])
def test_refused_as_by_the_reference(text: str, option: str) -> None:
    with pytest.raises(BadInputError) as caught:
        apply_one(POOL, option, text)
    assert caught.value.where == f"--{option}"
    assert len(str(caught.value).splitlines()) <= 2


def test_no_filter_changes_nothing() -> None:
    assert apply_filters(POOL) == POOL
    assert apply_filters({"a": ("0",), "idle": ()}) == {"a": ("0",)}


def test_a_whole_node_beside_its_slots_is_the_whole_node() -> None:
    assert apply_filters(POOL, include="worker-0@worker-0:0") == {"worker-0": ALL}
    assert apply_filters(POOL, exclude="worker-0:0@worker-0") == {"worker-1": ALL}


def test_both_filters_are_refused() -> None:
    with pytest.raises(BadInputError, match="cannot be used with"):
        apply_filters(POOL, include="worker-0", exclude="worker-1")


def test_excluding_everything_is_refused() -> None:
    with pytest.raises(BadInputError, match="no slots left") as caught:
        apply_filters(POOL, exclude="worker-0@worker-1:0,1,2,3")
    assert caught.value.where == "--exclude"
    with pytest.raises(BadInputError, match="no slots left"):
        apply_filters({})


def test_errors_name_what_is_wrong_and_what_there_is() -> None:
    with pytest.raises(BadInputError) as caught:
        apply_filters(POOL, include="worker-7")
    assert str(caught.value) == "--include: no such node in the pool: 'worker-7'\n  nodes: worker-0, worker-1"
    with pytest.raises(BadInputError) as caught:
        apply_filters(POOL, exclude="worker-1:9")
    assert str(caught.value) == "--exclude: node worker-1 has no slot '9'\n  its slots: 0, 1, 2, 3"
    with pytest.raises(BadInputError) as caught:
        apply_filters({f"n{n}": ("0",) for n in range(500)}, include="x" * 9999)
    assert "and 484 more" in str(caught.value)
    assert max(map(len, str(caught.value).splitlines())) < 200
    with pytest.raises(BadInputError, match=r"\[fe80::1\]:0,2"):
        apply_filters(POOL, include="fe80::1:0")


def test_slots_are_opaque_words() -> None:
    mig = "MIG-GPU-8932f937-d72c-4106-c12f-20bd9faed9f6/1/0"
    pool: Pool = {"a": ("GPU-8932f937", mig, "0.1", "7")}
    assert apply_filters(pool, include=f"a:7,{mig}") == {"a": (mig, "7")}
    assert apply_filters(pool, exclude="a:GPU-8932f937,0.1") == {"a": (mig, "7")}
    with pytest.raises(BadInputError, match="no slot 'gpu-8932f937'"):
        apply_filters(pool, include="a:gpu-8932f937")
    assert apply_filters({"a": ("07", "7")}, include="a:07") == {"a": ("07",)}, "what is there by this name goes first"


def test_other_names_of_slots() -> None:
    pool: Pool = {"localhost": ("0", "1")}
    names = {"GPU-aa": "0", "GPU-bb": "1"}
    assert apply_filters(pool, include="localhost:GPU-bb", slot_aliases=names) == {"localhost": ("1",)}
    with pytest.raises(BadInputError, match="no slot 'GPU-cc'"):
        apply_filters(pool, include="localhost:GPU-cc", slot_aliases=names)


def test_ipv6_hosts_stand_in_brackets() -> None:
    pool: Pool = {"fe80::1": ("0", "1", "2"), "fe80::2%eth0": ("0",), "10.0.0.1": ("0",)}
    assert apply_filters(pool, include="[fe80::1]:0,2@10.0.0.1") == {"fe80::1": ("0", "2"), "10.0.0.1": ("0",)}
    assert apply_filters(pool, exclude="[fe80::1]@[fe80::2%eth0]:0") == {"10.0.0.1": ("0",)}
    for text in ("[fe80::1", "[fe80::1]0", "[worker-0]", "[01-16]", "[]", "[fe80::1%]", "[g::]", "node[01-", "a]"):
        with pytest.raises(BadInputError):
            parse_filter(text)


def test_node_sets_stand_for_their_nodes() -> None:
    pool: Pool = {f"node{n:02}": ("0", "1") for n in range(1, 5)}
    assert apply_filters(pool, include="node[02-03]:1@node04") == {
        "node02": ("1",),
        "node03": ("1",),
        "node04": ("0", "1"),
    }
    assert list(apply_filters(pool, exclude="node[01,04]")) == ["node02", "node03"]
    with pytest.raises(BadInputError):
        apply_filters(pool, include="node[01-16]")


def test_a_host_that_looks_like_an_option_is_refused() -> None:
    with pytest.raises(BadInputError):
        parse_filter("-oProxyCommand=x")


def test_this_machines_names_mean_localhost() -> None:
    pool: Pool = {"localhost": ("0", "1")}
    node = os.uname().nodename
    for name in (node, node.split(".")[0], "localhost", "127.0.0.1", "[::1]"):
        assert apply_filters(pool, include=f"{name}:1", aliases=local_aliases()) == {"localhost": ("1",)}
    merged = apply_filters(pool, include="localhost:1@127.0.0.1:0", aliases=local_aliases())
    assert merged == {"localhost": ("0", "1")}
    with pytest.raises(BadInputError, match=r"no such node in the pool: '127\.0\.0\.1'"):
        apply_filters(POOL, include="127.0.0.1", aliases=local_aliases())


def test_a_host_of_the_pool_goes_before_an_alias() -> None:
    assert apply_filters({"a": ("0",), "b": ("0",)}, include="a", aliases={"a": "b"}) == {"a": ("0",)}


def test_take() -> None:
    assert take(POOL) == POOL
    assert take(POOL, 1) == {"worker-0": ALL}
    assert take(POOL, None, 2) == {"worker-0": ("0", "1"), "worker-1": ("0", "1")}
    assert take({"a": ("5", "7"), "b": ("1", "0")}, 2, 1) == {"a": ("5",), "b": ("1",)}
    # Only the nodes that are taken need to have the slots.
    assert take({"a": ("0", "1"), "b": ("0",)}, 1, 2) == {"a": ("0", "1")}


@pytest.mark.parametrize(
    ("nodes", "gpus", "message"),
    [
        (3, None, "--num_nodes: 3 nodes requested, 2 available"),
        (0, None, "--num_nodes: must be at least 1, not 0"),
        (-1, None, "--num_nodes: must be at least 1, not -1"),
        (None, 5, "--num_gpus: 5 slots per node requested, worker-0 has 4"),
        (None, 0, "--num_gpus: must be at least 1, not 0"),
    ],
)
def test_take_refuses(nodes: int | None, gpus: int | None, message: str) -> None:
    with pytest.raises(BadInputError) as caught:
        take(POOL, nodes, gpus)
    assert str(caught.value).startswith(message)


def test_pool_helpers() -> None:
    assert listed([]) == "none"
    assert listed(map(str, range(5)), most=3) == "0, 1, 2 and 2 more"


# --- any input at all -------------------------------------------------------------------------

WORD = st.text("abcXYZ019._-/é", min_size=1, max_size=8).filter(lambda word: not word.startswith("-"))
IPV6 = st.ip_addresses(v=6).map(str)
NODE = st.builds(NodeFilter, st.one_of(WORD, IPV6), st.lists(WORD, max_size=4).map(tuple))
NEAR_GRAMMAR = st.text("ab01:,@[]% -.\t\n\0", max_size=24)


@settings(deadline=None)
@given(st.one_of(st.text(), NEAR_GRAMMAR, st.text(st.characters(codec=None), max_size=12)))
def test_every_string_is_accepted_or_refused(text: str) -> None:
    pool: Pool = {"a": ("0", "1"), "b": ("0",), "::1": ("a",)}
    try:
        parsed = parse_filter(text)
    except BadInputError as error:
        assert len(str(error).splitlines()) <= 2
        parsed = ()
    for option in ("include", "exclude"):
        try:
            left = apply_one(pool, option, text)
        except BadInputError as error:
            assert len(str(error).splitlines()) <= 2
        else:
            assert parsed or not text
            assert left and all(left.values())
            assert list(left) == [host for host in pool if host in left]


@settings(deadline=None)
@given(st.lists(NODE, min_size=1, max_size=6))
def test_what_is_written_is_read_back(nodes: list[NodeFilter]) -> None:
    assert parse_filter("@".join(map(str, nodes))) == tuple(nodes)


POOLS = st.dictionaries(WORD, st.lists(WORD, min_size=1, max_size=5, unique=True).map(tuple), min_size=1, max_size=5)


@settings(deadline=None)
@given(POOLS, st.data())
def test_include_and_exclude_part_the_pool(pool: Pool, data: st.DataObject) -> None:
    picked = {
        host: data.draw(st.lists(st.sampled_from(slots), unique=True), label=host) for host, slots in pool.items()
    }
    text = "@".join(f"{host}:{','.join(slots)}" for host, slots in picked.items() if slots)
    if not text or all(len(picked[host]) == len(slots) for host, slots in pool.items()):
        return
    kept, rest = apply_filters(pool, include=text), apply_filters(pool, exclude=text)
    for host, slots in pool.items():
        assert sorted(kept.get(host, ()) + rest.get(host, ())) == sorted(slots)
        assert kept.get(host, ()) == tuple(slot for slot in slots if slot in picked[host])


@pytest.mark.parametrize("declared", [None, 2])
def test_slots_of_a_node_that_is_asked_for_its_own(declared: int | None) -> None:
    """The same are left of it, whether they are known before or only once it has answered."""
    spec = JobSpec(Program("train.py"), include="a:1")
    nodes = select(spec, DeclaredPool((HostEntry("a", slots=declared), HostEntry("b", slots=declared)), "--hosts"))
    assert nodes.names == ("a",)
    known = {name: ("0", "1") if slots is None else slots for name, slots in nodes.slots.items()}
    assert nodes.active(spec, known) == {"a": ("1",)}
