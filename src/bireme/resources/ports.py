"""The rendezvous port: one that is free, and that no other job of ours takes at the same time.

Whether a port is free can be tested, but the job's first rank listens on it only seconds later,
when PyTorch is imported; two jobs started together would both find 29500 free. So the number is
leased, by two names in the abstract socket namespace. Such a name has no file, belongs to the
network namespace (so do ports: containers do not meet), and is gone when the last process that
holds it is, however it ended. Systems without that namespace (macOS) have no lock, only the test.

Anyone can take any such name, so none may keep everybody out:

- ``bireme-port-29500-UID`` decides between jobs of one user. Who holds it is asked of the kernel;
  if it is another user, the name means nothing.
- ``bireme-port-29500`` is common to all users. Another user's is heeded as long as there are other
  ports; when nothing else is left, the test alone decides between users.

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
from bireme.resources.users import name_of, peer_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

TRIED = 100
"""So many ports, from the default on, are tried before the system is asked for any."""

_LAST = 65535
_NO_LOCK = -1
_UNKNOWN = -1
_BACKLOG = 4096  # all nodes of a job try the port at the same moment, and nobody accepts
_REFUSED = (errno.EADDRINUSE, errno.EACCES, errno.EPERM)


class PortLease:
    """A port that is ours for as long as a process holds the lease.

    The locks are file descriptors: a forked process holds them too, a program that is executed does
    not. They are released by :meth:`close` or when the process ends, never by the garbage collector.

    Attributes:
        port: its number.
        fds: the locks' descriptors; none when it is closed, or the system has no such locks.
    """

    def __init__(self, port: int, fds: tuple[int, ...]) -> None:
        self.port, self.fds = port, fds

    def close(self) -> None:
        """Let go of the port, in this process; a second time does nothing."""
        fds, self.fds = self.fds, ()
        _unlock(fds)

    def __repr__(self) -> str:
        return f"PortLease(port={self.port}, fds={self.fds})"


class PortListener:
    """A leased port that is listened on, so that others can try whether they reach it."""

    def __init__(self, lease: PortLease) -> None:
        self._lease = lease
        self._socket = _listen(lease.port)

    def hand_over(self) -> tuple[int, ...]:
        """Stop listening: the job's first rank will. Return the locks' descriptors."""
        self._socket.close()
        return self._lease.fds


def lease_port(default: int = DEFAULT_PORT) -> tuple[PortLease, str]:
    """Lease the default port, one of those after it, or any.

    Returns:
        The lease, and what to say about it: nothing when it is the default port.

    Raises:
        UnfitError: this machine lets nobody listen.
    """
    last = min(default + TRIED - 1, _LAST)
    for port in range(default, last + 1):
        fds = _lock(port)
        if fds is None:
            continue
        if _can_listen(port):
            return PortLease(port, fds), "" if port == default else f"port {default} is taken: using {port}"
        _unlock(fds)
    for attempt in range(2 * TRIED):
        # The probe stays open until the number is locked, so that the system gives it to nobody else.
        try:
            probe = _listen(0)
        except OSError:
            continue
        port = probe.getsockname()[1]
        fds = _lock(port, heed_others=attempt < TRIED)
        probe.close()
        if fds is not None:
            return PortLease(port, fds), f"ports {default} to {last} are taken: using {port}"
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
    hint = "leave the option out, and a free port is chosen"
    fds = _lock(port)
    if fds is None:
        uid = _holder_of(_name(port))
        whose = "another job of Bireme" if uid in (_UNKNOWN, os.geteuid()) else f"a job of {name_of(uid)}"
        raise BadInputError(f"port {port} is taken by {whose}", hint=hint, where=where)
    try:
        _listen(port).close()
    except OSError as error:
        _unlock(fds)
        if error.errno == errno.EADDRINUSE:
            raise BadInputError(f"port {port} is taken by another program", hint=hint, where=where) from None
        raise BadInputError(f"this user may not listen on port {port}", hint=hint, where=where) from None
    except BaseException:
        _unlock(fds)
        raise
    return PortLease(port, fds)


def _lock(port: int, *, heed_others: bool = True) -> tuple[int, ...] | None:
    """Take the port's names. ``None``: a job of this user has it or, where they are heeded, one of another user."""
    if sys.platform != "linux":
        return ()
    taken: list[int] = []
    for name, heed in ((_name(port, os.geteuid()), False), (_name(port), heed_others)):
        fd = _take(name)
        if fd is not None:
            taken += [fd] if fd != _NO_LOCK else []
        elif heed or _holder_of(name) == os.geteuid():
            _unlock(taken)
            return None
    return tuple(taken)


def _name(port: int, uid: int | None = None) -> str:
    return f"\0bireme-port-{port}" + ("" if uid is None else f"-{uid}")


def _take(name: str) -> int | None:
    """A socket of that name, which listens so that the kernel can tell whose it is. ``None``: another has the name."""
    lock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        lock.bind(name)
        lock.listen(_BACKLOG)
    except OSError as error:
        lock.close()
        # Where a sandbox forbids such names altogether we are no worse off than macOS.
        return None if error.errno == errno.EADDRINUSE else _NO_LOCK
    return lock.detach()


def _holder_of(name: str) -> int:
    """The user who holds a name; `_UNKNOWN`: it does not listen yet, or is gone."""
    asking = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    asking.setblocking(False)
    try:
        asking.connect(name)
        return peer_of(asking)[1]
    except OSError:
        return _UNKNOWN
    finally:
        asking.close()


def _unlock(fds: Iterable[int]) -> None:
    for fd in fds:
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
