"""A guardian whose templates outlive a job: the jobs that follow each other on one place fork their ranks from them.

A `Keeper` is started by the process that all of these jobs belong to. A job finds it by a socket in the abstract
namespace, whose name it is told. It hands over what it would have given to a guardian of its own, with the ends of the
two pipes, and from then on the keeper is its guardian: by the same protocol, with the same end if the job dies.
"""

from __future__ import annotations

import _socket
import marshal
import os
import select
import sys

from bireme import signal_numbers as signal
from bireme.process import guardian, kernel, oom
from bireme.process.watcher import Shared
from bireme.process.worker import WorkerStart
from bireme.resources.ownership import peer_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from typing import NoReturn

    from bireme.process.templates import Template
    from bireme.process.worker import Inherited
    from bireme.warm.identity import Identity

_MOST = 240
"""Descriptors in one message; the kernel takes 253."""
_PATIENCE = 5.0
"""Seconds that it may take to end what an earlier job has left, which was killed."""
_FREE = 0.05
"""The part of the memory that must be available, or else templates that wait are ended."""
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
        listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        try:
            listener.bind(f"\0{self.name}")
            listener.listen()
            keep = (*keep, listener.fileno())
            self.handle = guardian.start((), keep=keep, at_loss=lambda: None, serve=_Serving(listener).run)
        finally:
            listener.close()

    def close(self) -> None:
        """End it and its templates."""
        self.handle.close()
        self.handle.wait()


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
    body = os.memfd_create("job")
    os.write(body, marshal.dumps((len(keep), [vars(worker) for worker in workers]), 2))
    channel = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    channel.settimeout(_PATIENCE)
    try:
        channel.connect(f"\0{name}")
        # Another user may have taken the name of one that has ended. It answers, for only then we pass descriptors:
        # those in a message that nobody takes would stay open.
        if peer_of(channel)[1] != os.geteuid() or not channel.recv(16):
            raise ConnectionError
        passed = b"".join(fd.to_bytes(4, sys.byteorder) for fd in (command_read, event_write, body, *keep, *fds))
        channel.sendmsg([b"job"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, passed)])
        pid = int(channel.recv(64) or b"0")
    except (OSError, ValueError):
        pid = 0
    finally:
        channel.close()
        for fd in (command_read, event_write, body):
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
    def __init__(self, listener: _socket.socket) -> None:
        self._listener = listener
        self._kept: dict[Identity, Template] = {}

    def run(self, shared: Shared, was: Inherited, mask: Collection[int], lifeline: int) -> NoReturn:
        """Serve one job after the other until the process above ends."""
        first = guardian.Guardian((), shared, was, mask, lifeline, 0)
        wake = first.begin()
        kernel.name_process("bireme-keeper")
        ends = {shared.commands, lifeline} - {-1}
        kernel.close_all_but({*ends, *wake, *shared.keep})
        signal.pthread_sigmask(signal.SIG_SETMASK, set(mask) - {signal.SIGCHLD})
        poll = select.poll()
        for fd in (self._listener.fileno(), *ends):
            poll.register(fd, select.POLLIN)
        while True:
            ready = dict(poll.poll(5000 if self._kept else None))
            if ends & ready.keys():
                break
            if self._listener.fileno() in ready:
                self._one_job(first, mask)
            elif not ready and oom.part_left(_PROC, _GROUPS) < _FREE:
                self._end_templates(lambda _: True)
                kernel.kill_below((), kernel.STUCK_WAIT)  # which also reaps them
        self._end_templates(lambda _: True)
        kernel.kill_below((), kernel.STUCK_WAIT)
        os._exit(0)

    def _one_job(self, first: guardian.Guardian, mask: Collection[int]) -> None:
        channel = _socket.socket(fileno=self._listener._accept()[0])  # type: ignore[attr-defined]
        channel.settimeout(_PATIENCE)
        fds: list[int] = []
        try:
            if peer_of(channel)[1] != os.geteuid():
                raise PermissionError
            channel.send(b"keeper")
            _, ancillary, _, _ = channel.recvmsg(16, _socket.CMSG_SPACE(4 * _MOST), _socket.MSG_CMSG_CLOEXEC)
            passed = b"".join(bytes(item[2]) for item in ancillary)
            fds = [int.from_bytes(passed[at : at + 4], sys.byteorder) for at in range(0, len(passed), 4)]
            commands, events, body, *rest = fds
            number, described = marshal.loads(os.pread(body, os.fstat(body).st_size, 0))
            streams = rest[number:]
            workers = [
                WorkerStart(**{**each, **dict(zip(("stdin", "stdout", "stderr"), streams[3 * at :], strict=False))})
                for at, each in enumerate(described)
            ]
            channel.send(b"%d" % os.getpid())
        except (OSError, ValueError):
            for fd in fds:
                os.close(fd)
            return  # the job has ended, or it is not of this user
        finally:
            channel.close()
        # What a job leaves that is killed, the next one on this machine removes.
        shared = Shared(commands=commands, events=events, keep=(), at_loss=lambda: None, farewell=0.0, job_name="")
        serving = guardian.Guardian(workers, shared, first.was, mask, -1, 0)
        serving.wake_read, serving.kept = first.wake_read, self._kept
        with_signals = signal.pthread_sigmask(signal.SIG_BLOCK, guardian.CATCHABLE)
        serving.fork_all(None)
        signal.pthread_sigmask(signal.SIG_SETMASK, with_signals)
        for fd in streams:
            os.close(fd)
        for pid in serving.alive:
            serving.ends.watch(pid)
        serving.serve()
        serving.let_go()  # the job may have died
        self._end_templates(lambda template: template.is_asked or template.fd < 0)
        kernel.kill_below(serving.spare(), kernel.STUCK_WAIT)
        for fd in fds[: len(fds) - len(streams)]:
            os.close(fd)

    def _end_templates(self, which: Callable[[Template], bool]) -> None:
        for key, template in list(self._kept.items()):
            if which(template):
                template.close()
                kernel.send(template.pid, signal.SIGKILL)
                del self._kept[key]
