"""The scheduler's rules: which task is first, which tasks wait, and what a lost node means."""

from __future__ import annotations

import pytest

from bireme.tune.execution.slot_scheduler import Scheduler, Shape, SlotReservation, Task

TWO = {"a": ("0", "1"), "b": ("0", "1")}


def scheduled(pool, *tasks: Task, now: float = 0.0, **ways) -> tuple[Scheduler, list[str]]:
    """A scheduler with these tasks, and what starts."""
    scheduler = Scheduler(pool, **ways)
    for task in tasks:
        scheduler.submit(task)
    return scheduler, started(scheduler, now)


def started(scheduler: Scheduler, now: float) -> list[str]:
    return [f"{start.task.key} {start.reservation.include()}" for start in scheduler.decide(now)]


def test_nobody_passes_the_head():
    tasks = (Task("one", Shape(1, 1)), Task("wide", Shape(2, 2)), Task("small", Shape(1, 1)))
    scheduler, starts = scheduled(TWO, *tasks)
    assert starts == ["one a:0"]
    assert scheduler.queued == ("wide", "small")
    assert started(scheduler, 5.0) == []
    scheduler.ended("one")
    assert started(scheduler, 6.0) == ["wide a:0,1@b:0,1"]
    scheduler.ended("wide")
    assert started(scheduler, 7.0) == ["small a:0"]


def test_who_ends_in_time_passes_and_who_keeps_off():
    pool = {"a": ("0", "1"), "b": ("0", "1"), "c": ("0",)}
    _, starts = scheduled(
        pool,
        Task("runs", Shape(1, 1), 10.0),
        Task("head", Shape(2, 2)),
        Task("unknown", Shape(1, 2)),
        Task("long", Shape(1, 2), 11.0),
        Task("short", Shape(1, 2), 10.0),
        Task("beside", Shape(1, 1)),
        Task("late", Shape(1, 1)),
        backfill=True,
    )
    assert starts == ["runs a:0", "short b:0,1", "beside c:0"]


def test_where_nothing_can_be_predicted_nothing_is_taken_that_the_head_could_need():
    pool = {"a": ("0", "1"), "b": ("0", "1", "2"), "c": ("0",)}
    tasks = [Task("x", Shape(1, 2)), Task("y", Shape(1, 2)), Task("head", Shape(1, 2))]
    tasks += [Task(f"small{number}", Shape(1, 1), 1.0) for number in range(3)]
    scheduler, starts = scheduled(pool, *tasks, backfill=True)
    assert starts == ["x a:0,1", "y b:0,1", "small0 c:0"]
    scheduler.ended("y")
    assert started(scheduler, 1.0) == ["head b:0,1", "small1 b:2"]


def test_the_longest_is_first_and_the_unknown_before_it():
    tasks = [Task("short", Shape(1, 1), 1.0), Task("long", Shape(1, 1), 9.0), Task("wide", Shape(2, 1), 9.0)]
    scheduler, _ = scheduled({"a": ()}, *tasks, Task("unknown", Shape(1, 1)), order="longest")
    assert scheduler.queued == ("unknown", "wide", "long", "short")


def test_longest_leaves_whole_nodes_whole():
    pool = {"a": ("0", "1", "2", "3"), "b": ("0", "1"), "c": ("0", "1", "2", "3")}
    tasks = [Task(str(number), Shape(1, 1), 10.0 - number) for number in range(3)]
    _, starts = scheduled(pool, *tasks, Task("wide", Shape(1, 4), 1.0), order="longest")
    assert starts == ["0 b:0", "1 b:1", "2 a:0", "wide c:0,1,2,3"]


def test_predictions_may_be_wrong():
    tasks = [Task("runs", Shape(1, 2), 10.0), Task("head", Shape(2, 2), 5.0), Task("small", Shape(1, 1), 20.0)]
    scheduler, starts = scheduled(TWO, *tasks, backfill=True)
    assert starts == ["runs a:0,1"]
    scheduler.submit(Task("quick", Shape(1, 1), 1.0))
    assert started(scheduler, 11.0) == []  # "runs" may end at any moment
    scheduler.ended("runs")
    assert started(scheduler, 12.0) == ["head a:0,1@b:0,1"]


# -- nodes that are lost -----------------------------------------------------------------------------------------------


def test_a_lost_node_gives_nothing_and_its_tasks_keep_the_others_until_they_have_ended():
    scheduler, _ = scheduled(TWO, Task("wide", Shape(2, 1)), Task("next", Shape(1, 2)))
    assert scheduler.lost("a") == ("wide",)
    assert scheduler.free == {"b": ("1",)}
    assert started(scheduler, 1.0) == []
    scheduler.ended("wide")
    assert started(scheduler, 2.0) == ["next b:0,1"]
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
    assert started(scheduler, 1.0) == []
    scheduler.lost("b")
    assert scheduler.stuck == ("wide",)
    assert scheduler.impossible(Shape(2, 2)) == ""
    assert started(scheduler, 2.0) == ["small a:1"]
    scheduler.back("b")
    assert scheduler.stuck == ()
    scheduler.submit(Task("later", Shape(1, 1)))
    assert started(scheduler, 3.0) == []  # the wide one is at the front again
    scheduler.ended("one")
    scheduler.ended("small")
    assert started(scheduler, 4.0) == ["wide a:0,1@b:0,1"]


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
    assert started(scheduler, 1.0) == ["again a:1"]
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
    assert started(scheduler, 1.0) == []  # other slots are free
    scheduler.lost("b")
    scheduler.ended("pinned")
    assert started(scheduler, 2.0) == [] and scheduler.stuck == ("again",)
    scheduler.back("b")
    assert started(scheduler, 3.0) == ["again b:1"]


def test_behind_a_pinned_head_the_others_keep_off_its_slots():
    pinned = SlotReservation((("a", ("0", "1")),))
    scheduler, starts = scheduled(TWO, Task("one", Shape(1, 1)), backfill=True)
    assert starts == ["one a:0"]
    scheduler.submit(Task("pinned", Shape(1, 2), pinned=pinned))
    for number in range(3):
        scheduler.submit(Task(f"small{number}", Shape(1, 1)))
    assert started(scheduler, 1.0) == ["small0 b:0", "small1 b:1"]  # a:1 is kept
    scheduler.ended("one")
    assert started(scheduler, 2.0) == ["pinned a:0,1"]
