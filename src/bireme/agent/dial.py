"""An agent that an engine has started dials its runner."""

from __future__ import annotations

import os
import socket

from bireme.control.handshake import Agent
from bireme.errors import UnfitError
from bireme.resources.locality import own_addresses

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import MutableMapping

_CONNECT_WAIT = 5.0
"""Seconds for each of the runner's addresses."""
_PLACES = ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK")


def dial(addresses: list[str], port: int, variable: str, environ: MutableMapping[str, str], name: str = "") -> int:
    """Connect to the first of the runner's addresses that answers rightly; return the socket's descriptor.

    Args:
        variable: names the token in ``environ``, from which it is taken out.
        name: this node's name in the pool, where the engine could tell it.

    Raises:
        UnfitError: the token has not come along, or the runner cannot be reached.
    """
    token = environ.pop(variable, "")
    if not token:
        raise UnfitError(f"the launcher has not passed on {variable}", mend="--launcher ssh needs no such variable")
    who = {
        "name": name,
        "hostname": os.uname().nodename,
        "slurm": environ.get("SLURMD_NODENAME", ""),
        "allocation": environ.get("SLURM_JOB_ID", ""),
        "addresses": ",".join(own_addresses()),
        "place": next((environ[variable] for variable in _PLACES if variable in environ), ""),
    }
    why = []
    for address in addresses:
        try:
            connection = socket.create_connection((address, port), timeout=_CONNECT_WAIT)
        except OSError as error:
            why.append(f"{address}: {error.strerror or error}")
            continue
        if _prove(connection, Agent(token, who)):
            connection.settimeout(None)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection.detach()
        connection.close()
        why.append(f"{address}: that is not our runner")
    raise UnfitError(f"{os.uname().nodename} cannot reach the runner, port {port}: {'; '.join(why)}")


def _prove(connection: socket.socket, handshake: Agent) -> bool:
    try:
        connection.sendall(handshake.first())
        answer = handshake.answer(_line(connection))
        if answer is None:
            return False
        connection.sendall(answer)
        return _line(connection) == b"welcome"
    except OSError:
        return False


def _line(connection: socket.socket) -> bytes:
    """One line, byte by byte: what follows it belongs to the channel."""
    line = b""
    while not line.endswith(b"\n") and len(line) < 1024:
        byte = connection.recv(1)
        if not byte:
            break
        line += byte
    return line.rstrip(b"\n")
