"""The runner's side of the handshake (:mod:`bireme.control.handshake`). Pure."""

from __future__ import annotations

import base64
import json
import os

from bireme.control.handshake import MAC, MOST_BYTES, TLS, WELCOME, is_mac, keys_of, mac_of, words_of
from bireme.control.mac import MacTransport
from bireme.errors import ProtocolError
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl

    from bireme.control.transport import Transport

NO_TLS_THERE = "the agent's Python has no ssl module with TLS 1.3"


class Security(Value):
    """What a runner can offer: TLS with the certificate of this fingerprint, or the reason for not offering it."""

    context: ssl.SSLContext | None = None
    fingerprint: str = "-"
    why_not: str = ""


def _who(word: str) -> dict[str, str] | None:
    """Decode what an agent says about itself; ``None`` if it is not an object of strings."""
    try:
        who = json.loads(base64.b64decode(word))
    except (ValueError, RecursionError):
        return None
    if not isinstance(who, dict) or not all(isinstance(value, str) for value in who.values()):
        return None
    return who


class Runner:
    """The runner's side of one connection.

    Args:
        seen: the nonces of all agents so far, to refuse a replayed first line.
    """

    def __init__(self, token: str, security: Security, seen: set[str] | None = None) -> None:
        self._token, self._security = token, security
        self._seen = set() if seen is None else seen
        self._buffer, self._read = b"", 0
        self._nonce = os.urandom(16).hex()
        self._said: tuple[str, ...] = ()
        self._table: dict[str, str] = {}
        self.transport: Transport | None = None
        """Set once the first line has shown that the other side knows the token."""
        self.agent: dict[str, str] | None = None
        """What the agent says about itself; set once it has proved itself."""

    def feed(self, data: bytes) -> bytes | None:
        """Take received bytes; return what to answer, maybe nothing yet. ``None``: not an agent of ours, hang up."""
        self._read += len(data)
        if self._read > MOST_BYTES:
            return None
        try:
            return self._first(data) if self.transport is None else self._proof(self.transport, data)
        except ProtocolError:
            return None

    def _line(self, data: bytes) -> list[str] | None:
        """The words of the line once it is complete; none if bytes follow it, which is not allowed here."""
        self._buffer += data
        line, end, rest = self._buffer.partition(b"\n")
        if not end:
            return None
        self._buffer = b""
        return [] if rest else words_of(line)

    def _first(self, data: bytes) -> bytes | None:
        words = self._line(data)
        if words is None:
            return b""
        if len(words) != 4 or words[0] != "bireme-dial" or words[1] in self._seen:
            return None
        nonce, who = words[1:3]
        table = _who(who)
        if not is_mac(words[3], mac_of(self._token, "first", *words[:3])) or table is None:
            return None
        self._seen.add(nonce)
        self._table = table
        context = self._security.context if table.get("tls") else None
        mode, fingerprint = (MAC, "-") if context is None else (TLS, self._security.fingerprint)
        self._said = (self._nonce, mode, fingerprint, nonce, who)
        if context is None:
            why = self._security.why_not or NO_TLS_THERE
            self.transport = MacTransport(*keys_of(self._token, self._said), why)
        else:
            from bireme.control.tls import TlsTransport

            self.transport = TlsTransport(context, server=True)
        return f"{self._nonce} {mode} {fingerprint} {mac_of(self._token, 'runner', *self._said)}\n".encode()

    def _proof(self, transport: Transport, data: bytes) -> bytes | None:
        words = self._line(transport.decode(data))
        if words is None:
            return transport.owed()
        if len(words) != 1 or not is_mac(words[0], mac_of(self._token, "agent", *self._said)):
            return None
        self.agent = self._table
        return transport.owed() + transport.encode(WELCOME + b"\n")
