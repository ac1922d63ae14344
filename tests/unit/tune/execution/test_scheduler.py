"""The scheduler's rules: which task is first, which tasks wait, and what a lost node means."""

from __future__ import annotations

import pytest

from bireme.tune.execution.slot_scheduler import Scheduler, Shape, SlotReservation, Task

TWO = {"a": ("0", "1"), "b": ("0", "1")}


def scheduled(pool, *tasks: Task, **ways) -> tuple[Scheduler, list[str]]:
    """A scheduler with these tasks, and what starts."""
    scheduler = Scheduler(pool, **ways)
    for task in tasks:
        scheduler.submit(task)
    return scheduler, started(scheduler)


def started(scheduler: Scheduler) -> list[str]:
    return [f"{start.task.key} {start.reservation.include()}" for start in scheduler.decide()]


def test_nobody_passes_the_head():
    tasks = (Task("one", Shape(1, 1)), Task("wide", Shape(2, 2)), Task("small", Shape(1, 1)))
    scheduler, starts = scheduled(TWO, *tasks)
    assert starts == ["one a:0"]
    assert scheduler.queued == ("wide", "small")
    assert started(scheduler) == []
    scheduler.ended("one")
    assert started(scheduler) == ["wide a:0,1@b:0,1"]
    scheduler.ended("wide")
    assert started(scheduler) == ["small a:0"]


def test_behind_the_head_nothing_is_taken_that_it_could_need():
    pool = {"a": ("0", "1"), "b": ("0", "1", "2"), "c": ("0",)}
    tasks = [Task("x", Shape(1, 2)), Task("y", Shape(1, 2)), Task("head", Shape(1, 2))]
    tasks += [Task(f"small{number}", Shape(1, 1)) for number in range(3)]
    scheduler, starts = scheduled(pool, *tasks, backfill=True)
    assert starts == ["x a:0,1", "y b:0,1", "small0 c:0"]
    scheduler.ended("y")
    assert started(scheduler) == ["head b:0,1", "small1 b:2"]


def test_the_widest_is_first():
    tasks = [
        Task("small", Shape(1, 1)),
        Task("wide", Shape(2, 1)),
        Task("deep", Shape(1, 3)),
        Task("last", Shape(1, 1)),
    ]
    scheduler, _ = scheduled({"a": ()}, *tasks, order="longest")
    assert scheduler.queued == ("deep", "wide", "small", "last")


def test_whole_nodes_are_left_whole():
    pool = {"a": ("0", "1", "2", "3"), "b": ("0", "1"), "c": ("0", "1", "2", "3")}
    scheduler, _ = scheduled(pool, *(Task(str(number), Shape(1, 1)) for number in range(3)), order="longest")
    scheduler.submit(Task("wide", Shape(1, 4)))
    running = [f"{key} {start.reservation.include()}" for key, start in scheduler.running.items()]
    assert running == ["0 b:0", "1 b:1", "2 a:0"] and started(scheduler) == ["wide c:0,1,2,3"]


# -- nodes that are lost -----------------------------------------------------------------------------------------------


def test_a_lost_node_gives_nothing_and_its_tasks_keep_the_others_until_they_have_ended():
    scheduler, _ = scheduled(TWO, Task("wide", Shape(2, 1)), Task("next", Shape(1, 2)))
    assert scheduler.lost("a") == ("wide",)
    assert scheduler.free == {"b": ("1",)}
    assert started(scheduler) == []
    scheduler.ended("wide")
    assert started(scheduler) == ["next b:0,1"]
    scheduler.back("a")
    assert scheduler.free == {"a": ("0", "1"), "b": ()}


def test_a_node_that_comes_back_too_early_does_not_give_what_is_still_held():
    scheduler, _ = scheduled(TWO, Task("one", Shape(1, 1)))
    scheduler.lost("a")
    scheduler.back("a")
    assert scheduler.free["a"] == ("1",)


