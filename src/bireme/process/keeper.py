"""A guardian whose templates outlive a job: the jobs that follow each other on one place fork their ranks from them.

`start` is called by the process that all of these jobs belong to. A job finds the keeper by a socket that the variable
`BIREME_TEMPLATES` names. It hands over what it would have given to a guardian of its own, with the ends of the two
pipes, and from then on the keeper is its guardian: by the same protocol, with the same end if the job dies.
"""

from __future__ import annotations

import _socket
import marshal
import os
import select
import sys

from bireme import signal_numbers as signal
from bireme.process import guardian, kernel
from bireme.process.watcher import Shared
from bireme.process.worker import WorkerStart

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
_MEMINFO = "/proc/meminfo"


def start(path: str, *, keep: Sequence[int]) -> guardian.Handle:
    """Start a keeper that listens at this path, below a watcher; it ends when the handle's pipe is closed.

    Args:
        keep: descriptors to hold as long as it lives.
    """
    listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    listener.bind(path)
    os.chmod(path, 0o600)
    listener.listen()
    try:
        keep = (*keep, listener.fileno())
        return guardian.start((), keep=keep, at_loss=lambda: remove(path), serve=_Keeper(listener).run)
    finally:
        listener.close()


def remove(path: str) -> None:
    """Remove the socket, and its folder if it was the last one there."""
    for do, what in ((os.unlink, path), (os.rmdir, os.path.dirname(path))):
        try:
            do(what)
        except OSError:
            pass


def borrow(path: str, workers: Sequence[WorkerStart], *, keep: Sequence[int]) -> guardian.Handle | None:
    """Have the keeper that listens at this path fork the workers; None if it cannot.

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
        channel.connect(path)
        if not channel.recv(16):  # only then: descriptors in a message that nobody takes would stay open
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


class _Keeper:
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
            elif not ready and _memory_is_short():
                self._end_templates(lambda _: True)
                kernel.kill_below((), kernel.STUCK_WAIT)  # which also reaps them
        self._end_templates(lambda _: True)
        kernel.kill_below((), kernel.STUCK_WAIT)
        shared.at_loss()
        os._exit(0)

    def _one_job(self, first: guardian.Guardian, mask: Collection[int]) -> None:
        channel = _socket.socket(fileno=self._listener._accept()[0])  # type: ignore[attr-defined]
        channel.settimeout(_PATIENCE)
        fds: list[int] = []
        try:
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
            return  # the job has ended
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


def _memory_is_short() -> bool:
    with open(_MEMINFO) as file:
        found = {line.split(":")[0]: int(line.split()[1]) for line in file}
    return found["MemAvailable"] < _FREE * found["MemTotal"]
