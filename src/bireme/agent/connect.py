"""Connects an agent that a launcher started to its runner, and proves that it belongs to the job."""

from __future__ import annotations

import os
import random
import socket
import time

from bireme.control.handshake import Agent
from bireme.errors import UnfitError
from bireme.resources.addresses import own_addresses

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping, MutableMapping
    from typing import Any

    from bireme.control.transport import Transport

_CONNECT_WAIT = 5.0
"""Seconds to connect to each address, and to wait for each answer."""
_PROOF_WAIT = 10.0
"""Seconds for all answers together, even if they come byte by byte."""
_TRY_FOR = 10.0
"""Seconds for which to try again when the runner closes the connection, as it does with too many at a time."""
_PAUSE = 0.4
"""Seconds, at most, between two attempts."""
_RANK_VARIABLES = ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK")


def close_what_leaked(environ: Mapping[str, str]) -> None:
    """Close descriptors that hydra leaks into its children, which would keep ``mpiexec`` from ending.

    Keeps the one for PMI: once that is closed, hydra's proxy reads its end in a loop and uses a whole core.
    """
    kept = environ.get("PMI_FD", "")
    spared = int(kept) if kept.isdigit() and int(kept) >= 3 else 2
    os.closerange(3, spared)
    os.closerange(spared + 1, 1 << 16)
    if spared > 2 and os.path.exists(f"/proc/self/fd/{spared}"):  # else the variable is left from an outer launcher
        os.set_inheritable(spared, False)


def connect(
    addresses: list[str], port: int, variable: str, environ: MutableMapping[str, str], name: str = ""
) -> tuple[int, Transport, bytes]:
    """Connect to the first of the runner's addresses at which the runner proves itself.

    Args:
        variable: the variable in ``environ`` that holds the token; it is removed.
        name: this node's name in the pool; "": the launcher could not pass it.

    Returns:
        The socket's descriptor; what protects the channel; and bytes of it that were received already, decoded.
    """
    token = environ.pop(variable, "")
    if not token:
        raise UnfitError(f"the launcher did not pass on {variable}", hint="use --launcher ssh, which does not need it")
    who = {
        "name": name,
        "hostname": os.uname().nodename,
        "slurm": environ.get("SLURMD_NODENAME", ""),
        "allocation": environ.get("SLURM_JOB_ID", ""),
        "addresses": ",".join(own_addresses()),
        "place": next((environ[variable] for variable in _RANK_VARIABLES if variable in environ), ""),
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
                host: Any = address.encode() if address.isascii() else address  # see resources/addresses.py
                connection = socket.create_connection((host, port), timeout=_CONNECT_WAIT)
            except OSError as error:
                why[address] = error.strerror or str(error)
                left.remove(address)
                continue
            handshake = Agent(token, who, context)
            try:
                if _prove(connection, handshake):
                    connection.settimeout(None)
                    return connection.detach(), handshake.transport, handshake.early
                why[address] = "the program that answers is not the runner of this job"
                left.remove(address)
            except OSError as error:
                why[address] = error.strerror or str(error)
            connection.close()
    reasons = "; ".join(f"{address}: {reason}" for address, reason in why.items())
    raise UnfitError(f"{os.uname().nodename} cannot connect to the runner on port {port}: {reasons}")


def _prove(connection: socket.socket, handshake: Agent) -> bool:
    """Do the handshake; return whether the other side is the runner and has accepted us.

    Raises:
        OSError: the connection was closed, or nothing answers.
    """
    deadline = time.monotonic() + _PROOF_WAIT
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(handshake.first())
    while not handshake.welcome:
        if time.monotonic() > deadline:
            raise TimeoutError("it did not answer in time")
        data = connection.recv(65536)
        if not data:
            raise ConnectionResetError("it closed the connection")
        answer = handshake.feed(data)
        if answer is None:
            return False
        connection.sendall(answer)
    return True


def _tls_context() -> ssl.SSLContext | None:
    """The context for TLS; ``None`` where this Python has none."""
    try:
        from bireme.control.tls import client_context

        return client_context()
    except (ImportError, OSError):
        return None
