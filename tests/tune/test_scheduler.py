"""The scheduler: against another that is written without any thought of speed, and over whatever may happen."""

from __future__ import annotations

import copy
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bireme.tune.scheduler import Scheduler, Task
from bireme.tune.slots import Shape
from tests.tune.simulation import bound, cluster, makespan, mixed_load, simulate

MODES = [(order, backfill) for order in ("fifo", "longest") for backfill in (False, True)]


# -- the oracle --------------------------------------------------------------------------------------------------------


class Oracle:
    """The same decisions, by looking at every slot and every task each time."""

    def __init__(self, pool, *, order, backfill):
        self.pool, self.order, self.backfill = pool, order, backfill
        self.queue: list[Task] = []
        self.held: dict[str, tuple[float, set]] = {}  # predicted end, slots
        self.away: set[str] = set()

    def submit(self, task, now):
        self.queue.append(task)
        if self.order == "longest":
            self.queue.sort(key=lambda task: (-(inf if task.seconds is None else task.seconds), -task.shape.size))

    def withdraw(self, key):
        self.queue = [task for task in self.queue if task.key != key]

    def ended(self, key, now):
        del self.held[key]

    def lost(self, host, now):
        self.away.add(host)

    def back(self, host, now):
        self.away.discard(host)

    def everything(self):
        return {(host, slot) for host in self.pool.keys() - self.away for slot in self.pool[host]}

    def free(self, by=-inf):
        """What is free, or will be when all that is predicted to end by then has ended."""
        return self.everything() - {slot for end, slots in self.held.values() if end > by for slot in slots}

    def find(self, task, free):
        room = {host: [slot for slot in slots if (host, slot) in free] for host, slots in self.pool.items()}
        hosts = [host for host in self.pool if len(room[host]) >= task.shape.slots and host not in self.avoided(task)]
        if self.order == "longest":
            hosts.sort(key=lambda host: len(room[host]))
        if len(hosts) < task.shape.nodes:
            return None
        chosen = [host for host in self.pool if host in hosts[: task.shape.nodes]]
        return [(host, slot) for host in chosen for slot in room[host][: task.shape.slots]]

    def able(self, shape, avoid):
        hosts = self.pool.keys() - self.away - avoid
        return sum(len(self.pool[host]) >= shape.slots for host in hosts) >= shape.nodes

    def avoided(self, task):
        return task.avoid if self.able(task.shape, task.avoid) else frozenset()

    def decide(self, now):
        starts, head, until, kept = {}, None, -inf, set()
        for task in list(self.queue):
            if not self.able(task.shape, frozenset()):
                continue
            seconds = inf if task.seconds is None else task.seconds
            free = self.free()
            slots = self.find(task, free if head is None or now + seconds <= until else free - kept)
            if slots is not None:
                starts[task.key] = slots
                self.held[task.key] = now + seconds, set(slots)
                self.withdraw(task.key)
            elif not self.backfill:
                break
            elif head is None:
                head = task
                until, kept = self.promise(head, now)
        return starts

    def promise(self, head, now):
        for when in sorted({max(end, now) for end, _ in self.held.values() if end < inf}):
            if slots := self.find(head, self.free(by=when)):
                return when, set(slots)
        kept = set()
        for host in self.pool.keys() - self.away - self.avoided(head):
            if len(self.pool[host]) >= head.shape.slots:
                free = [(host, slot) for slot in self.pool[host] if (host, slot) in self.free()]
                kept.update(free[: head.shape.slots])
        return -inf, kept


# -- whatever may happen -----------------------------------------------------------------------------------------------

HOSTS = tuple(f"n{number}" for number in range(5))
pools = st.lists(st.integers(0, 4), min_size=1, max_size=len(HOSTS)).map(
    lambda sizes: {host: tuple(map(str, range(size))) for host, size in zip(HOSTS, sizes, strict=False)}
)
shapes = st.builds(Shape, st.integers(1, 3), st.integers(1, 4))
durations = st.one_of(st.none(), st.integers(1, 8).map(float))
avoided = st.one_of(st.just(frozenset()), st.frozensets(st.sampled_from([*HOSTS, "elsewhere"]), max_size=3))
events = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), shapes, durations, avoided),
        st.tuples(st.just("submit"), shapes, durations, avoided),
        st.tuples(st.just("ended"), st.integers(0, 99)),
        st.tuples(st.just("withdraw"), st.integers(0, 99)),
        st.tuples(st.sampled_from(["lost", "back"]), st.sampled_from(HOSTS)),
        st.tuples(st.just("wait"), st.integers(1, 5)),
    ),
    max_size=40,
)


