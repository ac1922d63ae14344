"""Simulated pipes, and the loop of a simulated process: the real `Loop`, with a simulated clock and descriptors."""

from __future__ import annotations

import heapq
import os
import select
import signal
from collections.abc import Callable, Iterable
from itertools import count

from bireme.loop import STOP_SIGNALS, Loop, Timer
from tests.simulation.world import DeadlockError, Host, World

FIRST_FD = 1_000_000
"""Simulated descriptors begin here; what is below belongs to this process."""


_TICK = 1e-9
"""Seconds by which a timer may be early, since sums of times are rounded."""


class Killed(BaseException):
    """The runner was killed: what it would do now does not happen."""


class Pipe:
    """Bytes on their way from writers to a reader. It never fills."""

    __slots__ = ("buffer", "on_ready", "readers", "writers")

    def __init__(self) -> None:
        self.buffer = bytearray()
        self.readers = self.writers = 0
        self.on_ready: Callable[[], None] = _nothing

    @property
    def ready(self) -> bool:
        return bool(self.buffer) or not self.writers

    def put(self, data: bytes) -> None:
        if self.readers:
            self.buffer += data
            self.on_ready()

    def take(self) -> bytes:
        data = bytes(self.buffer)
        self.buffer.clear()
        return data

    def drop_writer(self) -> None:
        self.writers -= 1
        if not self.writers:
            self.on_ready()

    def drop_reader(self) -> None:
        self.readers -= 1


def _nothing() -> None:
    pass


class End:
    """A descriptor: one end of a pipe. Several processes may hold it."""

    __slots__ = ("closed", "pipe", "reads")

    def __init__(self, pipe: Pipe, *, reads: bool) -> None:
        self.pipe, self.reads = pipe, reads
        self.closed = False
        if reads:
            pipe.readers += 1
        else:
            pipe.writers += 1

    def share(self) -> End:
        """The same end in another process."""
        return End(self.pipe, reads=self.reads)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            if self.reads:
                self.pipe.drop_reader()
            else:
                self.pipe.drop_writer()


class SimulatedProcess:
    """A process that runs a loop: the runner or an agent.

    Attributes:
        alive: whether it has neither ended nor been killed.
        loop: its loop, once it has one.
        busy_until: a callback that takes time is over then; nothing else runs before.
    """

    def __init__(self, host: Host, name: str) -> None:
        self.host, self.world, self.name = host, host.world, name
        self.pid = self.world.pid()
        self.alive, self.stopped = True, False
        self.busy_until = 0.0
        self.ends: dict[int, End] = {}
        self.handles: list[Callable[[], None]] = []
        """Called when it ends: its side of guardians' pipes."""
        self.loop: SimulatedLoop | None = None
        self._numbers = count(FIRST_FD)
        self._wake = float("inf")
        self.woken = False
        self.stops: list[tuple[float, float]] = []
        self.continued = False
        """Whether it was resumed last while it was not stopped."""
        host.on_down.append(self.vanish)
        host.on_thaw.append(self._thawed)

    # -- time ----------------------------------------------------------------------------------------

    def clock(self) -> float:
        return self.host.clock() + max(0.0, self.busy_until - self.world.now)

    def spend(self, seconds: float) -> None:
        """Let what it does now take so long."""
        begin = max(self.busy_until, self.world.now)
        self.busy_until = begin + seconds
        if seconds > 0.1:
            self.stops.append((begin, self.busy_until))

    def do(self, call: Callable[[], None]) -> None:
        """Let something that it does now take effect, at the time which it has reached."""
        if self.busy_until > self.world.now:
            self.host.after(self.busy_until - self.world.now, call)
        else:
            call()

    @property
    def runs(self) -> bool:
        return self.alive and not self.stopped and not self.host.frozen

    def wake_at(self, when: float) -> None:
        when = max(when, self.busy_until, self.world.now)
        if when < self._wake:
            self._wake = when
            self.world.at(when, lambda: self._on_wake(when))

    def _on_wake(self, when: float) -> None:
        if when != self._wake:
            return
        self._wake = float("inf")
        if not self.runs:
            return
        if self.busy_until > self.world.now:
            self.wake_at(self.busy_until)
            return
        self.woken = True
        self.turn()

    def turn(self) -> None:
        """Handle what is ready. The runner does that by itself."""

    def _thawed(self) -> None:
        begin, end = self.host.frozen_times[-1]
        if self.busy_until > begin:  # what it was doing then is over only later
            over, self.busy_until = self.busy_until, self.busy_until + end - begin
            self.stops = [(start, self.busy_until if stop == over else stop) for start, stop in self.stops]
        self._go_on()

    def _go_on(self) -> None:
        if self.runs:
            self.wake_at(self.world.now + self.world.random.random() * 1e-3)

    def stop(self) -> None:
        """SIGSTOP."""
        if self.alive and not self.stopped:
            self.stopped = True
            self.stops.append((self.world.now, float("inf")))

    def resume(self) -> None:
        """SIGCONT."""
        self.continued = not self.stopped
        if self.stopped:
            self.stopped = False
            self.stops = [(begin, min(end, self.world.now)) for begin, end in self.stops]
            self._go_on()

    def awake(self, begin: float, end: float) -> float:
        """For how long it could run in this time."""
        still = sorted((*self.stops, *self.host.frozen_times))
        left, reached = 0.0, begin
        for start, stop in still:
            if stop <= reached:
                continue
            if start >= end:
                break
            left += max(0.0, start - reached)
            reached = max(reached, min(stop, end))
        return left + max(0.0, end - reached)

    def halts(self, begin: float, end: float) -> int:
        """How often it could not run in this time; halts that overlap are one."""
        found, reached = 0, begin
        for start, stop in sorted((*self.stops, *self.host.frozen_times)):
            if start < end and stop > reached:
                found += start > reached or found == 0
                reached = stop
        return found

    # -- descriptors ---------------------------------------------------------------------------------

    def add(self, end: End) -> int:
        fd = next(self._numbers)
        self.ends[fd] = end
        return fd

    def end_of(self, fd: int) -> End:
        try:
            return self.ends[fd]
        except KeyError:
            raise OSError(9, "Bad file descriptor") from None

    def die(self) -> None:
        """It ends, or is killed: the kernel closes what it held."""
        if self.alive:
            self.alive = False
            for end in self.ends.values():
                end.close()
            self.ends.clear()
            for call in self.handles:
                call()
            self._forget()

    def vanish(self) -> None:
        """Its machine has lost power: nobody learns of it."""
        self.alive = False
        self.ends.clear()
        self._forget()

    def _forget(self) -> None:
        for calls, call in ((self.host.on_down, self.vanish), (self.host.on_thaw, self._thawed)):
            if call in calls:
                calls.remove(call)


