"""The rendezvous store of an elastic job: hosted here, or at an address that the user has named."""

from __future__ import annotations

import socket

from bireme.elastic import STORE
from bireme.errors import UnfitError
from bireme.resources.locality import is_this_machine, own_addresses
from bireme.supervise.helper import Helper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from bireme.loop import Loop

    OnReady = Callable[[Sequence[str], int, str], object]

_PATIENCE = 2.0
"""Seconds that somebody else's store may take to accept a connection."""
DEFAULT_STORE_PORT = 29400
"""The port of a rendezvous store that somebody else hosts, as torchrun has it."""


class Store:
    """PyTorch's TCPStore in a process of its own, so that only that one imports torch.

    Args:
        interpreter: a Python that has torch.
        environ: its environment.
        address, port: what the user has named. Another machine's store is taken as it is.
    """

    def __init__(self, interpreter: str, environ: Mapping[str, str], address: str | None, port: int | None) -> None:
        self._argv = (interpreter, STORE, str(port or 0))
        self._environ = environ
        self._address = address
        self._elsewhere = address is not None and not is_this_machine(address)
        self._port = (port or DEFAULT_STORE_PORT) if self._elsewhere else 0
        self._helper: Helper | None = None

    @property
    def is_ours(self) -> bool:
        """Whether we host it."""
        return not self._elsewhere

    def trouble(self) -> str:
        """What is wrong with it, where the nodes cannot use it; "": nothing that can be seen from here."""
        if self._helper is not None:
            return "" if self._helper.running else "the rendezvous store has ended"
        assert self._address is not None
        try:
            socket.create_connection((self._address, self._port), _PATIENCE).close()
        except OSError as error:
            return f"no rendezvous store answers at {self._address}, port {self._port}: {error.strerror or error}"
        return ""

    def begin(self) -> None:
        """Start it, or again if it has ended, without waiting for it.

        Raises:
            UnfitError: this machine cannot start another process.
        """
        if self._elsewhere or (self._helper is not None and self._helper.running):
            return
        self.close()
        try:
            self._helper = Helper(self._argv, self._environ)
        except OSError as error:
            raise UnfitError(f"the rendezvous store cannot be started: {error.strerror}") from None

    def when_ready(self, loop: Loop, on_ready: OnReady) -> None:
        """Call with the addresses at which it may be reached, its port, and what is wrong if it cannot serve."""
        if self._port:
            on_ready(self._addresses(), self._port, "")
            return
        assert self._helper is not None
        self._helper.when_answered(loop, lambda answer: self._answered(answer, on_ready))

    def _answered(self, answer: dict[str, Any], on_ready: OnReady) -> None:
        self._port = int(answer.get("port", 0))
        on_ready(self._addresses(), self._port, "" if self._port else str(answer.get("error")))

    def _addresses(self) -> tuple[str, ...]:
        return (self._address,) if self._address else (*own_addresses(), "127.0.0.1")

    def close(self) -> None:
        """End it."""
        if self._helper is not None:
            self._helper.close()
            self._helper = None
            self._port = 0
