"""The handshake: runner and agent prove to each other that they know the job's token, and choose a transport. Pure.

It consists of lines of ASCII words. MAC is an HMAC, keyed by the token, over the words named here::

    agent → runner   bireme-dial VERSION NONCE_A {who, as base64 of JSON} MAC("first" …)
    runner → agent   NONCE_R MODE FINGERPRINT MAC("runner" NONCE_R MODE FINGERPRINT NONCE_A who)

    from here on within the transport of that mode:

    agent → runner   MAC("agent" NONCE_R MODE FINGERPRINT NONCE_A who)
    runner → agent   welcome

Then the channel begins, as over a pipe. The mode is ``tls`` if both sides support it: the agent continues only if the
other side of the TLS connection has the certificate with that fingerprint. Otherwise it is ``mac``
(:class:`bireme.control.mac.MacTransport`), with keys derived from the token and both nonces. ``who`` says what
the agent supports and is covered by every MAC, so that nobody on the network can influence the mode.
"""

from __future__ import annotations

import base64
import hmac
import json
import os

from bireme.control.frames import VERSION
from bireme.control.mac import MacTransport
from bireme.control.messages import ProtocolError
from bireme.control.transport import Transport
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence

    from bireme.control.tls import TlsTransport

MOST_BYTES = 16384
"""Bytes read at most before the other side has proved itself."""
_WELCOME = b"welcome"
_TLS, _MAC = "tls", "mac"
NO_TLS_THERE = "the agent's Python has no ssl module with TLS 1.3"


class Security(Value):
    """What a runner can offer: TLS with the certificate of this fingerprint, or the reason for not offering it."""

    context: ssl.SSLContext | None = None
    fingerprint: str = "-"
    why_not: str = ""


def _mac(token: str, *words: str) -> str:
    return hmac.new(token.encode(), " ".join(words).encode(), "sha256").hexdigest()


def _words(line: bytes) -> list[str]:
    """The words of a line; none if it is not ASCII, which no valid peer sends."""
    return line.decode().split() if line.isascii() else []


def _is_mac(word: str, expected: str) -> bool:
    return hmac.compare_digest(word.encode(), expected.encode())


def _who(word: str) -> dict[str, str] | None:
    """Decode what an agent says about itself; ``None`` if it is not an object of strings."""
    try:
        who = json.loads(base64.b64decode(word))
    except (ValueError, RecursionError):
        return None
    if not isinstance(who, dict) or not all(isinstance(value, str) for value in who.values()):
        return None
    return who


def _keys(token: str, said: Sequence[str]) -> tuple[bytes, bytes]:
    """The keys with which the runner and the agent send."""
    runner, agent = (bytes.fromhex(_mac(token, f"key of the {side}", *said)) for side in ("runner", "agent"))
    return runner, agent


class Runner:
    """The runner's side of one connection.

    Args:
        token: the job's token.
        security: what this runner can offer.
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
        return [] if rest else _words(line)

    def _first(self, data: bytes) -> bytes | None:
        words = self._line(data)
        if words is None:
            return b""
        if len(words) != 5 or words[:2] != ["bireme-dial", str(VERSION)] or words[2] in self._seen:
            return None
        nonce, who = words[2:4]
        table = _who(who)
        if not _is_mac(words[4], _mac(self._token, "first", *words[:4])) or table is None:
            return None
        self._seen.add(nonce)
        self._table = table
        context = self._security.context if table.get("tls") else None
        mode, fingerprint = (_MAC, "-") if context is None else (_TLS, self._security.fingerprint)
        self._said = (self._nonce, mode, fingerprint, nonce, who)
        if context is None:
            why = self._security.why_not or NO_TLS_THERE
            self.transport = MacTransport(*_keys(self._token, self._said), why)
        else:
            from bireme.control.tls import TlsTransport

            self.transport = TlsTransport(context, server=True)
        return f"{self._nonce} {mode} {fingerprint} {_mac(self._token, 'runner', *self._said)}\n".encode()

    def _proof(self, transport: Transport, data: bytes) -> bytes | None:
        words = self._line(transport.decode(data))
        if words is None:
            return transport.owed()
        if len(words) != 1 or not _is_mac(words[0], _mac(self._token, "agent", *self._said)):
            return None
        self.agent = self._table
        return transport.owed() + transport.encode(_WELCOME + b"\n")


class Agent:
    """The agent's side.

    Args:
        token: the job's token.
        who: what this agent says about itself.
        context: for TLS; ``None``: this Python has none.
    """

    def __init__(self, token: str, who: dict[str, str], context: ssl.SSLContext | None = None) -> None:
        self._token, self._context = token, context
        self._nonce = os.urandom(16).hex()
        who = {**who, "tls": "yes" if context is not None else ""}
        self._who = base64.b64encode(json.dumps(who).encode()).decode()
        self._buffer, self._read = b"", 0
        self._said: tuple[str, ...] = ()
        self._unproved: TlsTransport | None = None
        self.transport = Transport()
        self.welcome = False
        """Whether the runner has accepted us, so that the channel begins."""
        self.early = b""
        """Bytes of the channel that came with the welcome, decoded."""

    def first(self) -> bytes:
        """The first line to send."""
        words = ("bireme-dial", str(VERSION), self._nonce, self._who)
        return f"{' '.join(words)} {_mac(self._token, 'first', *words)}\n".encode()

    def feed(self, data: bytes) -> bytes | None:
        """Take received bytes; return what to answer, maybe nothing yet. ``None``: not the runner of this job."""
        try:
            return self._answer(data) if not self._said else self._go_on(data)
        except ProtocolError:
            return None

    def _answer(self, data: bytes) -> bytes | None:
        self._buffer += data
        line, end, rest = self._buffer.partition(b"\n")
        if not end:
            return b"" if len(self._buffer) <= MOST_BYTES else None
        self._buffer = b""
        words = _words(line)
        if rest or len(words) != 4:
            return None
        said = (*words[:3], self._nonce, self._who)
        if not _is_mac(words[3], _mac(self._token, "runner", *said)):
            return None
        self._said = said
        if words[1] == _MAC:
            runner_key, agent_key = _keys(self._token, said)
            self.transport = MacTransport(agent_key, runner_key, "there is no TLS")
            return self._prove()
        if words[1] != _TLS or self._context is None:
            return None
        from bireme.control.tls import TlsTransport

        self.transport = self._unproved = TlsTransport(self._context, server=False)
        return self.transport.owed()

    def _go_on(self, data: bytes) -> bytes | None:
        plain = self.transport.decode(data)
        if self._unproved is not None:
            if not self._unproved.established:
                return self.transport.owed()
            if not hmac.compare_digest(self._unproved.fingerprint(), self._said[2]):
                return None
            self._unproved = None
            return self.transport.owed() + self._prove()
        self._buffer += plain
        line, end, rest = self._buffer.partition(b"\n")
        if not end:
            return b"" if _WELCOME.startswith(line) else None
        if line != _WELCOME:
            return None
        self.welcome, self.early = True, rest
        return b""

    def _prove(self) -> bytes:
        return bytes(self.transport.encode(f"{_mac(self._token, 'agent', *self._said)}\n".encode()))
