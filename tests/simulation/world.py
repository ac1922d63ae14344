"""The virtual world: one queue of events in the order of their time, and the machines in it."""

from __future__ import annotations

import heapq
import struct
import zlib
from collections.abc import Callable
from random import Random


class DeadlockError(Exception):
    """Somebody waits, and nothing can happen any more."""


class World:
    """Virtual time, in seconds. The same seed gives the same events in the same order.

    Attributes:
        random: draws what happens.
        rare: draws what was added later, so that a seed goes on to give nearly the same run.
        now: the time.
        steps: how many events have happened.
        digest: a checksum of the times of all events.
        log: what happened, if it is kept.
    """

    def __init__(self, seed: int, *, keep_log: bool = False) -> None:
        self.random, self.rare = Random(seed), Random(~seed)
        self.now = 0.0
        self.steps = self.digest = 0
        self.log: list[str] | None = [] if keep_log else None
        self.at_step: dict[int, Callable[[], None]] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._pid = 1000
        self.hosts: list[Host] = []

    def at(self, when: float, call: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (max(when, self.now), self._number, call))

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        self.at(self.now + seconds, call)

    def step(self) -> None:
        """Let the next event happen.

        Raises:
            DeadlockError: there is none.
        """
        if not self._events:
            raise DeadlockError
        self.now, number, call = heapq.heappop(self._events)
        self.steps += 1
        self.digest = zlib.crc32(struct.pack("dI", self.now, number & 0xFFFFFFFF), self.digest)
        call()
        if self.at_step:
            fault = self.at_step.pop(self.steps, None)
            if fault is not None:
                fault()

    @property
    def next_time(self) -> float:
        return self._events[0][0] if self._events else float("inf")

    def pid(self) -> int:
        self._pid += 1
        return self._pid

    def note(self, text: str) -> None:
        if self.log is not None:
            self.log.append(f"{self.now:12.6f} {self.steps:6d} {text}")


class Host:
    """A machine: it may stand still (freeze), lose its power, start again, and its clock is its own.

    Attributes:
        boots: how often it was started; what ran before a restart is gone.
        frozen_times: when it stood still: (begin, end) in virtual time.
    """

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.offset = world.random.uniform(-1e5, 1e5)
        self.up, self.frozen, self.boots = True, False, 1
        self.clock_stops = False
        self.frozen_times: list[tuple[float, float]] = []
        self._lost_time = 0.0
        self._waiting: list[Callable[[], None]] = []
        self.on_down: list[Callable[[], None]] = []
        self.on_thaw: list[Callable[[], None]] = []
        world.hosts.append(self)

    def clock(self) -> float:
        """The time on its monotonic clock."""
        return self.world.now + self.offset

    def when(self, local: float) -> float:
        """The virtual time at which its clock shows ``local``, if it does not stand still."""
        return local - self.offset

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Do something on this machine: later if it stands still, never if it loses its power."""
        boot = self.boots
        self.world.after(seconds, lambda: self._do(boot, call))

    def _do(self, boot: int, call: Callable[[], None]) -> None:
        if boot != self.boots or not self.up:
            return
        if self.frozen:
            self._waiting.append(lambda: self._do(boot, call))
        else:
            call()

    def freeze(self, seconds: float, *, clock_stops: bool) -> None:
        """Stand still.

        Args:
            seconds: for how long.
            clock_stops: whether its clock stands still too, as that of a virtual machine may.
        """
        if self.frozen or not self.up:
            return
        self.world.note(f"{self.name} stands still for {seconds:.3f} s{' with its clock' if clock_stops else ''}")
        self.frozen = True
        begin, boot = self.world.now, self.boots
        self.frozen_times.append((begin, begin + seconds))
        self.world.after(seconds, lambda: self._thaw(boot, seconds if clock_stops else 0.0))

    def _thaw(self, boot: int, lost: float) -> None:
        if boot != self.boots:
            return
        self.world.note(f"{self.name} goes on")
        self.frozen = False
        self.offset -= lost
        waiting, self._waiting = self._waiting, []
        for place, call in enumerate(waiting):
            self.world.after(place * 1e-5, call)
        for call in tuple(self.on_thaw):
            call()

    def lose_power(self) -> None:
        if self.up:
            self.world.note(f"{self.name} loses its power")
            self.up = self.frozen = False
            self.boots += 1
            self._waiting.clear()
            lost, self.on_down = self.on_down, []
            for call in lost:
                call()

    def start_again(self) -> None:
        if not self.up:
            self.world.note(f"{self.name} starts again")
            self.up = True
            self.offset = self.world.random.uniform(-1e5, 1e5)

    def awake(self, begin: float, end: float) -> float:
        """For how long it did not stand still in this time."""
        still = sum(max(0.0, min(end, stop) - max(begin, start)) for start, stop in self.frozen_times)
        return end - begin - still

    def halts(self, begin: float, end: float) -> int:
        """How often it stood still in this time."""
        return sum(start < end and stop > begin for start, stop in self.frozen_times)
