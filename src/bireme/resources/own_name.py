"""Finds nodes whose own name is a loopback address, which PyTorch would give to the others, and the remedy.

Gloo and TensorPipe use the address that the node's own name has there, and in Debian's ``/etc/hosts`` that is
127.0.1.1. Each has a variable that names the interface instead. NCCL has one too, but finds interfaces by itself:
naming one would only take others away from it. Also sent to nodes, so it imports little.
"""

from __future__ import annotations

import _socket
import os

from bireme.resources.addresses import all_addresses, is_loopback, look_up, own_addresses, packed, source_towards

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


def loopback_name(environ: Mapping[str, str], hosts: str = "/etc/hosts") -> str:
    """The loopback address that Gloo takes for this node's name; "" if it takes another, or the user names interfaces.

    No name server is asked: it may take half a minute if it does not answer.
    """
    if all(environ.get(variable) for variable in INTERFACE_VARIABLES):
        return ""
    own = os.uname().nodename
    try:
        with open(hosts, errors="replace") as lines:
            if not any(own.lower() in line.partition("#")[0].lower().split()[1:] for line in lines):
                return ""
        ours = {address for _, address, _ in all_addresses()}
        for *_, place in look_up(own):
            if _is_loopback(place[0]):
                return str(place[0])
            if place[0] in ours:
                return ""
    except OSError:
        return ""
    return "127.0.0.1"  # without an address at which it can listen, Gloo takes this one


def socket_interfaces(environ: Mapping[str, str], master_addr: str) -> dict[str, str]:
    """The variables that name the interface towards the rendezvous address, without those that the user has set.

    Args:
        master_addr: an address, or a name. It may be this machine's own.
    """
    if _is_loopback(master_addr):
        return {}  # all nodes are this machine
    interfaces = {address: interface for interface, address, _ in all_addresses()}
    try:
        sources = [source_towards(family, place[0]) for family, *_, place in look_up(master_addr)]
        ours = (address for address in (*sources, *own_addresses()) if address in interfaces)
        address = next(address for address in ours if not _is_loopback(address))
        name = _socket.if_indextoname(interfaces[address])
    except (OSError, StopIteration):
        return {}
    return {variable: name for variable in INTERFACE_VARIABLES if not environ.get(variable)}


def _is_loopback(address: str) -> bool:
    number = packed(address)
    return number is not None and is_loopback(number)
