"""A guardian whose templates outlive a job: consecutive jobs on the same slots fork their ranks from them.

A `Keeper` is started by the process that all of these jobs belong to. A job finds it by a socket in the abstract
namespace, whose name it is told. It hands over what it would have given to a guardian of its own, with the ends of the
two pipes, and from then on the keeper is its guardian: by the same protocol, with the same end if the job dies.

One that outlives its command (``--keep``) has a name like those of jobs, and answers requests as they do.
"""

from __future__ import annotations

import _socket
import os
import select
import time
from _blake2 import blake2b
from _socket import SOCK_SEQPACKET as _SEQPACKET

from bireme import jsontext
from bireme import signal_numbers as signal
from bireme.errors import UnfitError
from bireme.process import guardian, kernel, oom
from bireme.process.watcher import Shared
from bireme.process.worker import WorkerStart
from bireme.resources.ownership import peer_of
from bireme.warm import template

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from typing import Any, NoReturn

    from bireme.process.templates import Template
    from bireme.process.worker import Inherited
    from bireme.warm.identity import Identity

_MOST = 240
"""Descriptors in one message; the kernel takes 253."""
_PATIENCE = 5.0
"""Seconds that it may take to end what an earlier job has left, which was killed."""
_FREE = 0.05
"""The part of the memory that must be available, or else templates that wait are ended."""
_LASTS = 600.0
"""Seconds for which one that outlives its command waits for another job."""
_LOOKS = 5.0
"""Seconds between two looks at the memory."""
_FORK = b"fork"
_PROC, _GROUPS = "/proc", "/sys/fs/cgroup"


class Keeper:
    """A keeper below this process, with a watcher of its own. It ends when it is closed, or when this process dies.

    Args:
        keep: descriptors that it holds as long as it lives.

    Attributes:
        name: by which `borrow` finds it.

    Raises:
        OSError, UnfitError: it cannot be started.
    """

    def __init__(self, keep: Sequence[int] = ()) -> None:
        self.name = f"bireme-templates-{os.geteuid()}-{os.urandom(16).hex()}"
        listener = _socket.socket(_socket.AF_UNIX, _SEQPACKET)
        try:
            listener.bind(f"\0{self.name}")
            listener.listen()
            keep = (*keep, listener.fileno())
            self.handle = guardian.start((), keep=keep, at_loss=lambda: None, serve=_Serving(listener).run)
        finally:
            listener.close()

    @classmethod
    def started(cls, keep: Sequence[int] = ()) -> Keeper | None:
        """A keeper; None if none can be started, so that each job has templates of its own."""
        try:
            return cls(keep)
        except (OSError, UnfitError):  # no such sockets, no process
            return None

    def close(self) -> None:
        """End it and its templates."""
        self.handle.close()
        try:
            self.handle.wait()
        except ChildProcessError:  # a job has killed what was left of it
            pass


def lasting(*, start: bool, lasts: float = _LASTS) -> str:
    """The name of the keeper that waits for jobs with our surroundings; "": there is none, and none can be started.

    Args:
        lasts: seconds for which one that is started waits for another job.
    """
    mark = _surroundings()
    begin, end = f"bireme-job-{os.geteuid()}-".encode(), f"-{mark}\n".encode()
    with open("/proc/net/unix", "rb") as file:
        names = [line.rpartition(b" @")[2] for line in file if line.endswith(end)]
    found = [name.decode().rstrip() for name in names if name.startswith(begin)]
    return found[0] if found else _start_lasting(mark, lasts) if start else ""


def _surroundings() -> str:
    """What ranks inherit from their guardian, and the directory, as 16 hexadecimal digits."""
    found = [os.fsencode(os.getcwd()), str((os.nice(0), os.sched_getscheduler(0))).encode()]
    for name in ("limits", "cgroup", "oom_score_adj", "personality"):
        try:
            with open(f"/proc/self/{name}", "rb") as file:
                found.append(file.read())
        except OSError:
            pass
    found += [os.readlink(f"/proc/self/ns/{name}").encode() for name in sorted(os.listdir("/proc/self/ns"))]
    with open("/proc/self/status", "rb") as file:
        found += [line for line in file if line.startswith(_INHERITED)]
    return blake2b(b"\0".join(found), digest_size=8).hexdigest()