class Game:
    """A scheduler and the oracle, to whom the same happens, and who holds which slot."""

    def __init__(self, pool, **ways):
        self.pool = pool
        self.scheduler, self.oracle = Scheduler(pool, **ways), Oracle(pool, **ways)
        self.now, self.away, self.holders = 0.0, set(), {}

    def tell(self, what, *args):
        """Both are told; what the scheduler answers."""
        getattr(self.oracle, what)(*args)
        return getattr(self.scheduler, what)(*args)

    def happen(self, number, what, *how):
        waiting, running = self.scheduler.queued, tuple(self.scheduler.running)
        if what == "wait":
            self.now += how[0]
        elif what == "submit":
            self.tell("submit", Task(f"t{number}", *how), self.now)
        elif what == "withdraw" and waiting:
            self.tell("withdraw", waiting[how[0] % len(waiting)])
        elif what == "ended" and running:
            key = running[how[0] % len(running)]
            self.tell("ended", key, self.now)
            self.holders = {slot: holder for slot, holder in self.holders.items() if holder != key}
        elif what == "lost" and how[0] in self.pool:
            hit = {holder for (host, _), holder in self.holders.items() if host == how[0]}
            assert set(self.tell("lost", how[0], self.now)) == hit
            self.away.add(how[0])
        elif what == "back" and how[0] in self.pool:
            self.tell("back", how[0], self.now)
            self.away.discard(how[0])

    def decide(self):
        """Both decide the same; no slot is given twice, and none of a node that is away."""
        starts, expected = self.scheduler.decide(self.now), self.oracle.decide(self.now)
        assert [(start.task.key, flat(start)) for start in starts] == list(expected.items())
        for start in starts:
            assert len(start.reservation.places) == start.task.shape.nodes
            assert {len(slots) for _, slots in start.reservation.places} == {start.task.shape.slots}
            for slot in flat(start):
                assert slot not in self.holders and slot[0] not in self.away
                self.holders[slot] = start.task.key
        assert self.scheduler.queued == tuple(task.key for task in self.oracle.queue)
        assert self.scheduler.running.keys() == set(self.holders.values())
        free = {(host, slot) for host, slots in self.scheduler.free.items() for slot in slots}
        assert free == self.oracle.everything() - self.holders.keys()


def flat(start) -> list[tuple[str, str]]:
    return [(host, slot) for host, slots in start.reservation.places for slot in slots]


@pytest.mark.parametrize(("order", "backfill"), MODES)
@given(pool=pools, happens=events)
@settings(max_examples=200, deadline=None)
def test_as_the_oracle_and_no_slot_twice(order, backfill, pool, happens):
    game = Game(pool, order=order, backfill=backfill)
    for number, event in enumerate(happens):
        game.happen(number, *event)
        game.decide()


# -- who waits for whom ------------------------------------------------------------------------------------------------

TWO = {"a": ("0", "1"), "b": ("0", "1")}


def scheduled(pool, *tasks: Task, now: float = 0.0, **ways) -> tuple[Scheduler, list[str]]:
    """A scheduler with these tasks, and what starts."""
    scheduler = Scheduler(pool, **ways)
    for task in tasks:
        scheduler.submit(task, now)
    return scheduler, started(scheduler, now)


def started(scheduler: Scheduler, now: float) -> list[str]:
    return [f"{start.task.key} {start.reservation.include()}" for start in scheduler.decide(now)]


def test_nobody_passes_the_head():
    tasks = (Task("one", Shape(1, 1)), Task("wide", Shape(2, 2)), Task("small", Shape(1, 1)))
    scheduler, starts = scheduled(TWO, *tasks)
    assert starts == ["one a:0"]
    assert scheduler.queued == ("wide", "small")
    assert started(scheduler, 5.0) == []
    scheduler.ended("one", 6.0)
    assert started(scheduler, 6.0) == ["wide a:0,1@b:0,1"]
    scheduler.ended("wide", 7.0)
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
    scheduler.ended("y", 1.0)
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
    scheduler.submit(Task("quick", Shape(1, 1), 1.0), 11.0)
    assert started(scheduler, 11.0) == []  # "runs" may end at any moment
    scheduler.ended("runs", 12.0)
    assert started(scheduler, 12.0) == ["head a:0,1@b:0,1"]


# -- nodes that are lost -----------------------------------------------------------------------------------------------


def test_a_lost_node_gives_nothing_and_its_tasks_keep_the_others_until_they_have_ended():
    scheduler, _ = scheduled(TWO, Task("wide", Shape(2, 1)), Task("next", Shape(1, 2)))
    assert scheduler.lost("a", 1.0) == ("wide",)
    assert scheduler.free == {"b": ("1",)}
    assert started(scheduler, 1.0) == []
    scheduler.ended("wide", 2.0)
    assert started(scheduler, 2.0) == ["next b:0,1"]
    scheduler.back("a", 3.0)
    assert scheduler.free == {"a": ("0", "1"), "b": ()}


