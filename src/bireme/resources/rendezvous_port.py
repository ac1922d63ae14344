"""Chooses and leases the rendezvous port (MASTER_PORT), so that jobs started together do not take the same one.

A test shows whether a port is free, but the first rank listens on it only seconds later, when PyTorch is imported: two
jobs started together would both find 29500 free. So a job also leases the number, by two names in the abstract socket
namespace. Such a name has no file, belongs to the network namespace (like ports: containers do not conflict), and
disappears with the last process that holds it. Systems without that namespace (macOS) have the test only.

Any user can take any such name, so no name may block everybody:

- ``bireme-port-29500-UID`` decides between the jobs of one user. The kernel tells which user holds it; if that is
  another user, the name is ignored.
- ``bireme-port-29500`` is shared by all users. If another user holds it, the port is skipped as long as there are
  other ports; when none is left, only the test decides between users.

A lease is valid on this machine, so it is useful only if rank 0 runs here.
"""

from __future__ import annotations

# Not ``socket``: importing it delays the first worker, because it makes enumerations (docs/architecture.md).
import _socket
import errno
import os
import sys

from bireme.errors import BadInputError, UnfitError
from bireme.job import DEFAULT_PORT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

TRIED = 100
"""Number of ports, from the default on, that are tried before the system is asked for any free one."""

_LAST = 65535
_NO_LOCK = -1
_UNKNOWN = -1
_BACKLOG = 4096  # all nodes of a job try the port at once, and nothing accepts
_REFUSED = (errno.EADDRINUSE, errno.EACCES, errno.EPERM)


class PortLease:
    """A port that no other job takes while a process holds the lease.

    The locks are file descriptors: a forked process inherits them, an executed program does not. They are released by
    :meth:`close` or at the end of the process, never by the garbage collector.

    Attributes:
        fds: the descriptors of the locks; empty after :meth:`close`, or if the system has no such locks.
    """

    def __init__(self, port: int, fds: tuple[int, ...]) -> None:
        self.port, self.fds = port, fds

    def close(self) -> None:
        """Release the port in this process. Calling it again does nothing."""
        fds, self.fds = self.fds, ()
        _unlock(fds)

    def __enter__(self) -> PortLease:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"PortLease(port={self.port}, fds={self.fds})"


class PortListener:
    """Listens on a leased port, so that other nodes can test whether they reach it."""

    def __init__(self, lease: PortLease) -> None:
        self.port = lease.port
        self._lease = lease
        self._socket = _listen(lease.port)

    def hand_over(self) -> tuple[int, ...]:
        """Stop listening, so that the first rank can; return the descriptors of the locks."""
        self._socket.close()
        return self._lease.fds

    def close(self) -> None:
        """Release the port in this process."""
        self._socket.close()
        self._lease.close()


def lease_port(default: int = DEFAULT_PORT) -> tuple[PortLease, str]:
    """Lease the default port, one of those after it, or any; return it with a note for the user ("": the default).

    Raises:
        UnfitError: no port of this machine can be listened on.
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
        # The probe stays open until the number is locked, so that no other process gets it.
        try:
            probe = _listen(0)
        except OSError:
            continue
        port = probe.getsockname()[1]
        fds = _lock(port, heed_others=attempt < TRIED)
        probe.close()
        if fds is not None:
            return PortLease(port, fds), f"ports {default} to {last} are taken: using {port}"
    raise UnfitError("no free port found for the rendezvous")


def lease_named_port(port: int) -> PortLease:
    """Lease the port that the user named.

    Raises:
        BadInputError: the port is taken, forbidden to this user, or not a port number.
        UnfitError: no port of this machine can be listened on.
    """
    where = "--master_port"
    if not 1 <= port <= _LAST:
        raise BadInputError(f"not a port: {port} (expected 1 to {_LAST})", where=where)
    hint = "leave out the option to use a free port"
    fds = _lock(port)
    if fds is None:
        from bireme.resources.ownership import name_of

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
    """Take the names of a port. ``None``: a job of this user has it or, with ``heed_others``, one of another user."""
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
    """Open a listening socket with a name, so that the kernel can tell its user. ``None``: the name is taken."""
    lock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        lock.bind(name)
        lock.listen(_BACKLOG)
    except OSError as error:
        lock.close()
        # If a sandbox forbids such names, only the test is left, as on macOS.
        return None if error.errno == errno.EADDRINUSE else _NO_LOCK
    return lock.detach()


def _holder_of(name: str) -> int:
    """The uid that holds a name; `_UNKNOWN` if it does not listen yet, or is gone."""
    from bireme.resources.ownership import peer_of  # only where a name is taken

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
    """Listen like PyTorch's store: on every address, with one socket for IPv6 and IPv4.

    SO_REUSEADDR only allows a port whose last connections are in TIME_WAIT. A port on which another process listens, on
    any address, stays refused.

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
            failure = error  # this machine has no IPv6: try IPv4
    raise UnfitError(f"cannot listen on any port: {failure}") from failure
