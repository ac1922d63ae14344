"""The rendezvous port: one that is free, and that no other job of ours takes at the same time.

Whether a port is free can be tested, but the job's first rank listens on it only seconds later,
when PyTorch is imported; two jobs started together would both find 29500 free. So the number is
leased: whoever binds the name ``bireme-port-29500`` in the abstract socket namespace has it. Such
a name has no file, belongs to the network namespace (so do ports: containers do not meet), and is
gone when the last process that holds it is, however it ended. Systems without that namespace
(macOS) have no lock, only the test.

A lease speaks of this machine, so it means something only where this machine is the master.
"""

from __future__ import annotations

# Not ``socket``: its enumerations cost 4 ms on the way to the first worker, this nearly nothing.
import _socket
import errno
import os
import sys

from bireme.errors import BadInputError, UnfitError
from bireme.job import DEFAULT_PORT

TRIED = 100
"""So many ports, from the default on, are tried before the system is asked for any."""

_LAST = 65535
_NO_LOCK = -1
_BACKLOG = 4096  # all nodes of a job try the port at the same moment, and nobody accepts
_REFUSED = (errno.EADDRINUSE, errno.EACCES, errno.EPERM)


class PortLease:
    """A port that is ours for as long as a process holds the lease.

    The lock is a file descriptor: a forked process holds it too, a program that is executed does
    not. It is released by :meth:`close` or when the process ends, never by the garbage collector.
    """

    def __init__(self, port: int, fd: int) -> None:
        self.port = port
        self._fd = fd

    def fileno(self) -> int:
        """The lock's descriptor; -1 when there is none (closed, or the system has no such lock)."""
        return self._fd

    def close(self) -> None:
        """Let go of the port, in this process; a second time does nothing."""
        fd, self._fd = self._fd, _NO_LOCK
        if fd != _NO_LOCK:
            os.close(fd)

    def __repr__(self) -> str:
        return f"PortLease(port={self.port}, fd={self._fd})"


class Listener:
    """A leased port that is listened on, so that others can try whether they reach it."""

    def __init__(self, lease: PortLease) -> None:
        self._lease = lease
        self._socket = _listen(lease.port)

    def hand_over(self) -> tuple[int, ...]:
        """Stop listening: the job's first rank will. Return the lock's descriptor, if there is one."""
        self._socket.close()
        return (self._lease.fileno(),) if self._lease.fileno() != _NO_LOCK else ()


def lease_port(default: int = DEFAULT_PORT) -> tuple[PortLease, str]:
    """Lease the default port, one of those after it, or any.

    Returns:
        The lease, and what to say about it: nothing when it is the default port.

    Raises:
        UnfitError: this machine lets nobody listen.
    """
    last = min(default + TRIED - 1, _LAST)
    for port in range(default, last + 1):
        fd = _lock(port)
        if fd is None:
            continue
        if _can_listen(port):
            return PortLease(port, fd), "" if port == default else f"port {default} is taken: using {port}"
        _unlock(fd)
    for _ in range(TRIED):
        # The probe stays open until the number is locked, so that the system gives it to nobody else.
        try:
            probe = _listen(0)
        except OSError:
            continue
        port = probe.getsockname()[1]
        fd = _lock(port)
        probe.close()
        if fd is not None:
            return PortLease(port, fd), f"ports {default} to {last} are taken: using {port}"
    raise UnfitError("no free port was found for the rendezvous")


def lease_named_port(port: int) -> PortLease:
    """Lease the port that the user named.

    Raises:
        BadInputError: the port is taken, forbidden to this user, or no port at all.
        UnfitError: this machine lets nobody listen.
    """
    where = "--master_port"
    if not 1 <= port <= _LAST:
        raise BadInputError(f"{port} is not a port: they go from 1 to {_LAST}", where=where)
    mend = "leave the option out, and a free port is chosen"
    fd = _lock(port)
    if fd is None:
        raise BadInputError(f"port {port} is taken by another job of Bireme", mend=mend, where=where)
    try:
        _listen(port).close()
    except OSError as error:
        _unlock(fd)
        if error.errno == errno.EADDRINUSE:
            raise BadInputError(f"port {port} is taken by another program", mend=mend, where=where) from None
        raise BadInputError(f"this user may not listen on port {port}", mend=mend, where=where) from None
    except BaseException:
        _unlock(fd)
        raise
    return PortLease(port, fd)


def _lock(port: int) -> int | None:
    """Take the port's name. ``None``: another has it."""
    if sys.platform != "linux":
        return _NO_LOCK
    lock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
    try:
        lock.bind(f"\0bireme-port-{port}")
    except OSError as error:
        lock.close()
        # Where a sandbox forbids such names altogether we are no worse off than macOS.
        return None if error.errno == errno.EADDRINUSE else _NO_LOCK
    return lock.detach()


def _unlock(fd: int) -> None:
    if fd != _NO_LOCK:
        os.close(fd)


def _can_listen(port: int) -> bool:
    try:
        _listen(port).close()
    except OSError:
        return False
    return True


def _listen(port: int) -> _socket.socket:
    """Listen as PyTorch's store will: on every address, over IPv6 and IPv4 with one socket.

    SO_REUSEADDR lets a port through whose last connections still linger in TIME_WAIT, and nothing
    else: a port that someone listens on, on whatever address, stays refused.

    Raises:
        OSError: the port is taken or forbidden.
        UnfitError: listening fails for another reason.
    """
    failure: OSError | None = None
    for family in (_socket.AF_INET6, _socket.AF_INET):
        probe = None
        try:
            probe = _socket.socket(family, _socket.SOCK_STREAM)
            probe.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
            if family == _socket.AF_INET6:
                probe.setsockopt(_socket.IPPROTO_IPV6, _socket.IPV6_V6ONLY, 0)
            probe.bind(("" if family == _socket.AF_INET else "::", port))
            probe.listen(_BACKLOG)
            return probe
        except OSError as error:
            if probe is not None:
                probe.close()
            if error.errno in _REFUSED:
                raise
            failure = error  # there is no IPv6 here: IPv4 decides
    raise UnfitError(f"cannot listen on any port: {failure}") from failure
