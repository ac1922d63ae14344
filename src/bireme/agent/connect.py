"""An agent that a launcher has started connects to its runner."""

from __future__ import annotations

import os
import random
import socket
import time

from bireme.control.handshake import Agent
from bireme.errors import UnfitError
from bireme.resources.locality import own_addresses
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl
    from collections.abc import MutableMapping

    from bireme.control.transport import Transport

_CONNECT_WAIT = 5.0
"""Seconds for each of the runner's addresses, and for each of its answers."""
_TRY_FOR = 10.0
"""Seconds in which a runner that has hung up is tried again: many may be at its door at once."""
_PAUSE = 0.4
"""Seconds, at most, before that."""
_PLACES = ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK")


class Connection(Value):
    """A connection to the runner: its descriptor, what protects it, and what has already come of the channel."""

    fd: int
    transport: Transport
    early: bytes


def connect(
    addresses: list[str], port: int, variable: str, environ: MutableMapping[str, str], name: str = ""
) -> Connection:
    """Connect to the first of the runner's addresses that answers rightly.

    Args:
        addresses, port: where the runner listens.
        variable: names the token in ``environ``, from which it is taken out.
        environ: this process's environment.
        name: this node's name in the pool, where the launcher could tell it.

    Raises:
        UnfitError: the token has not come along, or the runner cannot be reached.
    """
    token = environ.pop(variable, "")
    if not token:
        raise UnfitError(f"the launcher has not passed on {variable}", hint="--launcher ssh needs no such variable")
    who = {
        "name": name,
        "hostname": os.uname().nodename,
        "slurm": environ.get("SLURMD_NODENAME", ""),
        "allocation": environ.get("SLURM_JOB_ID", ""),
        "addresses": ",".join(own_addresses()),
        "place": next((environ[variable] for variable in _PLACES if variable in environ), ""),
    }
    context = _tls_context()
    why: dict[str, str] = {}
    left = list(addresses)
    deadline = time.monotonic() + _TRY_FOR
    while left and time.monotonic() < deadline:
        if why:
            time.sleep(random.uniform(_PAUSE / 10, _PAUSE))
        for address in tuple(left):
            try:
                connection = socket.create_connection((address, port), timeout=_CONNECT_WAIT)
            except OSError as error:
                why[address] = error.strerror or str(error)
                left.remove(address)
                continue
            handshake = Agent(token, who, context)
            try:
                if _prove(connection, handshake):
                    connection.settimeout(None)
                    return Connection(connection.detach(), handshake.transport, handshake.early)
                why[address] = "that is not our runner"
                left.remove(address)
            except OSError as error:
                why[address] = error.strerror or str(error)
            connection.close()
    words = "; ".join(f"{address}: {reason}" for address, reason in why.items())
    raise UnfitError(f"{os.uname().nodename} cannot reach the runner, port {port}: {words}")


def _prove(connection: socket.socket, handshake: Agent) -> bool:
    """Whether that is our runner, and it has taken us.

    Raises:
        OSError: it has hung up, or does not answer.
    """
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(handshake.first())
    while not handshake.welcome:
        data = connection.recv(65536)
        if not data:
            raise ConnectionResetError("it hung up")
        answer = handshake.feed(data)
        if answer is None:
            return False
        connection.sendall(answer)
    return True


def _tls_context() -> ssl.SSLContext | None:
    """For TLS, where this Python has it."""
    try:
        from bireme.control.tls import client_context

        return client_context()
    except (ImportError, OSError):
        return None
