"""The guardian: a small process between the agent and its workers.

It forks the workers, reports their ends, and carries out what the agent tells it. Agent, watcher
(:mod:`bireme.process.watcher`) and guardian are subreapers, each below the one before it, so that
whichever of them dies, by SIGKILL too, leaves an ancestor that kills everything below: grandchildren
in sessions of their own and with an emptied environment included. A guardian *beside* the agent would
not do, since orphans go past it.

They speak in lines of ASCII words over two pipes; the end of either pipe is the end of its writers.

=================  =====================================================================
agent → guardian   ``rank SIG *|i,j…``   signal to workers, by their index
\\                  ``all SIG``            signal to everything below (suspend, resume)
\\                  ``stray SIG``          and, from now on, to whatever an ended worker leaves
\\                  ``kill``               SIGKILL to everything below, until nothing is left
\\                  ``fork i``             start worker ``i``, which was held back
\\                  ``gone``               the agent needs neither files nor us any more
guardian → agent   ``up i PID T``         worker ``i`` was forked, at monotonic second T
\\                  ``down i STATUS T``    it ended, with this wait status
\\                  ``unborn i ERRNO``     it could not be forked
\\                  ``deserted``           all workers have ended, but something is left
\\                  ``empty``              nothing is left; the guardian ends
\\                  ``alone``              the watcher was killed
watcher → agent    ``lost PID``           the guardian was killed
\\                  ``swept PID…``         what it has left was killed, but for these
\\                  ``unguarded ERRNO``    the guardian could not be forked
=================  =====================================================================
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

from bireme.errors import UnfitError
from bireme.process import cgroup, kernel
from bireme.process.ends import Ends
from bireme.process.watcher import Shared, stand_between
from bireme.process.worker import DEAF, Inherited, become

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from typing import NoReturn

    from bireme.process.worker import WorkerStart


class Handle:
    """The agent's end: the pid of its child, which is the watcher, or the guardian if there is none; the two pipes."""

    def __init__(self, pid: int, commands: int, events: int) -> None:
        self.pid, self.commands, self.events = pid, commands, events
        self._partial = b""

    def tell(self, *words: object) -> None:
        """Send one command; a guardian that is gone is noticed at its other pipe."""
        try:
            os.write(self.commands, (" ".join(map(str, words)) + "\n").encode())
        except OSError:
            pass

    def read(self) -> list[list[str]] | None:
        """The events that have come, each as its words; ``None`` at the guardian's end."""
        data = os.read(self.events, 65536)
        if not data:
            return None
        *lines, self._partial = (self._partial + data).split(b"\n")
        return [line.decode().split() for line in lines]

    def close(self) -> None:
        """Let go of the pipes: a guardian that still lives kills everything and ends, and then the watcher does."""
        self.tell("gone")
        os.close(self.commands)
        os.close(self.events)


def start(
    workers: Sequence[WorkerStart],
    *,
    keep: Sequence[int] = (),
    at_start: Callable[[], object] = lambda: None,
    at_loss: Callable[[], object],
    at_once: int | None = None,
    files_limit: tuple[int, int] | None = None,
    farewell: float = 0.0,
    watched: bool = True,
) -> Handle:
    """Fork the watcher, which forks the guardian, which forks the workers.

    Args:
        workers: what to start, by index.
        at_once: how many to start now; the others wait for ``fork``. Nothing is ``empty`` before all were started.
        files_limit: the (soft, hard) limit of open files that the workers shall have, if it is not ours.
        farewell: seconds between SIGTERM and SIGKILL when the agent was lost; ranks get none, but ``srun`` has an
            allocation to give back.
        keep: descriptors that are held for as long as anything lives (the port's lock).
        at_start: called in the guardian before it forks: whatever it makes, ``at_loss`` can remove.
        at_loss: called after the killing, in the guardian when the agent was lost, in the watcher when that was.
        watched: whether there is a watcher; without one, the death of agent and guardian in one instant leaves what
            the workers have started.
    """
    command_read, command_write = os.pipe()
    event_read, event_write = os.pipe()
    was = Inherited(files_limit)
    # A signal between fork and the child's own handlers would write into our wakeup pipe, twice.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _CATCHABLE)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    try:
        pid = os.fork()
    except OSError as error:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        raise UnfitError(f"cannot start a process: {error.strerror}", hint=_FORK_MEND) from None
    if pid == 0:
        try:
            shared = Shared(command_read, event_write, tuple(keep), at_loss, farewell)
            above = stand_between(shared) if watched and kernel.LINUX else (-1, os.getpid())
            _Guardian(workers, shared, was, mask, *above).run(at_start, at_once)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(1)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    os.close(command_read)
    os.close(event_write)
    return Handle(pid, command_write, event_read)