class SimulatedPoll:
    """Ready descriptors, in the order in which they became ready."""

    def __init__(self, process: SimulatedProcess) -> None:
        self.process = process
        self.masks: dict[int, int] = {}
        self._order: dict[int, None] = {}

    def set(self, fd: int, mask: int) -> None:
        if fd < FIRST_FD:
            return  # of the real system: the control socket, which nobody uses here
        if not mask:
            self.masks.pop(fd, None)
            return
        self.masks[fd] = mask
        end = self.process.ends.get(fd)
        if end is not None and end.reads:
            end.pipe.on_ready = lambda: self.note(fd)
            if end.pipe.ready:
                self.note(fd)
        elif end is not None and mask & select.POLLOUT:
            self.note(fd)

    def note(self, fd: int) -> None:
        if fd in self.masks:
            self._order[fd] = None
            process = self.process
            process.wake_at(process.world.now + process.latency)  # type: ignore[attr-defined]

    def ready(self) -> list[tuple[int, int]]:
        found = []
        for fd in tuple(self._order):
            mask, end = self.masks.get(fd, 0), self.process.ends.get(fd)
            if end is None or not mask:
                del self._order[fd]
            elif end.reads:
                if not end.pipe.ready:
                    del self._order[fd]
                elif mask & select.POLLIN:
                    found.append((fd, select.POLLIN))
            elif mask & select.POLLOUT:
                found.append((fd, select.POLLOUT))
        return found

    def wait(self, seconds: float | None) -> list[tuple[int, int]]:
        """Report what is ready. The runner lets the world go on until something is, or the time is over."""
        process = self.process
        ready = self.ready() if process.busy_until <= process.world.now else []
        if not isinstance(process, RunnerProcess):
            return ready
        if ready:
            return ready
        world = process.world
        if seconds is not None:
            process.wake_at(world.now + seconds)
        if process.busy_until > world.now:  # what has become ready by then
            process.wake_at(process.busy_until)
        process.woken = False
        while not process.woken:
            if not process.alive:
                raise Killed
            world.step()
        if not process.alive:
            raise Killed
        return self.ready()

    def close(self) -> None:
        self.masks.clear()