def test_a_node_that_comes_back_too_early_does_not_give_what_is_still_held():
    scheduler, _ = scheduled(TWO, Task("one", Shape(1, 1)))
    scheduler.lost("a", 1.0)
    scheduler.back("a", 2.0)
    assert scheduler.free["a"] == ("1",)


def test_who_cannot_start_any_more_stands_aside():
    scheduler, _ = scheduled(TWO, Task("one", Shape(1, 1)))
    scheduler.submit(Task("wide", Shape(2, 2)), 1.0)
    scheduler.submit(Task("small", Shape(1, 1)), 1.0)
    assert started(scheduler, 1.0) == []
    scheduler.lost("b", 2.0)
    assert scheduler.stuck == ("wide",)
    assert scheduler.impossible(Shape(2, 2)) == ""
    assert started(scheduler, 2.0) == ["small a:1"]
    scheduler.back("b", 3.0)
    assert scheduler.stuck == ()
    scheduler.submit(Task("later", Shape(1, 1)), 3.0)
    assert started(scheduler, 3.0) == []  # the wide one is at the front again
    scheduler.ended("one", 4.0)
    scheduler.ended("small", 4.0)
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
    scheduler.ended("again", 1.0)
    scheduler.lost("b", 1.0)
    scheduler.submit(Task("again", Shape(1, 1), avoid=avoid), 1.0)
    assert started(scheduler, 1.0) == ["again a:1"]
    _, starts = scheduled(TWO, Task("both", Shape(2, 1), avoid=avoid))
    assert starts == ["both a:0@b:0"]


# -- misuse ------------------------------------------------------------------------------------------------------------


def test_keys_are_names():
    scheduler, _ = scheduled(TWO, Task("runs", Shape(2, 2)), Task("waits", Shape(1, 1)))
    for key in ("runs", "waits"):
        with pytest.raises(ValueError, match=f"there is a task '{key}' already"):
            scheduler.submit(Task(key, Shape(1, 1)), 1.0)
    for wrong in (
        lambda: scheduler.withdraw("runs"),
        lambda: scheduler.ended("waits", 1.0),
        lambda: scheduler.lost("x", 1.0),
        lambda: scheduler.back("x", 1.0),
    ):
        with pytest.raises(KeyError):
            wrong()
    with pytest.raises(ValueError, match="neither 'fifo' nor 'longest'"):
        Scheduler(TWO, order="shortest")


# -- the head is never delayed -----------------------------------------------------------------------------------------


class Watched(Scheduler):
    """Knows of every task that was at the head and waited when it would have started without those behind it."""

    def __init__(self, pool, **ways):
        super().__init__(pool, **ways)
        self.ends: dict[str, float] = {}
        self.alone: dict[str, float] = {}

    def decide(self, now):
        before = copy.deepcopy(self)
        starts = super().decide(now)
        self.ends.update((start.task.key, now + start.task.seconds) for start in starts)
        if self.queued and self.queued[0] not in self.alone:
            self.alone[self.queued[0]] = before.start_of(self.queued[0], now)
        return starts

    def start_of(self, head: str, now: float) -> float:
        for behind in self.queued[self.queued.index(head) + 1 :]:
            self.withdraw(behind)
        events = [(self.ends[key], key) for key in self.running]
        self.decide = super().decide
        return next(when for when, start in simulate(self, events, now=now) if start.task.key == head)


@pytest.mark.parametrize("order", ["fifo", "longest"])
@given(pool=pools, tasks=st.lists(st.tuples(shapes, st.integers(1, 8)), max_size=14))
@settings(max_examples=200, deadline=None)
def test_the_head_starts_when_it_would_without_those_behind_it(order, pool, tasks):
    scheduler = Watched(pool, order=order, backfill=True)
    for number, (shape, seconds) in enumerate(tasks):
        if not scheduler.impossible(shape):
            scheduler.submit(Task(f"t{number}", shape, float(seconds)), 0.0)
    starts = {start.task.key: when for when, start in simulate(scheduler)}
    assert scheduler.alone == {key: starts[key] for key in scheduler.alone}
    assert not scheduler.queued


# -- ten thousand ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_makespans():
    tasks = mixed_load(10_000)
    least = bound(tasks, 8000)

    def ratio(order, backfill):
        return makespan(Scheduler(cluster(1000), order=order, backfill=backfill), tasks) / least

    assert 1.1 <= ratio("fifo", False) <= 1.4
    assert ratio("longest", True) <= 1.05
