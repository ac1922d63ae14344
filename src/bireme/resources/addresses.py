"""Finds the addresses at which others can reach this machine, looks up names, and finds which addresses can be reached.

Also sent ahead to nodes, so it imports little. Own addresses come from the kernel (``rtnetlink(7)``), without external
commands. A connected UDP socket, which sends nothing, shows which address the kernel would use to reach other networks.
"""

from __future__ import annotations

# Not ``socket``: importing it delays the first worker, because it makes enumerations (docs/architecture.md).
import _socket
import errno
import select
import struct
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any, TypeAlias

    Address: TypeAlias = tuple[int, str, bool]
    """(interface, address as text, whether it is a second choice: temporary (RFC 8981), link-local, or idle)."""

    Found: TypeAlias = tuple[int, int, int, str, tuple[Any, ...]]
    """As ``socket.getaddrinfo`` has it: family, type, protocol, canonical name, address."""


_HEAD = struct.Struct("=IHHII")  # struct nlmsghdr: length, type, flags, number, sender
_ABOUT = struct.Struct("=BBBBI")  # struct ifaddrmsg: family, length of the prefix, flags, scope, interface
_ATTRIBUTE = struct.Struct("=HH")  # struct rtattr: length, type
_ERROR, _NEWADDR, _GETADDR = 2, 20, 22
_ALL = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_ADDRESS, _LOCAL = 1, 2  # the local address is another only if the interface leads to one peer
_SIOCGIFFLAGS = 0x8913
_IFF_RUNNING = 0x40
# Reserved by IANA and unused, so that only the default route leads there. The addresses for documentation would not do:
# laboratories use them.
_FAR_AWAY = {_socket.AF_INET: "240.0.0.1", _socket.AF_INET6: "4000::1"}
_IPV4_IN_IPV6 = bytes(10) + b"\xff\xff"
_TEMPORARY = 0x01
_NOT_YET_OURS = 0x48  # tentative; or another machine has it (DAD failed)


def own_addresses() -> tuple[str, ...]:
    """The addresses of this machine that others may be able to reach, the most likely first.

    Addresses on the interface of the default route come first. Temporary IPv6 addresses, link-local IPv4 addresses and
    those of an interface without a carrier come last. Link-local IPv6 addresses are left out: they need the interface
    of the other side. The result is empty on a machine without a network.
    """
    found = [address for address in all_addresses() if not _only_here(address[1])]
    towards_others = {source_towards(*far) for far in _FAR_AWAY.items()}
    main = {interface for interface, text, _ in found if text in towards_others}
    found.sort(key=lambda it: (it[2], it[0] not in main, it[1] not in towards_others))
    return tuple(dict.fromkeys(text for _, text, _ in found))


def _only_here(text: str) -> bool:
    address = packed(text)
    return address is None or is_loopback(address) or (len(address) == 16 and address[:2] == b"\xfe\x80")


def all_addresses() -> list[Address]:
    """All current addresses of this machine, in the kernel's order, IPv4 first."""
    try:
        return _of_the_kernel()
    except (AttributeError, OSError):  # macOS; a sandbox
        return [(0, source, False) for family, far in _FAR_AWAY.items() if (source := source_towards(family, far))]


def _of_the_kernel() -> list[Address]:
    link = _socket.socket(_socket.AF_NETLINK, _socket.SOCK_RAW, _socket.NETLINK_ROUTE)
    try:
        link.settimeout(1.0)
        found = list(_listed(link))
        idle = {interface: _is_idle(link.fileno(), interface) for interface in {address[0] for address in found}}
    finally:
        link.close()
    return [(interface, text, second or idle[interface]) for interface, text, second in found]


def _listed(link: _socket.socket) -> Iterator[Address]:
    """What the kernel lists."""
    link.send(_HEAD.pack(_HEAD.size + _ABOUT.size, _GETADDR, _ALL, 1, 0) + bytes(_ABOUT.size))
    while True:
        data, at = link.recv(1 << 16), 0
        while at < len(data):
            length, kind = _HEAD.unpack_from(data, at)[:2]
            if kind == _ERROR:
                raise OSError("the kernel lists no addresses")
            if kind != _NEWADDR:
                return
            family, _, flags, _, interface = _ABOUT.unpack_from(data, at + _HEAD.size)
            attributes = dict(_attributes(data[at + _HEAD.size + _ABOUT.size : at + length]))
            address = attributes.get(_LOCAL) or attributes.get(_ADDRESS, b"")
            if family == _socket.AF_INET:
                yield interface, _socket.inet_ntop(family, address), address[:2] == b"\xa9\xfe"
            elif family == _socket.AF_INET6 and not flags & _NOT_YET_OURS:
                yield interface, _socket.inet_ntop(family, address), bool(flags & _TEMPORARY)
            at += length + -length % 4


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        yield kind, data[at + _ATTRIBUTE.size : at + length]
        at += length + -length % 4


