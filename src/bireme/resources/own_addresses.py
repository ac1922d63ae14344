"""Finds the addresses at which others can reach this machine. Also sent ahead to nodes, so it imports little.

They come from the kernel (``SIOCGIFCONF`` and ``/proc/net/if_inet6``), without external commands. A connected UDP
socket, which sends nothing, shows which address the kernel would use to reach other networks.
"""

from __future__ import annotations

# Not ``socket``: importing it delays the first worker, because it makes enumerations (docs/architecture.md).
import _socket
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

    Address: TypeAlias = tuple[str, str, bool]
    """(interface, address as text, whether it is a second choice: temporary (RFC 8981), link-local, or idle)."""

_SIOCGIFCONF = 0x8912
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
    towards_others = {_source(family) for family in _FAR_AWAY}
    main = {interface for interface, text, _ in found if text in towards_others}
    found.sort(key=lambda it: (it[2], it[0] not in main, it[1] not in towards_others))
    return tuple(dict.fromkeys(text for _, text, _ in found))


def _only_here(text: str) -> bool:
    address = packed(text)
    return address is None or is_loopback(address) or (len(address) == 16 and address[:2] == b"\xfe\x80")


def all_addresses() -> list[Address]:
    """All current addresses of this machine, in the kernel's order, IPv4 first."""
    if sys.platform != "linux":
        return [("", source, False) for family in _FAR_AWAY if (source := _source(family))]
    try:
        probe = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM)
    except OSError:  # a kernel without IPv4
        return _of_ipv6()
    try:
        found = [*_of_ipv4(probe.fileno()), *_of_ipv6()]
        idle = {name: _is_idle(probe.fileno(), name) for name in {address[0] for address in found}}
    finally:
        probe.close()
    return [(interface, text, second or idle[interface]) for interface, text, second in found]


def _of_ipv4(probe: int) -> list[Address]:
    import array
    import fcntl
    import struct

    # struct ifreq: 16 bytes of name, then the largest of a union: a struct sockaddr or a struct ifmap.
    size = 16 + (24 if struct.calcsize("P") == 8 else 16)
    room = 64
    while True:
        buffer = array.array("B", bytes(room * size))
        request = struct.pack("iP", len(buffer), buffer.buffer_info()[0])
        try:
            used: int = struct.unpack("iP", fcntl.ioctl(probe, _SIOCGIFCONF, request))[0]
        except OSError:
            used = 0
        if used < len(buffer):
            break
        room *= 2  # a full buffer may lack some addresses
    found = []
    for start in range(0, used, size):
        name, address = bytes(buffer[start : start + 16]), bytes(buffer[start + 20 : start + 24])
        interface = name.partition(b"\0")[0].partition(b":")[0].decode("ascii", "replace")  # eth0:1 is an alias
        link_local = address[:2] == b"\xa9\xfe"
        found.append((interface, _socket.inet_ntop(_socket.AF_INET, address), link_local))
    return found


def _of_ipv6() -> list[Address]:
    found = []
    try:
        with open("/proc/net/if_inet6", encoding="ascii") as file:
            rows = [line.split() for line in file]
    except OSError:
        rows = []
    for digits, _, _, _, flags, interface in rows:
        text = _socket.inet_ntop(_socket.AF_INET6, bytes.fromhex(digits))
        if not int(flags, 16) & _NOT_YET_OURS:
            found.append((interface, text, bool(int(flags, 16) & _TEMPORARY)))
    return found


def _is_idle(probe: int, interface: str) -> bool:
    """Whether an interface is down or has no carrier, as an unplugged cable or a bridge without containers."""
    import fcntl

    try:
        answer = fcntl.ioctl(probe, _SIOCGIFFLAGS, interface.encode("ascii", "replace")[:15].ljust(40, b"\0"))
    except OSError:
        return False
    return not int.from_bytes(answer[16:18], sys.byteorder) & _IFF_RUNNING


def _source(family: int) -> str:
    """The source address that the kernel uses towards other networks; "" if there is no route."""
    try:
        probe = _socket.socket(family, _socket.SOCK_DGRAM)
    except OSError:
        return ""
    try:
        probe.connect((_FAR_AWAY[family], 9))
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
