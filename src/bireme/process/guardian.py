"""The guardian: a small process between the agent and its workers, which kills them all when the agent dies.

It forks the workers, reports their ends, and carries out the agent's commands. Agent, watcher
(:mod:`bireme.process.watcher`) and guardian are subreapers, each below the one before. Whichever of them dies, even by
SIGKILL, leaves an ancestor that kills everything below, including grandchildren in their own sessions or with an
emptied environment. A guardian *beside* the agent could not do that: orphans would not become its children.

They talk in lines of ASCII words over two pipes; ``docs/architecture.md`` has the table of all lines. End of file on a
pipe means that all its writers are dead.
"""

from __future__ import annotations

import os
import select
import sys
import time

from bireme import signal_numbers as signal
from bireme.errors import UnfitError
from bireme.planning.environment import JOB_NAME
from bireme.process import cgroup, kernel
from bireme.process.watcher import CLEANED, Shared, stand_between, write_line
from bireme.process.worker import DEAF, Inherited, become

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from resource import struct_rusage
    from typing import NoReturn

    from bireme.process.templates import Template
    from bireme.process.worker import WorkerStart
    from bireme.warm.identity import Identity


class Ends:
    """Watches children by their pidfds: tells in which order they ended, which ``waitpid`` does not.

    On a busy node the guardian may run late, after the rank that failed first and the ranks that failed because of it
    have all ended. An ``epoll`` lists ready descriptors in the order in which they became ready. Before Linux 5.3, and
    on other systems, no child is ever reported.
    """

    def __init__(self) -> None:
        self._fds: dict[int, int] = {}
        self._pids: dict[int, int] = {}
        self._epoll: select.epoll | None = None

    def watch(self, pid: int) -> None:
        """Watch a child, where the kernel can."""
        try:
            fd = os.pidfd_open(pid)
            self._epoll = self._epoll or select.epoll()
            self._epoll.register(fd, select.EPOLLIN)
        except (AttributeError, OSError):
            return
        self._fds[pid], self._pids[fd] = fd, pid

    def new(self) -> list[int]:
        """The pids of ended children that were not forgotten yet, in the order of their ends. Does not reap them."""
        if self._epoll is None or not self._pids:
            return []
        return [self._pids[fd] for fd, _ in self._epoll.poll(0, len(self._pids))]

    def forget(self, pid: int) -> None:
        """Stop watching a child that was reaped."""
        fd = self._fds.pop(pid, None)
        if fd is not None and self._epoll is not None:
            del self._pids[fd]
            self._epoll.unregister(fd)  # closing is not enough: a child between fork and exec may hold a copy
            os.close(fd)


class Handle:
    """The agent's side of a guardian."""

    def __init__(self, pid: int, commands: int, events: int) -> None:
        self.pid, self.commands, self.events = pid, commands, events
        self._partial = b""

    def tell(self, *words: object) -> None:
        """Send one command. Errors are ignored: the end of a guardian shows on its other pipe."""
        write_line(self.commands, *words)

    def read(self) -> list[list[str]] | None:
        """The events that have arrived, each as a list of words; ``None`` at end of file."""
        data = os.read(self.events, 65536)
        if not data:
            return None
        *lines, self._partial = (self._partial + data).split(b"\n")
        return [line.decode().split() for line in lines]

    def wait(self) -> None:
        """Reap the process, which has ended or is about to."""
        os.waitpid(self.pid, 0)

    def leave(self) -> None:
        """Close the pipe of commands: the guardian kills everything, does what ``at_loss`` does, and ends."""
        os.close(self.commands)
        self.commands = -1

    def close(self, *, cleaned: bool = True) -> None:
        """Close the pipes. A guardian that is still alive then kills everything and ends, and after it the watcher.

        Args:
            cleaned: what ``at_loss`` would do is done, or is left to the agent, which goes on.
        """
        if cleaned:
            self.tell("gone")
        if self.commands >= 0:
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
    serve: Callable[[Shared, Inherited, Collection[int], int], NoReturn] | None = None,
) -> Handle:
    """Fork the watcher, which forks the guardian, which forks the workers.

    Args:
        keep: descriptors to hold as long as any process lives (the port's lock).
        at_start: called in the guardian before it forks. What it creates, ``at_loss`` must be able to remove.
        at_loss: called after the processes were killed, in the guardian if the agent was lost, else in the watcher.
        at_once: how many to start at first; the others wait for ``fork``. ``empty`` comes only after all were started.
        files_limit: the (soft, hard) limit of open files for the workers; ``None``: as in this process.
        farewell: seconds between SIGTERM and SIGKILL if the agent is lost. 0 for ranks; ``srun`` needs time to give
            back an allocation.
        watched: whether to start a watcher. Without one, the workers survive if agent and guardian die at once.
        serve: what the guardian does in place of running workers.
    """
    command_read, command_write = os.pipe()
    event_read, event_write = os.pipe()
    was = Inherited(files_limit)
    # A signal before the child installs its own handlers would write into our wakeup pipe.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, CATCHABLE)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    try:
        pid = os.fork()
    except OSError as error:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        raise UnfitError(f"cannot start a process: {error.strerror}", hint=_FORK_HINT) from None
    if pid == 0:
        try:
            shared = Shared(
                commands=command_read,
                events=event_write,
                keep=tuple(keep),
                at_loss=at_loss,
                farewell=farewell,
                job_name=workers[0].env.get(JOB_NAME, "") if workers else "",
            )
            above = stand_between(shared) if watched and kernel.LINUX else (-1, os.getpid())
            if serve is not None:
                serve(shared, was, mask, above[0])
            Guardian(workers, shared, was, mask, *above).run(at_start, at_once)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(1)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    os.close(command_read)
    os.close(event_write)
    return Handle(pid, command_write, event_read)