def test_who_cannot_start_any_more_stands_aside():
    scheduler, _ = scheduled(TWO, Task("one", Shape(1, 1)))
    scheduler.submit(Task("wide", Shape(2, 2)))
    scheduler.submit(Task("small", Shape(1, 1)))
    assert started(scheduler) == []
    scheduler.lost("b")
    assert scheduler.stuck == ("wide",)
    assert scheduler.impossible(Shape(2, 2)) == ""
    assert started(scheduler) == ["small a:1"]
    scheduler.back("b")
    assert scheduler.stuck == ()
    scheduler.submit(Task("later", Shape(1, 1)))
    assert started(scheduler) == []  # the wide one is at the front again
    scheduler.ended("one")
    scheduler.ended("small")
    assert started(scheduler) == ["wide a:0,1@b:0,1"]


def test_what_no_pool_could_carry_is_said_and_holds_up_nobody():
    scheduler, starts = scheduled(TWO, Task("huge", Shape(1, 3)), Task("one", Shape(1, 1)))
    assert starts == ["one a:0"]
    assert scheduler.stuck == ("huge",)
    assert "no node has more than 2" in scheduler.impossible(Shape(1, 3))


def test_hosts_are_avoided_while_there_are_others():
    avoid = frozenset({"a", "elsewhere"})
    scheduler, starts = scheduled(TWO, Task("again", Shape(1, 1), avoid=avoid), Task("one", Shape(1, 1)))
    assert starts == ["again b:0", "one a:0"]
    scheduler.ended("again")
    scheduler.lost("b")
    scheduler.submit(Task("again", Shape(1, 1), avoid=avoid))
    assert started(scheduler) == ["again a:1"]
    _, starts = scheduled(TWO, Task("both", Shape(2, 1), avoid=avoid))
    assert starts == ["both a:0@b:0"]


# -- misuse ------------------------------------------------------------------------------------------------------------


def test_keys_are_names():
    scheduler, _ = scheduled(TWO, Task("runs", Shape(2, 2)), Task("waits", Shape(1, 1)))
    for key in ("runs", "waits"):
        with pytest.raises(ValueError, match=f"task '{key}' is already waiting or running"):
            scheduler.submit(Task(key, Shape(1, 1)))
    for wrong in (
        lambda: scheduler.withdraw("runs"),
        lambda: scheduler.ended("waits"),
        lambda: scheduler.lost("x"),
        lambda: scheduler.back("x"),
    ):
        with pytest.raises(KeyError):
            wrong()
    with pytest.raises(ValueError, match="unknown order: 'shortest'"):
        Scheduler(TWO, order="shortest")


def test_a_pinned_task_gets_its_slots_or_waits_for_them():
    """What is compared in pairs runs on the same slots."""
    second = SlotReservation((("b", ("1",)),))
    scheduler, starts = scheduled(TWO, Task("pinned", Shape(1, 1), pinned=second), Task("other", Shape(1, 1)))
    assert starts == ["pinned b:1", "other a:0"]
    scheduler.submit(Task("again", Shape(1, 1), pinned=second))
    assert started(scheduler) == []  # other slots are free
    scheduler.lost("b")
    scheduler.ended("pinned")
    assert started(scheduler) == [] and scheduler.stuck == ("again",)
    scheduler.back("b")
    assert started(scheduler) == ["again b:1"]


def test_behind_a_pinned_head_the_others_keep_off_its_slots():
    pinned = SlotReservation((("a", ("0", "1")),))
    scheduler, starts = scheduled(TWO, Task("one", Shape(1, 1)), backfill=True)
    assert starts == ["one a:0"]
    scheduler.submit(Task("pinned", Shape(1, 2), pinned=pinned))
    for number in range(3):
        scheduler.submit(Task(f"small{number}", Shape(1, 1)))
    assert started(scheduler) == ["small0 b:0", "small1 b:1"]  # a:1 is kept
    scheduler.ended("one")
    assert started(scheduler) == ["pinned a:0,1"]
