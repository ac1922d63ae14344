"""Simulated guardians and watchers: the protocol of `bireme.process.guardian`, over workers that are simulated too."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from bireme.process.guardian import Handle
from bireme.process.worker import WorkerStart
from tests.simulation.descriptors import End, Pipe, SimulatedProcess
from tests.simulation.world import Host


class Worker:
    """A process below a guardian: a rank, or an ssh.

    Attributes:
        status: its wait status; None while it lives.
        on_exit: called when it has ended.
    """

    def __init__(self, host: Host, start: WorkerStart, ends: Sequence[End]) -> None:
        self.host, self.world, self.start = host, host.world, start
        self.pid = host.world.pid()
        self.status: int | None = None
        self.ended_at = 0.0
        self.on_exit: Callable[[], None] = lambda: None
        self._ends = ends
        host.on_down.append(self.vanish)

    marked = True

    def begin(self) -> None:
        """Execute the program."""

    def signal(self, signum: int) -> None:
        """Handle a signal."""
        if signum == signal.SIGKILL:
            self.end(int(signal.SIGKILL))

    def end(self, status: int) -> None:
        if self.status is None:
            self.status, self.ended_at = int(status), self.world.now
            self.over()
            if self.vanish in self.host.on_down:
                self.host.on_down.remove(self.vanish)
            for end in self._ends:
                end.close()
            self.on_exit()

    def vanish(self) -> None:
        """Its machine has lost power."""
        if self.status is None:
            self.status, self.ended_at = int(signal.SIGKILL), self.world.now
            self.over()

    def over(self) -> None:
        """It has ended."""

    @property
    def left(self) -> Iterable[Worker]:
        """What it leaves behind when it ends."""
        return ()


class SimulatedGuardian:
    """A guardian and its watcher.

    Attributes:
        workers: those that were forked, by index.
        on_said: called with a worker whose end is reported.
    """

    def __init__(
        self,
        owner: SimulatedProcess,
        make: Callable[[Host, WorkerStart, Sequence[End]], Worker],
        starts: Sequence[WorkerStart],
        at_once: int | None,
        farewell: float,
    ) -> None:
        self.owner, self.host, self.world = owner, owner.host, owner.world
        self.pid, self.guardian_pid = self.world.pid(), self.world.pid()
        self.alive = self.watched = True
        self.farewell = farewell
        self._make, self._starts = make, starts
        self._ends = [
            [owner.ends[fd].share() for fd in (start.stdin, start.stdout, start.stderr) if fd in owner.ends]
            for start in starts
        ]
        self._events = Pipe()
        self.reading = End(self._events, reads=True)
        self._writer = End(self._events, reads=False)
        self.workers: dict[int, Worker] = {}
        self.on_said: Callable[[Worker], object] = lambda _: None
        self.strays: list[Worker] = []
        now = len(starts) if at_once is None else min(at_once, len(starts))
        self.held = set(range(now, len(starts)))
        self._unreaped: list[int] = []
        self._alive: set[int] = set()
        self._killing = self._deserted = self._gone = False
        self._stray_signal = 0
        self._last = 0.0
        self._todo: deque[Callable[[], None]] = deque()
        random = self.world.random
        self._swept = False
        self._slow = random.choice((1e-4, 1e-4, 1e-3, 2e-2))
        """How long it takes to be scheduled."""
        self.host.on_down.append(self._vanish)
        self._soon(lambda: self._fork_first(now))

    def _vanish(self) -> None:
        self.alive = self.watched = False

    def _soon(self, call: Callable[[], None]) -> None:
        """Do something in the guardian, after all that it was asked before."""
        when = max(self._last, self.world.now, self.owner.busy_until) + self.world.random.random() * self._slow
        self._last = when
        self._todo.append(call)
        self.host.after(when - self.world.now, self._next)

    def _next(self) -> None:
        call = self._todo.popleft()  # in the order in which it was asked, also after a halt
        if self.alive:
            call()

    def _say(self, *words: object) -> None:
        self.world.note(f"{self.owner.name}'s guardian: {' '.join(map(str, words))}")
        self._events.put((" ".join(map(str, words)) + "\n").encode())

    # -- workers -------------------------------------------------------------------------------------

    def _fork_first(self, now: int) -> None:
        for index in range(now):
            self._fork(index)
        if not self._starts:
            self._check()

    def _fork(self, index: int) -> None:
        worker = self._make(self.host, self._starts[index], self._ends[index])
        self.workers[index] = worker
        self._alive.add(index)
        worker.on_exit = lambda: self._ended(index)
        self._say("up", index, worker.pid, f"{self.host.clock():.6f}")
        worker.begin()

    def _ended(self, index: int) -> None:
        self._unreaped.append(index)
        self.strays += [stray for stray in self.workers[index].left if stray.status is None]
        self._soon(self._reap)

    def _reap(self) -> None:
        unreaped, self._unreaped = self._unreaped, []
        for index in unreaped:
            self._alive.discard(index)
            self.on_said(self.workers[index])
            self._say("down", index, self.workers[index].status, f"{self.host.clock():.6f}", 0)
        self._check()

    def _check(self) -> None:
        if not self.alive:
            return
        self.strays = [stray for stray in self.strays if stray.status is None]
        if self._killing:
            self._kill_all()
            self.strays = [stray for stray in self.strays if stray.status is None]
        if self._stray_signal:
            for stray in tuple(self.strays):
                stray.signal(self._stray_signal)
            self.strays = [stray for stray in self.strays if stray.status is None]
        if self._alive or self.held:
            return
        if not self.strays:
            self._say("empty")
            self._exit()
        elif not self._deserted:
            self._deserted = True
            self._say("deserted")

    def _exit(self) -> None:
        self.alive = False
        self._writer.close()  # the watcher closes its copy as well, once it has seen the end

    def _kill_all(self) -> None:
        for index in tuple(self._alive):
            self.workers[index].signal(signal.SIGKILL)
        for stray in tuple(self.strays):
            stray.signal(signal.SIGKILL)

    # -- commands ------------------------------------------------------------------------------------

    def tell(self, words: tuple[str, ...]) -> None:
        if words == ("gone",):
            self._gone = True
        self._soon(lambda: self._obey(words))

    def _obey(self, words: tuple[str, ...]) -> None:
        word, *args = words
        if word == "rank":
            wanted = self._alive if args[1] == "*" else {int(index) for index in args[1].split(",")}
            for index in sorted(wanted & self._alive):
                self.workers[index].signal(int(args[0]))
        elif word == "all":
            for index in sorted(self._alive):
                self.workers[index].signal(int(args[0]))
            for stray in tuple(self.strays):
                stray.signal(int(args[0]))
        elif word == "stray":
            self._stray_signal = int(args[0])
        elif word == "kill":
            self._killing = True
            self.held.clear()
        elif word == "fork" and int(args[0]) in self.held:
            self.held.discard(int(args[0]))
            self._fork(int(args[0]))
        self._check()

    def owner_gone(self) -> None:
        """The pipe of commands has ended."""
        self._soon(self._owner_lost)

    def _owner_lost(self) -> None:
        self._drop_held()
        if self.farewell and not self._killing:
            for index in sorted(self._alive):
                self.workers[index].signal(signal.SIGTERM)
            self.host.after(self.farewell, self._finish)
        else:
            self._finish()

    def _drop_held(self) -> None:
        """Close what those would have inherited that were not forked."""
        for index, ends in enumerate(self._ends):
            for end in ends if index not in self.workers else ():
                end.close()
        self.held.clear()

    def _finish(self) -> None:
        if self.alive:
            self._kill_all()
            self._exit()

    # -- what may die --------------------------------------------------------------------------------

    def kill_guardian(self) -> None:
        """The guardian is killed, and its workers with it; what they have left is killed by the watcher."""
        if not self.alive:
            return
        self.world.note(f"{self.owner.name}'s guardian is killed")
        self.alive = False
        death = signal.SIGTERM if self.farewell and self.watched else signal.SIGKILL
        for index in sorted(self._alive):
            worker = self.workers[index]
            worker.on_exit = lambda: None
            self.strays += [stray for stray in worker.left if stray.status is None]
            worker.signal(death)
        self._drop_held()
        if self.watched:
            self.host.after(self.world.random.random() * self._slow, self._notice)
        else:
            self._writer.close()

    def _notice(self) -> None:
        if self.watched:
            self._say("lost", self.guardian_pid)
            self.host.after(self.farewell or 1e-3, self._swept_by_watcher)

    def _swept_by_watcher(self) -> None:
        if self.watched:
            self.sweep()
            self._say("swept")
            self._writer.close()

    def sweep(self) -> None:
        """Kill everything that is left, without the guardian."""
        for worker in self.workers.values():
            self.strays += [stray for stray in worker.left if stray.status is None and stray not in self.strays]
            worker.on_exit = lambda: None
            worker.end(int(signal.SIGKILL))
        for stray in self.strays:
            stray.end(int(signal.SIGKILL))

    def _alone(self) -> None:
        self._reap()
        if self.alive:
            self._say("alone")

    def kill_watcher(self) -> None:
        if not self.watched:
            return
        self.world.note(f"{self.owner.name}'s watcher is killed")
        self.watched = False
        if self.alive:
            self._soon(self._alone)
        else:
            self._writer.close()


class SimulatedHandle(Handle):
    """The agent's side of a simulated guardian."""

    def __init__(self, guardian: SimulatedGuardian) -> None:
        process = guardian.owner
        super().__init__(guardian.pid, -1, process.add(guardian.reading))
        self.guardian, self._process = guardian, process
        self._closed = False
        process.handles.append(self._owner_ended)

    def _owner_ended(self) -> None:
        if not self._closed:
            self._closed = True
            self.guardian.owner_gone()

    def tell(self, *words: object) -> None:
        if self._process.alive and not self._closed:
            self.guardian.tell(tuple(map(str, words)))

    def read(self) -> list[list[str]] | None:
        assert self._process.loop is not None
        data = self._process.loop.read(self.events, 65536)
        if not data:
            return None
        *lines, self._partial = (self._partial + data).split(b"\n")
        return [line.decode().split() for line in lines]

    def wait(self) -> None:
        self._process.spend(1e-3)

    def leave(self) -> None:
        self._closed = True
        self._process.do(self.guardian.owner_gone)

    def close(self, *, cleaned: bool = True) -> None:
        if self._closed and self._process.alive:
            assert self._process.loop is not None
            self._process.loop.close_fd(self.events)
        elif self._process.alive:
            assert self._process.loop is not None
            if cleaned:
                self.tell("gone")
            self._closed = True
            self._process.do(self.guardian.owner_gone)
            self._process.loop.close_fd(self.events)