def _is_idle(link: int, interface: int) -> bool:
    """Whether an interface is down or has no carrier, as an unplugged cable or a bridge without containers."""
    import fcntl

    try:
        name = _socket.if_indextoname(interface).encode()
        answer = fcntl.ioctl(link, _SIOCGIFFLAGS, name.ljust(40, b"\0"))
    except OSError:
        return False
    return not int.from_bytes(answer[16:18], sys.byteorder) & _IFF_RUNNING


def source_towards(family: int, address: str) -> str:
    """The source address that the kernel uses towards an address; "" if there is no route."""
    try:
        probe = _socket.socket(family, _socket.SOCK_DGRAM)
    except OSError:
        return ""
    try:
        probe.connect((address, 9))
        return str(probe.getsockname()[0])
    except OSError:
        return ""
    finally:
        probe.close()


def packed(text: str) -> bytes | None:
    """The bytes of a numeric address, with IPv4 in IPv6 as IPv4; ``None`` for a name."""
    for family in (_socket.AF_INET, _socket.AF_INET6):
        try:
            address = _socket.inet_pton(family, text.partition("%")[0])
        except (OSError, ValueError):
            continue
        return address.removeprefix(_IPV4_IN_IPV6) if len(address) == 16 else address
    return None


def is_loopback(address: bytes) -> bool:
    """Whether an address is a loopback or unspecified one; connecting to either reaches this machine."""
    if len(address) == 4:
        return address[0] == 127 or not any(address)
    return not any(address[:-1]) and address[-1] < 2


def look_up(name: str, port: int | None = None) -> list[Found]:
    """The addresses of a name, or of an address as text, for TCP.

    Raises:
        OSError: it cannot be resolved, or is not a name.
    """
    if "\0" in name:
        raise OSError("a name cannot contain NUL")
    try:
        # As bytes: for text, Python would load its Unicode tables, which takes longer than all imports of an agent.
        host = name.encode("ascii" if name.isascii() else "idna")
    except UnicodeError as error:
        raise OSError(str(error)) from None
    found: list[Found] = _socket.getaddrinfo(host, port, 0, _socket.SOCK_STREAM)
    return found


def reachable(addresses: Sequence[str], port: int, *, seconds: float) -> list[str]:
    """Find the addresses to which a TCP connection succeeds, trying all at once.

    Args:
        addresses: numeric addresses, or names. A name is reached if one of its addresses is.
    """
    deadline = time.monotonic() + seconds
    poll = select.poll()
    trying: dict[int, tuple[str, _socket.socket]] = {}
    good = set()
    for address in addresses:
        for sock in _connect(address, port):
            trying[sock.fileno()] = address, sock
            poll.register(sock.fileno(), select.POLLOUT)
    while trying:
        left = max(0.0, deadline - time.monotonic())
        ready = poll.poll(left * 1000)  # once more at the deadline: this process may have been suspended
        if not ready and not left:
            break
        for fd, _ in ready:
            address, sock = trying.pop(fd)
            poll.unregister(fd)
            if sock.getsockopt(_socket.SOL_SOCKET, _socket.SO_ERROR) == 0:
                good.add(address)
            sock.close()
    for _, sock in trying.values():
        sock.close()
    return [address for address in addresses if address in good]


def _connect(address: str, port: int) -> Iterator[_socket.socket]:
    """A socket that is connecting for each numeric address, without those for which that failed at once."""
    try:
        found = look_up(address, port)
    except OSError:
        return
    for family, *_, place in found:
        try:
            sock = _socket.socket(family, _socket.SOCK_STREAM)
        except OSError:
            continue
        sock.setblocking(False)
        if sock.connect_ex(place) in (0, errno.EINPROGRESS):
            yield sock
        else:
            sock.close()
