"""Cores, and how they are shared among the ranks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bireme.errors import BadInputError
from bireme.resources.cores import allowed_cores, parse_core_list, physical_cores, split_cores

EIGHT = range(8)


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("0", (0,)),
        ("0,2-5", (0, 2, 3, 4, 5)),
        ("3-3", (3,)),
        ("6-7,0", (6, 7, 0)),
        (" 0 , 2 - 3 ", (0, 2, 3)),
    ],
)
def test_core_lists(text: str, cores: tuple[int, ...]) -> None:
    assert parse_core_list(text, EIGHT) == cores


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a core"),
        ("0,", "is not a core"),
        ("a", "is not a core"),
        ("-1", "is not a core"),
        ("1-", "is not a core"),
        ("1-2-3", "is not a core"),
        ("0x2", "is not a core"),
        ("²", "is not a core"),
        ("5-2", "is reversed"),
        ("1,0-2", "core 1 is listed twice"),
        ("8", "core 8 is not available"),
        ("0-999999999", "core 8 is not available"),
        ("9" * 5000, "is not a core"),
    ],
)
def test_core_lists_that_are_refused(text: str, message: str) -> None:
    with pytest.raises(BadInputError, match=message) as caught:
        parse_core_list(text, EIGHT)
    assert caught.value.where == "--bind_core_list"


def test_the_error_tells_which_cores_may_be_used() -> None:
    with pytest.raises(BadInputError, match="0-2,8"):
        parse_core_list("5", {0, 1, 2, 8})


def test_without_a_set_the_process_own_cores_count() -> None:
    mine = sorted(os.sched_getaffinity(0))
    assert parse_core_list(",".join(map(str, mine))) == tuple(mine)
    with pytest.raises(BadInputError):
        parse_core_list(str(max(mine) + 1))


@settings(deadline=None)
@given(st.one_of(st.text(), st.text("0123456789,- ", max_size=12)))
def test_every_string_is_accepted_or_refused(text: str) -> None:
    try:
        cores = parse_core_list(text, EIGHT)
    except BadInputError as error:
        assert len(str(error).splitlines()) <= 2
    else:
        assert cores and len(set(cores)) == len(cores) and set(cores) <= set(EIGHT)


def test_a_system_that_cannot_bind_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    with pytest.raises(BadInputError, match="cannot bind"):
        allowed_cores()


def tree(root: Path, cores: dict[int, tuple[int, int, str]], nodes: dict[int, str] | None = None) -> str:
    """A fake /sys: for each core its package, its number there and its siblings."""
    for core, (package, number, siblings) in cores.items():
        topology = root / f"sys/devices/system/cpu/cpu{core}/topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text(f"{package}\n")
        (topology / "core_id").write_text(f"{number}\n")
        (topology / "thread_siblings_list").write_text(f"{siblings}\n")
    for node, members in (nodes or {}).items():
        (root / f"sys/devices/system/node/node{node}").mkdir(parents=True)
        (root / f"sys/devices/system/node/node{node}/cpulist").write_text(f"{members}\n")
    return str(root)


def test_one_thread_of_each_core(tmp_path: Path) -> None:
    # As many servers count: first one thread of every core, packages alternating, then the others.
    root = tree(
        tmp_path,
        {
            0: (0, 0, "0,4"),
            1: (1, 0, "1,5"),
            2: (0, 1, "2,6"),
            3: (1, 1, "3,7"),
            4: (0, 0, "0,4"),
            5: (1, 0, "1,5"),
            6: (0, 1, "2,6"),
            7: (1, 1, "3,7"),
        },
    )
    assert physical_cores(set(range(8)), root) == (0, 2, 1, 3)
    assert physical_cores({4, 5, 6, 7}, root) == (4, 6, 5, 7), "the first that is allowed"
    assert physical_cores({0, 4, 6}, root) == (0, 6)


def test_siblings_written_as_a_range(tmp_path: Path) -> None:
    root = tree(tmp_path, {0: (0, 0, "0-1"), 1: (0, 0, "0-1"), 2: (0, 1, "2-3"), 3: (0, 1, "2-3")})
    assert physical_cores({0, 1, 2, 3}, root) == (0, 2)


def test_cores_of_a_numa_node_stay_together(tmp_path: Path) -> None:
    cores = {core: (0, core, str(core)) for core in range(4)}
    root = tree(tmp_path, cores, {0: "0,2", 1: "1,3", 2: ""})
    assert physical_cores({0, 1, 2, 3}, root) == (0, 2, 1, 3)


def test_a_core_about_which_nothing_is_told_counts(tmp_path: Path) -> None:
    assert physical_cores({5, 3, 11}, str(tmp_path)) == (3, 5, 11)


def test_this_machine() -> None:
    mine = allowed_cores()
    cores = physical_cores(mine)
    assert cores and set(cores) <= mine and len(set(cores)) == len(cores)


def test_shares() -> None:
    assert split_cores((0, 1, 2, 3), 2) == ((0, 1), (2, 3))
    assert split_cores((4, 6, 5, 7, 9), 2) == ((4, 6), (5, 7))
    assert split_cores((0, 1), 2) == ((0,), (1,))
    with pytest.raises(BadInputError, match=r"3 ranks .* 2 available"):
        split_cores((0, 1), 3)


@settings(deadline=None)
@given(st.lists(st.integers(0, 500), unique=True, min_size=1, max_size=64).map(tuple), st.integers(1, 64))
def test_shares_are_even_and_contiguous(cores: tuple[int, ...], ranks: int) -> None:
    if ranks > len(cores):
        return
    shares = split_cores(cores, ranks)
    assert len(shares) == ranks
    assert len({len(share) for share in shares}) == 1
    joined = tuple(core for share in shares for core in share)
    assert joined == cores[: len(joined)] and len(cores) - len(joined) < ranks
