"""Thousands of tasks: how well they are packed, and how much CPU that takes."""

from __future__ import annotations

import sys
import tracemalloc

import pytest

from bireme.tune.execution.slot_scheduler import Scheduler
from tests.unit.tune.execution.simulation import MODES, bound, cluster, makespan, mixed_load

pytestmark = pytest.mark.slow


def test_thousands():
    tasks = mixed_load(2000)
    least = bound(tasks, 1600)
    ratios = {
        (order, backfill): makespan(Scheduler(cluster(200), order=order, backfill=backfill), tasks) / least
        for order, backfill in MODES
    }
    assert max(ratios.values()) <= 1.25
    assert ratios["longest", True] < ratios["fifo", True] <= ratios["fifo", False]


@pytest.mark.parametrize(("order", "backfill"), MODES)
def test_the_work_grows_with_the_tasks_and_no_faster(order, backfill):
    """Counted in calls, which are the same on every machine."""

    def calls(number):
        counted = 0

        def count(frame, event, arg):
            nonlocal counted
            counted += event == "call"

        scheduler = Scheduler(cluster(40), order=order, backfill=backfill)
        before = sys.getprofile()
        sys.setprofile(count)
        try:
            makespan(scheduler, mixed_load(number))
        finally:
            sys.setprofile(before)
        return counted

    assert calls(1000) <= 6 * calls(250)


def test_memory_grows_with_the_tasks_and_no_faster():
    """Tables double when they are full: four times the tasks may need a little more than four times the room."""

    def peak(number):
        tasks = mixed_load(number)
        tracemalloc.start()
        try:
            makespan(Scheduler(cluster(40), order="longest", backfill=True), tasks)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(1000) <= 8 * peak(250)