_FORK_MEND = "the limit may be that of the user (ulimit -u) or of the control group (pids.max)"
_CATCHABLE = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}


class _Guardian:
    """The guardian's own process; :meth:`run` never returns."""

    def __init__(
        self,
        workers: Sequence[WorkerStart],
        shared: Shared,
        was: Inherited,
        mask: Collection[int],
        lifeline: int,
        handle_pid: int,
    ) -> None:
        self.workers, self.shared, self.was, self.mask = workers, shared, was, mask
        self.commands, self.events = shared.commands, shared.events
        self.lifeline = lifeline  # its end is that of the watcher; -1: there is none
        self.handle_pid = handle_pid
        self.alive: dict[int, int] = {}  # pid → index
        self.ends = Ends()
        self.stray_signal = 0
        self.signalled: set[int] = set()
        self.held: set[int] = set()
        self.killing = self.reported = False
        self.partial = b""
        self.group = ""
        self.wake_read = -1

    def run(self, at_start: Callable[[], object], at_once: int | None) -> NoReturn:
        """Fork the workers (for the arguments see :func:`start`) and serve the agent, until nothing is left."""
        os.setsid()  # Ctrl+C at the terminal is for the agent to decide upon
        kernel.become_subreaper()
        kernel.name_process("bireme-guard")
        wake = self._take_signals()
        self.wake_read = wake[0]
        self.group = cgroup.enter(self.handle_pid)
        try:
            at_start()
        except OSError:
            pass  # a directory for tracebacks, a pid file: not worth a job
        now = len(self.workers) if at_once is None else min(at_once, len(self.workers))
        for index in range(now):
            self._fork(index)
        self.held = set(range(now, len(self.workers)))
        later = [self.workers[index] for index in self.held]
        pipes = {fd for worker in later for fd in (worker.stdin, worker.stdout, worker.stderr)}
        lifeline = {self.lifeline} - {-1}
        kernel.close_all_but({self.commands, self.events, *lifeline, *wake, *self.shared.keep, *pipes})
        for pid in self.alive:  # after the descriptors were sorted out; who has ended meanwhile is known all the same
            self.ends.watch(pid)
        signal.pthread_sigmask(signal.SIG_SETMASK, set(self.mask) - {signal.SIGCHLD})
        poll = select.poll()
        poll.register(self.commands, select.POLLIN)
        poll.register(wake[0], select.POLLIN)
        for fd in lifeline:
            poll.register(fd, select.POLLIN)
        while True:
            # While killing, look again now and then: a process adopted in mid-fork sends no signal.
            ready = dict(poll.poll(100 if self.killing else None))
            if wake[0] in ready:
                os.read(wake[0], 4096)
            if self.commands in ready and not self._obey():
                self._agent_lost()
            if self.lifeline in ready:
                poll.unregister(self.lifeline)
                self._say("alone")
            self._reap()
            if self.killing:
                self._signal_all(signal.SIGKILL)

    def _take_signals(self) -> tuple[int, int]:
        for signum in DEAF:
            signal.signal(signum, signal.SIG_IGN)
        wake = os.pipe()
        for fd in wake:
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake[1], warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        return wake

    # -- workers ---------------------------------------------------------------------------------

    def _fork(self, index: int) -> int:
        """Start a worker; its pid, or 0."""
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            self._say("unborn", index, error.errno)
            return 0
        if pid == 0:
            # One that has to be asked is asked now, and killed by the watcher if it does not hear.
            death = signal.SIGTERM if self.shared.farewell and self.lifeline >= 0 else signal.SIGKILL
            become(self.workers[index], parent, death, self.was, self.mask)
        self.alive[pid] = index
        self._say("up", index, pid, f"{time.monotonic():.6f}")
        return pid

    def _fork_held(self, index: int) -> None:
        self.held.discard(index)
        # A signal that comes before the child's own dispositions would find ours, which ignore it.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _CATCHABLE)
        pid = self._fork(index)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if pid:
            self.ends.watch(pid)
        worker = self.workers[index]
        for fd in {worker.stdin, worker.stdout, worker.stderr}:
            os.close(fd)

    def _reap(self) -> None:
        for pid in self.ends.new():  # in the order in which they came: the first is who has failed first
            self._reap_one(*os.waitpid(pid, os.WNOHANG))
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                if self.held:
                    return
                cgroup.leave(self.group)
                cgroup.remove(self.group)
                self._say("empty")
                os._exit(0)
            if pid == 0:
                break
            self._reap_one(pid, status)
        if self.stray_signal:
            self._signal_strays()
        if not self.alive and not self.held and not self.reported:
            self.reported = True
            self._say("deserted")

    def _reap_one(self, pid: int, status: int) -> None:
        index = self.alive.pop(pid, None)
        if index is not None:
            self.ends.forget(pid)
            self._say("down", index, status, f"{time.monotonic():.6f}")

    def _signal_all(self, signum: int) -> None:
        below = kernel.descendants([os.getpid()])
        for pid in below:
            kernel.send(pid, signum)
        if not kernel.LINUX:  # no tree to be had: each worker leads a group of its own
            for pid in self.alive:
                kernel.send(-pid, signum)

    def _signal_strays(self) -> None:
        """What an ended worker has left hangs directly below us: signal each such tree, once."""
        adopted = [pid for pid in kernel.children() if pid not in self.alive]
        if adopted:
            for pid in {*adopted, *kernel.descendants(adopted)} - self.signalled:
                self.signalled.add(pid)
                kernel.send(pid, self.stray_signal)
                kernel.send(pid, signal.SIGCONT)

    # -- the agent -------------------------------------------------------------------------------

    def _say(self, *words: object) -> None:
        try:
            os.write(self.events, (" ".join(map(str, words)) + "\n").encode())
        except OSError:  # the agent is gone: its other pipe says so too
            pass

    def _obey(self) -> bool:
        """Carry out what has come; ``False`` when the agent is gone."""
        data = os.read(self.commands, 65536)
        if not data:
            return False
        *lines, self.partial = (self.partial + data).split(b"\n")
        for line in lines:
            word, *args = line.decode().split()
            if word == "rank":
                wanted = None if args[1] == "*" else set(map(int, args[1].split(",")))
                for pid, index in list(self.alive.items()):
                    if wanted is None or index in wanted:
                        kernel.send(pid, int(args[0]))
            elif word == "all":
                self._signal_all(int(args[0]))
            elif word == "stray":
                self.stray_signal = int(args[0])
            elif word == "kill":
                self.killing = True
                self.held.clear()
            elif word == "fork" and int(args[0]) in self.held:
                self._fork_held(int(args[0]))
        return True

    def _agent_lost(self) -> NoReturn:
        if self.shared.farewell and not self.killing:
            self._bid_farewell()
        cgroup.leave(self.group)
        cgroup.kill(self.group)
        self._signal_all(signal.SIGKILL)
        kernel.kill_below((), kernel.STUCK_WAIT)
        cgroup.remove(self.group)
        self.shared.at_loss()
        os._exit(0)

    def _bid_farewell(self) -> None:
        deadline = time.monotonic() + self.shared.farewell
        for pid in self.alive:
            kernel.send(pid, signal.SIGTERM)
        wake = select.poll()
        wake.register(self.wake_read, select.POLLIN)
        while self.alive and (left := deadline - time.monotonic()) > 0:
            if wake.poll(left * 1000):
                os.read(self.wake_read, 4096)
            for pid in list(self.alive):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    del self.alive[pid]
