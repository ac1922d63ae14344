"""Decides whether a host is this machine, and finds the addresses at which others can reach this machine.

A hostfile may name a host by a short name, a full name, an alias or an address. This machine's own names are recognised
at once. Any other name is resolved; it is this machine if one of the addresses is.

The addresses come from the kernel (``SIOCGIFCONF`` and ``/proc/net/if_inet6``), without external commands. A connected
UDP socket, which sends nothing, shows which address the kernel would use to reach other networks.
"""

from __future__ import annotations

# Not ``socket``: importing it delays the first worker, because it makes enumerations (docs/architecture.md).
import _socket
import os
import sys

from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

TIMEOUT = 3.0
"""Seconds for resolving names, for all of them together."""

_THREADS = 16
_SIOCGIFCONF = 0x8912
_SIOCGIFFLAGS = 0x8913
_IFF_RUNNING = 0x40
_LOCAL_NAMES = ("localhost", "localhost.localdomain", "localhost4", "localhost6", "ip6-localhost", "ip6-loopback")
# Reserved by IANA and unused, so that only the default route leads there. The addresses for documentation would not do:
# laboratories use them.
_FAR_AWAY = {_socket.AF_INET: "240.0.0.1", _socket.AF_INET6: "4000::1"}
_IPV4_IN_IPV6 = bytes(10) + b"\xff\xff"
_TEMPORARY = 0x01
_NOT_YET_OURS = 0x48  # tentative; or another machine has it (DAD failed)


class _Address(Value):
    """An address of an interface. ``second`` choice: temporary (RFC 8981), link-local, or without a carrier."""

    interface: str
    text: str
    second: bool = False


def is_this_machine(name: str, timeout: float = TIMEOUT) -> bool:
    """Whether a name or address is this machine's; a name that is not resolved within ``timeout`` seconds is not."""
    return find_this_machine((name,), timeout) is not None


def find_this_machine(names: Iterable[str], timeout: float = TIMEOUT) -> str | None:
    """Find the host that is this machine; of several aliases, the one that is recognised first.

    Names are resolved only if none is recognised without that. They are resolved in threads, since a resolver has no
    time limit; a thread that hangs is left alone, and changes nothing when it ends.

    Args:
        names: names or addresses, IPv6 without brackets.
        timeout: seconds for resolving all names together.
    """
    names = list(names)
    node = os.uname().nodename.casefold()
    own_names = {node, node.partition(".")[0], *_LOCAL_NAMES}
    to_resolve = []
    for name in names:
        plain = name.casefold().removesuffix(".")
        if plain in own_names or plain.endswith(".localhost"):
            return name
    own = _own()
    for name in names:
        address = _packed(name)
        if address is None:
            to_resolve.append(name)
        elif _is_own(address, own):
            return name
    return _resolve(to_resolve, own, timeout)


def own_addresses() -> tuple[str, ...]:
    """The addresses of this machine that others may be able to reach, the most likely first.

    Addresses on the interface of the default route come first. Temporary IPv6 addresses, link-local IPv4 addresses and
    those of an interface without a carrier come last. Link-local IPv6 addresses are left out: they need the interface
    of the other side. The result is empty on a machine without a network.
    """
    found = [address for address in _addresses() if not _only_here(address.text)]
    towards_others = {_source(family) for family in _FAR_AWAY}
    main = {address.interface for address in found if address.text in towards_others}
    found.sort(key=lambda it: (it.second, it.interface not in main, it.text not in towards_others))
    return tuple(dict.fromkeys(address.text for address in found))


def _only_here(text: str) -> bool:
    address = _packed(text)
    return address is None or _is_loopback(address) or (len(address) == 16 and address[:2] == b"\xfe\x80")


def _own() -> set[bytes]:
    return {address for it in _addresses() if (address := _packed(it.text)) is not None}


def _addresses() -> list[_Address]:
    """All current addresses of this machine, in the kernel's order, IPv4 first."""
    if sys.platform != "linux":
        return [_Address("", source) for family in _FAR_AWAY if (source := _source(family))]
    try:
        probe = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM)
    except OSError:  # a kernel without IPv4
        return _ipv6()
    try:
        found = [*_ipv4(probe.fileno()), *_ipv6()]
        idle = {name: _is_idle(probe.fileno(), name) for name in {address.interface for address in found}}
    finally:
        probe.close()
    return [address.replace(second=address.second or idle[address.interface]) for address in found]