class SimulatedLoop(Loop):
    """The real loop, but for its clock, its descriptors and its signals."""

    serves_others = False

    def __init__(self, process: SimulatedProcess) -> None:
        self.process = process
        process.loop = self
        self._poll = SimulatedPoll(process)  # type: ignore[assignment]
        self._readers, self._writers = {}, {}
        self._timers: list[Timer] = []
        self._running = False
        self._caught: frozenset[int] = frozenset()
        self.late = 0
        self._small_reads = False
        self._numbers = count()
        self._pending: list[int] = []

    # -- what the real loop asks of the system ---------------------------------------------------------

    def now(self) -> float:  # type: ignore[override]
        return self.process.clock()

    def pipe(self) -> tuple[int, int]:  # type: ignore[override]
        pipe = Pipe()
        return self.process.add(End(pipe, reads=True)), self.process.add(End(pipe, reads=False))

    def read(self, fd: int, size: int) -> bytes:  # type: ignore[override]
        end = self.process.end_of(fd)
        pipe = end.pipe
        if not pipe.buffer:
            if pipe.writers:
                raise BlockingIOError
            return b""
        data = bytes(pipe.buffer[:size])
        del pipe.buffer[:size]
        return data

    def write(self, fd: int, data: bytes) -> int:  # type: ignore[override]
        pipe = self.process.end_of(fd).pipe
        if not pipe.readers:
            raise BrokenPipeError(32, "Broken pipe")
        random = self.process.world.random
        if len(data) > 1000 and random.random() < 0.05:  # the pipe is nearly full
            data = data[: random.randrange(1, len(data))]
        data = bytes(data)
        self.process.do(lambda: pipe.put(data))
        return len(data)

    def hung_up(self, fd: int) -> bool:
        return not self.process.end_of(fd).pipe.writers

    def close_fd(self, fd: int) -> None:  # type: ignore[override]
        if fd < FIRST_FD:
            os.close(fd)
            return
        end = self.process.ends.pop(fd, None)
        if end is not None:
            self.process.do(end.close)

    def set_blocking(self, fd: int, blocking: bool) -> None:  # type: ignore[override]
        pass

    # -- signals -------------------------------------------------------------------------------------

    def on_signals(self, signums: Iterable[int], callback: Callable[[int], None]) -> None:
        self._caught, self._on_signal = frozenset(map(int, signums)), callback

    def signal(self, signum: int) -> None:
        """The process gets a signal, which it handles in its loop."""
        if self.process.alive and signum in self._caught:
            self._pending.append(signum)
            # At once when it runs again: the clock of a host that stands still may be wrong.
            self.after(-1e9, lambda: self._on_signal(self._pending.pop(0)))
            self.process.wake_at(self.process.world.now)

    def halt(self) -> None:
        """Stand still until the process is resumed."""
        process = self.process
        if not process.continued:
            process.stop()
        while process.stopped:
            if not process.alive:
                raise Killed
            process.world.step()
        self.signal(signal.SIGCONT)

    # -- running -------------------------------------------------------------------------------------

    def after(self, seconds: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(self.now() + seconds, callback)
        heapq.heappush(self._timers, _Due(timer, next(self._numbers)))  # type: ignore[misc]
        return timer

    def _run_timers(self) -> float | None:
        while self._timers:
            entry = self._timers[0]
            timer = entry.timer  # type: ignore[attr-defined]
            if timer.callback is not None:
                wait = timer.due - self.now()
                if wait > _TICK:
                    return wait
                if wait > 0:
                    self.process.spend(_TICK)  # by rounding; what looks at the clock would find it too early for ever
            heapq.heappop(self._timers)
            if timer.callback is not None:
                timer.callback()
        return None

    def turn(self) -> float | None:
        """Make the calls that are due and handle what is ready; return the seconds until the next timer."""
        wait = self._run_timers()
        if self._running:
            self._dispatch(wait)
        while self._timers and self._timers[0].timer.callback is None:  # type: ignore[attr-defined]
            heapq.heappop(self._timers)
        return self._timers[0].timer.due - self.now() if self._timers else None  # type: ignore[attr-defined]

    def begin(self) -> None:
        """Run, turn by turn."""
        self._running = True

    @property
    def running(self) -> bool:
        return self._running

    def _let_gather(self) -> None:
        pass

    def close(self) -> None:
        self.late = next((signum for signum in self._pending if signum in STOP_SIGNALS), 0)
        self._readers.clear()
        self._writers.clear()
        self._poll.close()


class _Due:
    """A timer in the heap; those of equal time in the order in which they were set."""

    __slots__ = ("number", "timer")

    def __init__(self, timer: Timer, number: int) -> None:
        self.timer, self.number = timer, number

    def __lt__(self, other: _Due) -> bool:
        return (self.timer.due, self.number) < (other.timer.due, other.number)


class RunnerProcess(SimulatedProcess):
    """The runner: its loop runs by itself, and lets the world go on while it waits."""

    def __init__(self, host: Host, name: str) -> None:
        super().__init__(host, name)
        self.latency = self.world.random.choice((2e-5, 1e-3, 2e-2))
        """How long it takes to be scheduled."""


__all__ = ["DeadlockError", "World"]
