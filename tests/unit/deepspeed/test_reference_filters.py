"""Pools and filters under DeepSpeed's names: arguments, results, and errors."""

from __future__ import annotations

import pytest

from bireme.deepspeed import runner

SLOTS = {"worker-0": [0, 1, 2, 3], "worker-1": [0, 1, 2, 3]}

LEFT = {
    ("worker-1:0,3", ""): {"worker-1": [0, 3]},
    ("worker-1:3,0", ""): {"worker-1": [0, 3]},
    ("worker-1@worker-0:0", ""): {"worker-0": [0], "worker-1": [0, 1, 2, 3]},
    ("worker-0:1,1", ""): {"worker-0": [1]},
    ("worker-0:1@worker-0:0,1", ""): {"worker-0": [0, 1]},
    ("worker-0:1@worker-0", ""): {"worker-0": [1]},
    ("worker-[0-1]:2", ""): {"worker-0": [2], "worker-1": [2]},
    ("", "worker-1"): {"worker-0": [0, 1, 2, 3]},
    ("", "worker-0:0,1@worker-1:3"): {"worker-0": [2, 3], "worker-1": [0, 1, 2]},
    ("", "worker-0:0,1,2,3"): {"worker-1": [0, 1, 2, 3]},
    ("", "worker-0@worker-1"): {},
}


@pytest.mark.parametrize(("include", "exclude"), LEFT)
def test_filter(include: str, exclude: str) -> None:
    left = runner.parse_resource_filter(SLOTS, include, exclude)
    assert left == LEFT[include, exclude]
    assert list(left) == [host for host in SLOTS if host in left]
    counted = runner.parse_inclusion_exclusion({"worker-0": 4, "worker-1": 4}, include, exclude)
    assert counted == left


def test_no_filter() -> None:
    assert runner.parse_resource_filter(SLOTS) is SLOTS
    assert runner.parse_inclusion_exclusion({"a": 2, "b": 1}, "", "") == {"a": [0, 1], "b": [0]}


def test_the_pool_is_left_alone() -> None:
    pool = {"a": [0, 1], "b": [0]}
    runner.parse_resource_filter(pool, exclude_str="a:0@b")
    assert pool == {"a": [0, 1], "b": [0]}


REFUSED = {
    "jeff": "Hostname 'jeff' not found",
    "worker-0@jeff:0": "Hostname 'jeff' not found",
    "worker-1:4": "No slot '4' specified on host 'worker-1'",
    "worker-1:0,99": "No slot '99' specified on host 'worker-1'",
    "worker-1:x": "No slot 'x'",
    "worker-1@worker-0:1@5": "Hostname '5' not found",
    "worker-1:": "slots",
    "@": "NODE",
}


@pytest.mark.parametrize("text", REFUSED)
def test_refused(text: str) -> None:
    for filters in ((text, ""), ("", text)):
        with pytest.raises(ValueError, match=REFUSED[text]):
            runner.parse_resource_filter(SLOTS, *filters)


def test_both_filters_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot be used with"):
        runner.parse_resource_filter({}, include_str="a", exclude_str="b")


def test_node_configs() -> None:
    assert runner.parse_node_config("a") == ("a", [])
    assert runner.parse_node_config("a:3,0") == ("a", [3, 0])
    assert runner.parse_node_config_list("a:3,0@b@a:0") == {"a": [0, 3], "b": []}
    for text in ("a:", "a:x", "a:0:1"):
        with pytest.raises(ValueError):
            runner.parse_node_config(text)


def test_numbers() -> None:
    assert runner.apply_num_nodes_and_gpus(SLOTS, -1, -1) == SLOTS
    assert runner.apply_num_nodes_and_gpus(SLOTS, 1, -1) == {"worker-0": [0, 1, 2, 3]}
    assert runner.apply_num_nodes_and_gpus(SLOTS, -1, 2) == {"worker-0": [0, 1], "worker-1": [0, 1]}
    for numbers in ((3, -1), (-1, 5)):
        with pytest.raises(ValueError, match="requested"):
            runner.apply_num_nodes_and_gpus(SLOTS, *numbers)


# -- hostfiles ---------------------------------------------------------------------------------------

HOSTFILE = """
  # the cluster
  worker-1 slots=2

  alice@worker-2 slots=3
  localhost slots=1   # here
  123.23.12.10 slots=2
  rack[1-2] slots=8
"""
POOL = {"worker-1": 2, "alice@worker-2": 3, "localhost": 1, "123.23.12.10": 2, "rack1": 8, "rack2": 8}


def test_hostfile(tmp_path) -> None:
    path = tmp_path / "hostfile"
    for ends in ("\n", "\r\n"):
        path.write_bytes(HOSTFILE.replace("\n", ends).encode())
        pool = runner.fetch_hostfile(str(path))
        assert pool == POOL
        assert list(pool) == list(POOL)
    assert runner._parse_hostfile(HOSTFILE.splitlines()) == POOL
    assert runner._parse_hostfile(HOSTFILE.splitlines(keepends=True)) == POOL


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "the hostfile names no hosts"),
        ("# nobody\n\n", "the hostfile names no hosts"),
        ("worker-1 slots=2\nworker-1 slots=1\n", "hostfile:2"),
        ("this is bad slots=1\n", "hostfile:1"),
        ("worker-1 slots=2\nmissingslots\n", "hostfile:2: missingslots has no slots=N"),
        ("worker-1 slots=two\n", "hostfile:1"),
        ("worker-1 4\n", "hostfile:1"),
    ],
)
def test_bad_hostfile(text: str, what: str, tmp_path) -> None:
    with pytest.raises(ValueError) as refused:
        runner._parse_hostfile(text.splitlines())
    assert what in str(refused.value)
    (tmp_path / "hostfile").write_text(text)
    with pytest.raises(ValueError):
        runner.fetch_hostfile(str(tmp_path / "hostfile"))


def test_no_hostfile(tmp_path, capfd) -> None:
    assert runner.fetch_hostfile(str(tmp_path / "absent")) is None
    assert "no hostfile" in capfd.readouterr().err