def _ipv4(probe: int) -> list[_Address]:
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
        found.append(_Address(interface, _socket.inet_ntop(_socket.AF_INET, address), link_local))
    return found


def _ipv6() -> list[_Address]:
    found = []
    try:
        with open("/proc/net/if_inet6", encoding="ascii") as file:
            rows = [line.split() for line in file]
    except OSError:
        rows = []
    for digits, _, _, _, flags, interface in rows:
        text = _socket.inet_ntop(_socket.AF_INET6, bytes.fromhex(digits))
        if not int(flags, 16) & _NOT_YET_OURS:
            found.append(_Address(interface, text, bool(int(flags, 16) & _TEMPORARY)))
    return found


def _is_idle(probe: int, interface: str) -> bool:
    """Whether an interface is down or has no carrier, as an unplugged cable or a bridge without containers."""
    import fcntl

    try:
        answer = fcntl.ioctl(probe, _SIOCGIFFLAGS, interface.encode("ascii", "replace")[:15].ljust(40, b"\0"))
    except OSError:
        return False
    return not int.from_bytes(answer[16:18], sys.byteorder) & _IFF_RUNNING


def _can_bind(text: str) -> bool:
    """Whether an address can be bound, and so belongs to this machine. Not exact on Linux, so not used there."""
    family = _socket.AF_INET6 if ":" in text else _socket.AF_INET
    try:
        probe = _socket.socket(family, _socket.SOCK_DGRAM)
    except OSError:
        return False
    try:
        probe.bind((text, 0))
        return True
    except OSError:
        return False
    finally:
        probe.close()


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


def _packed(text: str) -> bytes | None:
    """The bytes of a numeric address, with IPv4 in IPv6 as IPv4; ``None`` for a name."""
    for family in (_socket.AF_INET, _socket.AF_INET6):
        try:
            address = _socket.inet_pton(family, text.partition("%")[0])
        except (OSError, ValueError):
            continue
        return address.removeprefix(_IPV4_IN_IPV6) if len(address) == 16 else address
    return None


def _is_loopback(address: bytes) -> bool:
    """Whether an address is a loopback or unspecified one; connecting to either reaches this machine."""
    if len(address) == 4:
        return address[0] == 127 or not any(address)
    return not any(address[:-1]) and address[-1] < 2


def _is_own(address: bytes, own: set[bytes]) -> bool:
    if sys.platform != "linux" and address not in own:
        family = _socket.AF_INET if len(address) == 4 else _socket.AF_INET6
        return _can_bind(_socket.inet_ntop(family, address))
    return address in own or _is_loopback(address)


def _resolve(names: list[str], own: set[bytes], timeout: float) -> str | None:
    if not names:
        return None
    import _thread

    waiting, found = names[::-1], list[str]()
    working = [None] * min(_THREADS, len(names))
    over = _thread.allocate_lock()
    over.acquire()

    def work() -> None:
        """Resolve names until one is this machine's or none is left; the last thread to end releases the lock."""
        while waiting and not found:
            try:
                name = waiting.pop()
            except IndexError:  # another thread was faster
                break
            if any(_is_own(address, own) for address in _looked_up(name)):
                found.append(name)
        working.pop()
        if (found or not working) and over.locked():
            try:
                over.release()
            except RuntimeError:  # another thread was faster
                pass

    for _ in tuple(working):
        try:
            _thread.start_new_thread(work, ())
        except RuntimeError:  # the limit of threads is reached
            working.pop()
    over.acquire(timeout=timeout)
    waiting.clear()
    return found[0] if found else None


def _looked_up(name: str) -> list[bytes]:
    if "\0" in name:
        return []
    try:
        # As bytes: for text, Python would load its Unicode tables.
        host = name.encode("ascii" if name.isascii() else "idna")
        answers = _socket.getaddrinfo(host, None, 0, _socket.SOCK_STREAM)
    except (OSError, ValueError):  # a UnicodeError is a ValueError
        return []
    texts = (str(answer[4][0]) for answer in answers)
    return [address for text in texts if (address := _packed(text)) is not None]
