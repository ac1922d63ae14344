"""Decides whether a host is this machine.

A hostfile may name a host by a short name, a full name, an alias or an address. This machine's own names are recognised
at once. Any other name is resolved; it is this machine if one of the addresses is.
"""

from __future__ import annotations

# Not ``socket``: importing it delays the first worker, because it makes enumerations (docs/architecture.md).
import _socket
import os
import sys

from bireme.resources.addresses import all_addresses, is_loopback, look_up, packed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

TIMEOUT = 3.0
"""Seconds for resolving names, for all of them together."""

_THREADS = 16
_LOCAL_NAMES = ("localhost", "localhost.localdomain", "localhost4", "localhost6", "ip6-localhost", "ip6-loopback")


def is_this_machine(name: str, timeout: float = TIMEOUT) -> bool:
    """Whether a name or address is this machine's; a name that is not resolved within ``timeout`` seconds is not."""
    return find_this_machine((name,), timeout) is not None


def find_this_machine(names: Iterable[str], timeout: float = TIMEOUT) -> str | None:
    """Find the host (IPv6 without brackets) that is this machine; of several aliases, the one that is recognised first.

    Names are resolved only if none is recognised without that. They are resolved in threads, since a resolver has no
    time limit; a thread that hangs is left alone, and changes nothing when it ends.
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
        address = packed(name)
        if address is None:
            to_resolve.append(name)
        elif _is_own(address, own):
            return name
    return _resolve(to_resolve, own, timeout)


def _own() -> set[bytes]:
    return {address for _, text, _ in all_addresses() if (address := packed(text)) is not None}


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


def _is_own(address: bytes, own: set[bytes]) -> bool:
    if sys.platform != "linux" and address not in own:
        family = _socket.AF_INET if len(address) == 4 else _socket.AF_INET6
        return _can_bind(_socket.inet_ntop(family, address))
    return address in own or is_loopback(address)


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
    try:
        texts = [str(answer[4][0]) for answer in look_up(name)]
    except OSError:
        return []
    return [address for text in texts if (address := packed(text)) is not None]
