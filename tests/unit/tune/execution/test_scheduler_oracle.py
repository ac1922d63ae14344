"""The scheduler under random events: against an oracle, and against itself without backfill."""

from __future__ import annotations

import copy
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bireme.tune.execution.slot_scheduler import Scheduler, Shape, Task
from tests.conftest import TIMES
from tests.unit.tune.execution.oracle import Oracle
from tests.unit.tune.execution.simulation import MODES, cluster, simulate

HOSTS = tuple(f"n{number}" for number in range(5))
pools = st.lists(st.integers(0, 4), min_size=1, max_size=len(HOSTS)).map(
    lambda sizes: {host: tuple(map(str, range(size))) for host, size in zip(HOSTS, sizes, strict=False)}
)
shapes = st.builds(Shape, st.integers(1, 3), st.integers(1, 4))
avoided = st.one_of(st.just(frozenset()), st.frozensets(st.sampled_from([*HOSTS, "elsewhere"]), max_size=3))
submissions = st.tuples(st.just("submit"), shapes, avoided)
events = st.lists(
    st.one_of(
        submissions,
        st.tuples(st.just("ended"), st.integers(0, 99)),
        st.tuples(st.just("withdraw"), st.integers(0, 99)),
        st.tuples(st.sampled_from(["lost", "back"]), st.sampled_from(HOSTS)),
    ),
    min_size=10,
    max_size=40,
)


class Game:
    """A scheduler and the oracle, to whom the same happens, and who holds which slot."""

    def __init__(self, pool, **ways):
        self.pool = pool
        self.scheduler, self.oracle = Scheduler(pool, **ways), Oracle(pool, **ways)
        self.away, self.holders = set(), {}

    def tell(self, what, *args):
        """Both are told; what the scheduler answers."""
        getattr(self.oracle, what)(*args)
        return getattr(self.scheduler, what)(*args)

    def happen(self, number, what, *how):
        waiting, running = self.scheduler.queued, tuple(self.scheduler.running)
        if what == "submit":
            self.tell("submit", Task(f"t{number}", *how))
        elif what == "withdraw" and waiting:
            self.tell("withdraw", waiting[how[0] % len(waiting)])
        elif what == "ended" and running:
            key = running[how[0] % len(running)]
            self.tell("ended", key)
            self.holders = {slot: holder for slot, holder in self.holders.items() if holder != key}
        elif what == "lost" and how[0] in self.pool:
            hit = {holder for (host, _), holder in self.holders.items() if host == how[0]}
            assert set(self.tell("lost", how[0])) == hit
            self.away.add(how[0])
        elif what == "back" and how[0] in self.pool:
            self.tell("back", how[0])
            self.away.discard(how[0])

    def decide(self):
        """Both decide the same; no slot is given twice, and none of a node that is away."""
        starts, expected = self.scheduler.decide(), self.oracle.decide()
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
@given(pool=pools, queue=st.lists(submissions, max_size=12), happens=events)
def test_as_the_oracle_and_no_slot_twice(order, backfill, pool, queue, happens):
    game = Game(pool, order=order, backfill=backfill)
    for number, event in enumerate([*queue, *happens]):
        game.happen(number, *event)
        game.decide()


@pytest.mark.slow
@pytest.mark.parametrize(("order", "backfill"), MODES)
def test_hundreds_as_the_oracle(order, backfill):
    chance = random.Random(1)
    game = Game(cluster(8), order=order, backfill=backfill)
    for number in range(150):
        shape = Shape(chance.randint(1, 3), chance.randint(1, 8))
        game.happen(number, "submit", shape, frozenset())
    for _ in range(200):
        what = chance.choices(["ended", "withdraw", "lost", "back"], [20, 1, 1, 1])[0]
        how = chance.choice(list(game.pool)) if what in ("lost", "back") else chance.randint(1, 5)
        game.happen(-1, what, how)
        game.decide()


# -- the head is never delayed -----------------------------------------------------------------------------------------


class Watched(Scheduler):
    """Knows of every task that was at the head and waited when it would have started without those behind it.

    ``seconds``: how long tasks take, by key.
    """

    now = 0.0

    def __init__(self, pool, seconds, **ways):
        super().__init__(pool, **ways)
        self.seconds = seconds
        self.ends: dict[str, float] = {}
        self.alone: dict[str, float] = {}

    def decide(self):
        before = copy.deepcopy(self)
        starts = super().decide()
        self.ends.update((start.task.key, self.now + self.seconds[start.task.key]) for start in starts)
        if self.queued and self.queued[0] not in self.alone:
            self.alone[self.queued[0]] = before.start_of(self.queued[0])
        return starts

    def ended(self, key):
        self.now = self.ends[key]
        super().ended(key)

    def start_of(self, head: str) -> float:
        for behind in self.queued[self.queued.index(head) + 1 :]:
            self.withdraw(behind)
        self.decide, self.ended = super().decide, super().ended
        starts = simulate(self, self.seconds, [(self.ends[key], key) for key in self.running], now=self.now)
        return next(when for when, start in starts if start.task.key == head)


tasks_to_come = st.lists(st.tuples(shapes, st.integers(1, 8).map(float)), max_size=14).map(
    lambda tasks: {f"t{number}": task for number, task in enumerate(tasks)}
)


@pytest.mark.parametrize("order", ["fifo", "longest"])
@given(pool=pools, tasks=tasks_to_come)
@settings(max_examples=18 * TIMES)
def test_the_head_starts_when_it_would_without_those_behind_it(order, pool, tasks):
    seconds = {key: seconds for key, (_, seconds) in tasks.items()}
    scheduler = Watched(pool, seconds, order=order, backfill=True)
    for key, (shape, _) in tasks.items():
        if not scheduler.impossible(shape):
            scheduler.submit(Task(key, shape))
    starts = {start.task.key: when for when, start in simulate(scheduler, seconds)}
    assert not scheduler.queued
    for key, alone in scheduler.alone.items():
        assert starts[key] == alone