_FORK_HINT = "check the limit of the user (ulimit -u) and of the control group (pids.max)"
CATCHABLE = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}


class Guardian:
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
        self.workers, self.shared, self.was, self.mask = list(workers), shared, was, mask
        self.commands, self.events = shared.commands, shared.events
        self.lifeline = lifeline  # end of file: the watcher is dead; -1: there is no watcher
        self.handle_pid = handle_pid
        self.alive: dict[int, int] = {}  # pid → index
        self.ends = Ends()
        self.stray_signal = 0
        self.signalled: set[int] = set()
        self.awaited = 0  # a signal for each worker as soon as it expects it
        self.told: set[int] = set()  # who has got that
        self.held: set[int] = set()
        self.templates: list[Template] = []
        self.besides: tuple[int, Callable[[], object]] = (-1, lambda: None)  # a descriptor, and what reads it
        self.kept: dict[Identity, Template] | None = None  # see `templates.start`; None: they are for this job only
        self.poll = select.poll()
        self.killing = self.reported = self.cleaned = self.over = False
        self.partial = b""
        self.group = ""
        self.wake_read = -1

    def run(self, at_start: Callable[[], object], at_once: int | None) -> NoReturn:
        """Fork the workers (for the arguments see :func:`start`) and serve the agent, until nothing is left."""
        wake = self.begin()
        self.group = cgroup.enter(self.handle_pid)
        try:
            at_start()
        except OSError:
            pass  # a directory for tracebacks, a pid file: the job can run without them
        pipes = self.fork_all(at_once)
        lifeline = {self.lifeline} - {-1}
        kernel.close_all_but({self.commands, self.events, *lifeline, *wake, *self.shared.keep, *pipes})
        for pid in self.alive:  # after closing descriptors; a worker that ended before is still reported
            self.ends.watch(pid)
        signal.pthread_sigmask(signal.SIG_SETMASK, set(self.mask) - {signal.SIGCHLD})
        for fd in lifeline:
            self.poll.register(fd, select.POLLIN)
        self.serve()
        os._exit(CLEANED if self.cleaned else 0)

    def begin(self) -> tuple[int, int]:
        """Make this process a guardian; return the descriptors by which signals wake it."""
        os.setsid()  # Ctrl+C at the terminal is handled by the agent
        kernel.become_subreaper()
        name = self.shared.job_name
        kernel.name_process(f"bireme:{name}" if name else "bireme-guard")
        wake = self._take_signals()
        self.wake_read = wake[0]
        return wake

    def fork_all(self, at_once: int | None) -> set[int]:
        """Fork the workers, but those that are held back, whose descriptors it returns."""
        now = len(self.workers) if at_once is None else min(at_once, len(self.workers))
        warm = self._start_templates()
        for index in range(now):
            if index not in warm:
                self._fork(index)
        self.held = {*range(now, len(self.workers)), *warm}
        later = [self.workers[index] for index in self.held]
        pipes = {fd for worker in later for fd in (worker.stdin, worker.stdout, worker.stderr)}
        return pipes.union(*((template.fd, template.err) for template in self.templates))

    def serve(self) -> None:
        """Serve the agent until nothing is left, or until the agent is lost and everything was killed."""
        poll = self.poll
        besides, hear_besides = self.besides
        for fd in {self.commands, self.wake_read, besides, *(template.fd for template in self.templates)} - {-1}:
            poll.register(fd, select.POLLIN)
        self._hear_templates()  # one of an earlier job is ready, and has nothing to say
        while True:
            # While killing, check again regularly: a process adopted between fork and exec causes no signal.
            # Nor does a worker that installs a handler.
            ready = dict(poll.poll(100 if self.killing or self._tell_awaited() else None))
            if self.wake_read in ready:
                os.read(self.wake_read, 4096)
            if self.commands in ready and not self._obey():
                self._agent_lost()
                return
            if besides in ready:
                hear_besides()
            self._hear_templates()
            self._reap()
            if self.over:
                return
            if self.lifeline in ready:  # after the ends of workers, which may have come before
                poll.unregister(self.lifeline)
                write_line(self.events, "alone")
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
        """Start a worker; return its pid, 0 on failure."""
        try:
            pid = self._fork_program(self.workers[index])
        except OSError as error:
            write_line(self.events, "unborn", index, error.errno)
            return 0
        self._is_up(index, pid)
        return pid

    def _fork_program(self, worker: WorkerStart) -> int:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            become(worker, parent, self._death(), self.was, self.mask)
        return pid

    def _death(self) -> int:
        """What a worker gets if this process dies. One that gets time to end is killed by the watcher later."""
        return signal.SIGTERM if self.shared.farewell and self.lifeline >= 0 else signal.SIGKILL

    def _is_up(self, index: int, pid: int) -> None:
        self.alive[pid] = index
        write_line(self.events, "up", index, pid, f"{time.monotonic():.6f}")

    def _fork_held(self, index: int) -> None:
        # A signal before the child sets its own dispositions would be ignored, as in this process.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, CATCHABLE)
        pid = self._fork(index)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if pid:
            self.ends.watch(pid)
        self._release(index)

    def _release(self, index: int) -> None:
        """A worker that was held back has its streams now, or needs none."""
        if index not in self.held:
            return
        self.held.discard(index)
        worker = self.workers[index]
        for fd in {worker.stdin, worker.stdout, worker.stderr}:
            os.close(fd)

    def let_go(self) -> None:
        """Start none of the workers any more that wait for a template. Nobody else must hold their streams."""
        for template in self.templates:
            for index in template.waiting:
                self._release(index)

    # -- templates -------------------------------------------------------------------------------

    def _start_templates(self) -> set[int]:
        """Start the templates of the workers; return the workers that wait for one."""
        if not any(worker.preload for worker in self.workers):
            return set()
        from bireme.process import templates

        self.templates = templates.start(self.workers, self._fork_program, self.kept)
        waiting = {index for template in self.templates for index in template.waiting}
        for index in waiting:  # to close them by themselves: a stream may be our own, or that of several ranks
            worker = self.workers[index]
            streams = {name: os.dup(getattr(worker, name)) for name in ("stdin", "stdout", "stderr")}
            self.workers[index] = worker.replace(**streams)
        return waiting

    def _hear_templates(self) -> None:
        """Do what templates say, and let those go that are not needed any more."""
        for template in self.templates[:]:
            fd, said = template.fd, template.read()
            if template.fd < 0:  # first: another template may get its number
                self.poll.unregister(fd)
            for kind, *args in said:
                if kind == "cold":
                    waiting, template.waiting = [index for index in template.waiting if index in self.held], []
                    if waiting:
                        write_line(self.events, "cold", *args)
                    for index in waiting:
                        self._fork_held(index)
                elif kind == "stale":
                    again = type(template)(self.workers[template.waiting[0]], template.waiting, self._fork_program)
                    template.waiting = []
                    self.templates.append(again)
                    if self.kept is not None:
                        self.kept.update({key: again for key, kept in self.kept.items() if kept is template})
                    self.poll.register(again.fd, select.POLLIN)
                elif kind != "ready":
                    index = int(args[0])
                    template.waiting.remove(index)
                    self._release(index)
                    if kind == "unborn":
                        write_line(self.events, "unborn", index, args[1])
                        continue
                    self._is_up(index, int(args[1]))
                    self.ends.watch(int(args[1]))
                    if self.stray_signal:  # it has missed the signal to all ranks
                        kernel.send(int(args[1]), self.stray_signal)
            waiting = [index for index in template.waiting if index in self.held]
            if waiting and template.is_ready and not template.is_asked and template.fd >= 0:
                template.ask(waiting[0], self.workers[waiting[0]], self._death())
            elif said and not waiting:
                self.templates.remove(template)
                if template.fd >= 0:
                    self.poll.unregister(fd)
                if self.kept is None:
                    template.close()

    def _reap(self) -> None:
        for pid in self.ends.new():  # in the order of their ends: the first is the rank that failed first
            self._reap_one(*os.wait4(pid, os.WNOHANG))
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                pid = -1
            if pid <= 0:
                break
            self._reap_one(pid, status, usage)
        if pid < 0 or (self.kept and not self.alive and not self._others()):
            if not self.held:
                cgroup.leave(self.group)
                cgroup.remove(self.group)
                write_line(self.events, "empty")
                self.over = True
            return
        if self.stray_signal:
            self._signal_strays()
        if not self.alive and not self.held and not self.reported:
            self.reported = True
            write_line(self.events, "deserted")

    def _reap_one(self, pid: int, status: int, usage: struct_rusage) -> None:
        if pid not in self.alive:
            self._hear_templates()  # it has told of the rank before the rank became our child
        index = self.alive.pop(pid, None)
        if index is not None:
            self.ends.forget(pid)
            most = usage.ru_maxrss * (1024 if kernel.LINUX else 1)
            write_line(self.events, "down", index, status, f"{time.monotonic():.6f}", most)

    def _tell_awaited(self) -> list[int]:
        """Send the awaited signal to those workers that expect it by now; the indexes of those that do not yet."""
        for pid in [pid for pid in self.alive if self.awaited and pid not in self.told]:
            if _survives(pid, self.awaited):
                self.told.add(pid)
                kernel.send(pid, self.awaited)
        return [index for pid, index in self.alive.items() if self.awaited and pid not in self.told]

    def _signal_all(self, signum: int) -> None:
        spare = self.spare()
        for pid in kernel.descendants([os.getpid()]):
            if pid not in spare:
                kernel.send(pid, signum)
        if not kernel.LINUX:  # no process tree: each worker leads a process group
            for pid in self.alive:
                kernel.send(-pid, signum)

    def spare(self) -> set[int]:
        """The templates that are kept for later jobs."""
        return {template.pid for template in (self.kept or {}).values()}

    def _others(self) -> set[int]:
        return set(kernel.children()) - self.spare()

    def _signal_strays(self) -> None:
        """Signal, once, every process that an ended worker left: it is our child now, or below one."""
        adopted = [pid for pid in self._others() if pid not in self.alive]
        if adopted:
            for pid in {*adopted, *kernel.descendants(adopted)} - self.signalled:
                self.signalled.add(pid)
                kernel.send(pid, self.stray_signal)
                kernel.send(pid, signal.SIGCONT)

    # -- the agent -------------------------------------------------------------------------------

    def _obey(self) -> bool:
        """Carry out the commands that have arrived; ``False`` if the agent is gone."""
        data = os.read(self.commands, 65536)
        if not data:
            return False
        *lines, self.partial = (self.partial + data).split(b"\n")
        for line in lines:
            word, *args = line.decode().split()
            if word == "rank":
                wanted = None if args[1] == "*" else set(map(int, args[1].split(",")))
                deaf = []
                for pid, index in list(self.alive.items()):
                    if wanted is None or index in wanted:
                        if _survives(pid, int(args[0])):
                            kernel.send(pid, int(args[0]))
                        else:
                            deaf.append(index)
                if deaf:
                    write_line(self.events, "deaf", args[0], *deaf)
            elif word == "await":
                self.awaited = int(args[0])
                if deaf := self._tell_awaited():
                    write_line(self.events, "later", args[0], *deaf)
            elif word == "all":
                self._signal_all(int(args[0]))
            elif word == "stray":
                self.stray_signal, self.awaited = int(args[0]), 0
                self.let_go()
            elif word == "gone":
                self.cleaned = True
            elif word == "kill":
                self.killing, self.awaited = True, 0
                self.let_go()
                self.held.clear()
            elif word == "fork" and int(args[0]) in self.held:
                self._fork_held(int(args[0]))
        return True

    def _agent_lost(self) -> None:
        if self.shared.farewell and not self.killing:
            self._bid_farewell()
        cgroup.leave(self.group)
        cgroup.kill(self.group)
        self._signal_all(signal.SIGKILL)
        kernel.kill_below(self.spare(), kernel.STUCK_WAIT)
        cgroup.remove(self.group)
        if not self.cleaned:
            self.shared.at_loss()

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


def _survives(pid: int, signum: int) -> bool:
    """Whether a worker may get a signal: it does not die of it, unless that is what the signal is for."""
    if signum not in (signal.SIGUSR1, signal.SIGUSR2):
        return True
    its, ours = kernel.stat_of(pid), kernel.stat_of(os.getpid())
    is_executed = its is None or ours is None or its[0] != ours[0]  # until then all signals are blocked
    return is_executed and kernel.expects(pid, signum)