_INHERITED = tuple(b"Umask Uid Gid Groups SigIgn SigBlk Cap NoNew Seccomp: Cpus Mems".split())


def _start_lasting(mark: str, lasts: float) -> str:
    """Start a keeper that is not below this process, and has none of its streams; return its name."""
    heard, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            if not os.fork():
                null = os.open(os.devnull, os.O_RDWR)
                for fd in range(3):
                    os.dup2(null, fd)
                os.chdir("/")
                guardian.start((), keep=(told,), at_loss=lambda: None, serve=_Serving(None, mark, told, lasts).run)
        finally:
            os._exit(0)
    os.close(told)
    name = os.read(heard, 256).decode()  # empty if it has ended
    os.close(heard)
    os.waitpid(pid, 0)
    return name


def borrow(name: str, workers: Sequence[WorkerStart], *, keep: Sequence[int]) -> guardian.Handle | None:
    """Have the keeper of this name fork the workers; None if it cannot.

    Args:
        keep: descriptors to hold as long as a worker lives.
    """
    fds = [fd for worker in workers for fd in (worker.stdin, worker.stdout, worker.stderr)]
    if len(fds) + len(keep) + 3 > _MOST:
        return None
    command_read, command_write = os.pipe()
    event_read, event_write = os.pipe()
    channel = _socket.socket(_socket.AF_UNIX, _SEQPACKET)
    channel.settimeout(_PATIENCE)
    try:
        channel.connect(f"\0{name}")
        channel.send(_FORK)
        # Another user may have taken the name of one that has ended. It answers, for only then we pass descriptors:
        # those in a message that nobody takes would stay open.
        if peer_of(channel)[1] != os.geteuid() or not channel.recv(16):
            raise ConnectionError
        job = (len(keep), [vars(worker) for worker in workers])
        template.send(channel, job, (command_read, event_write, *keep, *fds))
        pid = int(channel.recv(64) or b"0")
    except (OSError, ValueError):
        pid = 0
    finally:
        channel.close()
        for fd in (command_read, event_write):
            os.close(fd)
    if not pid:
        os.close(command_write)
        os.close(event_read)
        return None
    return _Borrowed(pid, command_write, event_read)


class _Borrowed(guardian.Handle):
    """A keeper as the guardian of a job."""

    def wait(self) -> None:
        """It is not our child, and goes on."""


