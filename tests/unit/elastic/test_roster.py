"""Which nodes take part, and when the others are probed."""

from __future__ import annotations

import string

from hypothesis import given
from hypothesis import strategies as st

from bireme.elastic.roster import FIRST_LOOK, Roster


def roster(names="abcd", min_nodes=2, max_nodes=None, interval=30.0) -> Roster:
    return Roster(names, min_nodes=min_nodes, max_nodes=max_nodes, interval=interval)


def test_all_are_invited_in_the_pools_order():
    assert roster().invited() == tuple("abcd")


def test_at_most_the_most_and_those_that_work_stay():
    nodes = roster(max_nodes=2)
    assert nodes.invited() == ("a", "b")
    nodes.working(("a", "b"))
    nodes.lose("a", "dead", 0)
    assert nodes.invited() == ("b", "c"), "a spare takes its place"
    nodes.working(("b", "c"))
    nodes.find("a", 0)
    assert nodes.invited() == ("b", "c"), "who works is not sent away for one that has come back"
    assert not nodes.has_room


def test_one_that_is_gone_is_looked_for_later_and_later():
    nodes = roster(interval=5)
    nodes.lose("b", "dead", 100)
    now, waits = 100.0, []
    for _ in range(5):
        look = nodes.next_look()
        assert look is not None
        waits.append(look - now)
        now = look
        assert nodes.due(now) == ("b",) and nodes.due(now - 0.01) == ()
        nodes.missed("b", now)
    assert waits == [FIRST_LOOK, 2, 4, 5, 5]
    nodes.find("b", 0)
    assert nodes.next_look() is None and nodes.present == tuple("abcd")


def test_one_that_is_lost_again_and_again_is_left_alone_for_longer_each_time():
    nodes, waits = roster(interval=5), []
    for _ in range(6):
        nodes.lose("c", "flaps", 0)
        waits.append(nodes.next_look())
        nodes.find("c", 0)
    assert waits == [1, 2, 4, 8, 16, 32], "not bounded by the interval: each time it stops the others"
    nodes.lose("c", "flaps", 0)
    nodes.missed("c", 64)
    assert nodes.next_look() == 64 + 64


def test_it_says_how_many_are_lacking_and_why():
    nodes = roster(min_nodes=3)
    nodes.lose("a", "no sign of life", 0)
    assert nodes.lacking == 0
    nodes.drain("d")
    assert nodes.lacking == 1
    assert nodes.missing() == "a (no sign of life), d (drained)"


def test_drained_is_not_looked_for_until_it_is_called_back():
    nodes = roster()
    assert nodes.drain("b") and not nodes.drain("b")
    nodes.lose("b", "its ranks were stopped", 0)
    assert nodes.next_look() is None and nodes.invited() == ("a", "c", "d")
    assert nodes.call_back("b", 10) and not nodes.call_back("b", 10)
    assert nodes.due(10) == ("b",)


def test_nodes_that_are_added():
    nodes = roster("ab")
    assert nodes.add("abc", 5) == ("c",)
    assert nodes.due(5) == ("c",) and nodes.present == ("a", "b")
    nodes.find("c", 0)
    assert nodes.invited() == tuple("abc")


def test_only_a_time_in_which_it_was_there_is_healthy():
    """However long it was left alone, one that goes at once when it has come is left alone for longer."""
    nodes = Roster("ab", min_nodes=1, max_nodes=None, interval=30.0, window=100.0)
    now, waits = 0.0, []
    for _ in range(12):
        nodes.lose("a", "flaps", now)
        waits.append(nodes.next_look() - now)
        now = nodes.next_look()
        nodes.find("a", now)
        now += 1
    assert waits == [2.0**number for number in range(12)]
    nodes.lose("a", "at last", now + 100)
    assert nodes.next_look() == now + 101


def test_why_it_is_not_taken_in():
    nodes = roster()
    nodes.lose("a", "no sign of life", 0)
    assert not nodes.missed("a", 1) and "no sign of life" in nodes.missing()
    assert nodes.missed("a", 2, "no driver") and not nodes.missed("a", 3, "no driver")
    assert nodes.missing() == "a (no driver)"
    assert nodes.missed("a", 4, "another version")


def test_a_name_that_is_none_of_its_nodes():
    nodes = roster()
    nodes.lose("z", "never seen", 0)
    nodes.missed("z", 0)
    nodes.find("z", 0)
    assert nodes.present == tuple("abcd") and nodes.next_look() is None


WHAT = st.sampled_from(("lose", "missed", "find", "drain", "call_back", "working"))
EVENT = st.tuples(WHAT, st.sampled_from(string.ascii_letters[:6]))


@given(st.lists(EVENT, max_size=40), st.integers(1, 4), st.one_of(st.none(), st.integers(1, 6)))
def test_whatever_happens(events, min_nodes, max_nodes):
    nodes = roster("abcdef", min_nodes, max_nodes)
    drained: set[str] = set()
    for now, (what, name) in enumerate(events):
        if what in ("lose",):
            nodes.lose(name, "why", now)
        elif what in ("missed", "find", "call_back"):
            getattr(nodes, what)(name, now)
        elif what == "working":
            nodes.working(nodes.invited())
        else:
            getattr(nodes, what)(name)
        if what == "drain":
            drained.add(name)
        elif what == "call_back":
            drained.discard(name)
        invited = nodes.invited()
        assert not drained & set(invited) and set(invited) <= set(nodes.present)
        assert len(invited) == min(len(nodes.present), max_nodes or 6)
        assert (nodes.lacking == 0) == (len(nodes.present) >= min_nodes)
        look = nodes.next_look()
        absent = set("abcdef") - set(nodes.present) - drained
        assert (look is None) == (not absent)
        assert look is None or nodes.due(look)
