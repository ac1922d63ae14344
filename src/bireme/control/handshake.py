"""The handshake: runner and agent prove to each other that they know the job's token, and choose a transport. Pure.

Here is the agent's side, which is also sent ahead to nodes; :mod:`bireme.control.runner_handshake` is the other.

It consists of lines of ASCII words. MAC is an HMAC, keyed by the token, over the words named here::

    agent → runner   bireme-dial NONCE_A {who, as base64 of JSON} MAC("first" …)
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

from bireme.control.mac import MacTransport
from bireme.control.transport import Transport
from bireme.errors import ProtocolError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence

    from bireme.control.tls import TlsTransport

MOST_BYTES = 16384
"""Bytes read at most before the other side has proved itself."""
WELCOME = b"welcome"
TLS, MAC = "tls", "mac"


def mac_of(token: str, *words: str) -> str:
    """The MAC over these words."""
    return hmac.new(token.encode(), " ".join(words).encode(), "sha256").hexdigest()


def words_of(line: bytes) -> list[str]:
    """The words of a line; none if it is not ASCII, which no valid peer sends."""
    return line.decode().split() if line.isascii() else []


def is_mac(word: str, expected: str) -> bool:
    """Compare two MACs in constant time."""
    return hmac.compare_digest(word.encode(), expected.encode())


def keys_of(token: str, said: Sequence[str]) -> tuple[bytes, bytes]:
    """The keys with which the runner and the agent send."""
    runner, agent = (bytes.fromhex(mac_of(token, f"key of the {side}", *said)) for side in ("runner", "agent"))
    return runner, agent


class Agent:
    """The agent's side.

    Args:
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
        words = ("bireme-dial", self._nonce, self._who)
        return f"{' '.join(words)} {mac_of(self._token, 'first', *words)}\n".encode()

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
        words = words_of(line)
        if rest or len(words) != 4:
            return None
        said = (*words[:3], self._nonce, self._who)
        if not is_mac(words[3], mac_of(self._token, "runner", *said)):
            return None
        self._said = said
        if words[1] == MAC:
            runner_key, agent_key = keys_of(self._token, said)
            self.transport = MacTransport(agent_key, runner_key, "there is no TLS")
            return self._prove()
        if words[1] != TLS or self._context is None:
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
            return b"" if WELCOME.startswith(line) else None
        if line != WELCOME:
            return None
        self.welcome, self.early = True, rest
        return b""

    def _prove(self) -> bytes:
        return bytes(self.transport.encode(f"{mac_of(self._token, 'agent', *self._said)}\n".encode()))
