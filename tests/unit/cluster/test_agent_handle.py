"""How the runner recognises an agent that has connected, and which of its data it uses."""

from __future__ import annotations

import time

import pytest

from bireme.backends.base import HostLaunch
from bireme.cluster.agent_handle import AgentHandle, allocation_of, find_agent

MEMBERS = [
    AgentHandle(index, HostLaunch(f"192.0.2.{index + 1}", None, None, local=False), None, time.monotonic)
    for index in range(3)
]


@pytest.mark.parametrize(
    ("who", "index"),
    [
        ({"name": "192.0.2.2"}, 1),
        ({"hostname": "elsewhere", "addresses": "192.0.2.3,10.0.0.1"}, 2),
        ({"hostname": "elsewhere", "place": "1"}, 1),
        ({"hostname": "elsewhere", "place": "3"}, None),
        ({"hostname": "elsewhere", "place": "-1"}, None),
        ({"hostname": "elsewhere", "place": "9" * 5000}, None),
        ({}, None),
    ],
    ids=["name", "address", "place", "no place", "negative", "endless", "nothing"],
)
def test_which_node_it_is(who: dict[str, str], index: int | None) -> None:
    found = find_agent(MEMBERS, who)
    assert found is (None if index is None else MEMBERS[index])


def test_an_allocation_is_a_number() -> None:
    """Not an option of the command that gives it back."""
    assert allocation_of({"allocation": "4711"}) == "4711"
    for word in ("--user=me", "-u", "1 2", "1,2", ""):
        assert allocation_of({"allocation": word}) == ""
    assert allocation_of({}) == ""