class _Serving:
    """A keeper's own process.

    Args:
        listener: where it listens; None: it outlives its command, and opens the socket itself.
        mark: the end of its name then, which it writes to the descriptor ``told``.
        lasts: seconds for which it waits for another job then.
    """

    def __init__(
        self, listener: _socket.socket | None, mark: str = "", told: int = -1, lasts: float = float("inf")
    ) -> None:
        self._lasts = lasts
        self._listener, self._mark, self._told = listener or _socket.socket(_socket.AF_UNIX, _SEQPACKET), mark, told
        self._kept: dict[Identity, Template] = {}
        self._begun = time.time()
        self._modules: tuple[str, ...] = ()
        self._state, self._is_told_to_end = "waiting", False

    def run(self, shared: Shared, was: Inherited, mask: Collection[int], lifeline: int) -> NoReturn:
        """Serve one job after the other until the process above ends."""
        first = guardian.Guardian((), shared, was, mask, lifeline, 0)
        wake = first.begin()
        kernel.name_process("bireme-keeper")
        ends = ({shared.commands, lifeline} if not self._mark else {lifeline}) - {-1}
        kernel.close_all_but({*ends, *wake, *shared.keep, self._listener.fileno()})
        if self._mark:  # here, for the kernel tells who listens
            name = f"bireme-job-{os.geteuid()}-{os.getpid()}-{self._mark}"
            self._listener.bind(f"\0{name}")
            self._listener.listen()
            os.write(self._told, name.encode())
            os.close(self._told)
        signal.pthread_sigmask(signal.SIG_SETMASK, set(mask) - {signal.SIGCHLD})
        poll = select.poll()
        for fd in (self._listener.fileno(), *ends):
            poll.register(fd, select.POLLIN)
        idle_since = time.monotonic()
        while not self._is_told_to_end:
            ready = dict(poll.poll(1000 * min(_LOOKS, self._lasts) if self._kept or self._mark else None))
            if ends & ready.keys() or time.monotonic() - idle_since > self._lasts:
                break
            if self._listener.fileno() in ready:
                if (channel := self._asked()) is not None:
                    self._one_job(channel, first, mask)
                    idle_since = time.monotonic()
            elif not ready and oom.part_left(_PROC, _GROUPS) < _FREE:
                self._end_templates(lambda _: True)
                kernel.kill_below((), kernel.STUCK_WAIT)  # which also reaps them
        self._end_templates(lambda _: True)
        kernel.kill_below((), kernel.STUCK_WAIT)
        os._exit(0)

    def _asked(self) -> _socket.socket | None:
        """Answer a request; return the channel of a job that wants its ranks to be forked, if it can have it."""
        channel = _socket.socket(fileno=self._listener._accept()[0])  # type: ignore[attr-defined]
        channel.settimeout(_PATIENCE)
        try:
            uid = peer_of(channel)[1]
            asked = channel.recv(4096) if uid in (0, os.geteuid()) else b""
            if asked == _FORK and uid == os.geteuid() and self._state == "waiting":
                return channel
            if asked and asked != _FORK:
                channel.send(jsontext.dumps(self._answer(jsontext.loads(asked))).encode())
        except (OSError, ValueError):
            pass
        channel.close()
        return None

    def _answer(self, request: dict[str, Any]) -> dict[str, object]:
        """The answer to a request as jobs get them (`bireme.runner.job_requests`)."""
        if request.get("do") in ("stop", "kill"):
            self._is_told_to_end = True
            return {"said": "stopping"}
        if request.get("do") != "look":
            return {"error": "it only keeps templates for later jobs"}
        facts = {"id": os.getpid(), "started": round(self._begun), "seconds": round(time.time() - self._begun, 1)}
        words = {"name": "", "command": f"--preload {','.join(self._modules)}", "last": "", "log": ""}
        return {"said": "", **facts, **words, "nodes": [os.uname().nodename], "ranks": 0, "state": self._state}

    def _one_job(self, channel: _socket.socket, first: guardian.Guardian, mask: Collection[int]) -> None:
        fds: list[int] = []
        try:
            channel.send(b"keeper")
            (number, described), fds = template.receive(channel)
            commands, events, *rest = fds
            streams = rest[number:]
            workers = [
                WorkerStart(**{**each, **dict(zip(("stdin", "stdout", "stderr"), streams[3 * at :], strict=False))})
                for at, each in enumerate(described)
            ]
            channel.send(b"%d" % os.getpid())
        except (OSError, ValueError):
            for fd in fds:
                os.close(fd)
            return  # the job has ended
        finally:
            channel.close()
        # What a job leaves that is killed, the next one on this machine removes.
        shared = Shared(commands=commands, events=events, keep=(), at_loss=lambda: None, farewell=0.0, job_name="")
        serving = guardian.Guardian(workers, shared, first.was, mask, -1, 0)
        serving.wake_read, serving.kept = first.wake_read, self._kept
        serving.besides = self._listener.fileno(), self._asked
        self._modules, self._state = workers[0].preload, "running"
        with_signals = signal.pthread_sigmask(signal.SIG_BLOCK, guardian.CATCHABLE)
        serving.fork_all(None)
        signal.pthread_sigmask(signal.SIG_SETMASK, with_signals)
        for fd in streams:
            os.close(fd)
        for pid in serving.alive:
            serving.ends.watch(pid)
        serving.serve()
        serving.let_go()  # the job may have died
        self._end_templates(lambda each: each.is_asked or each.fd < 0)
        kernel.kill_below(serving.spare(), kernel.STUCK_WAIT)
        self._state = "waiting"
        for fd in fds[: len(fds) - len(streams)]:
            os.close(fd)

    def _end_templates(self, which: Callable[[Template], bool]) -> None:
        for key, each in list(self._kept.items()):
            if which(each):
                each.close()
                kernel.send(each.pid, signal.SIGKILL)
                del self._kept[key]
