"""How runner and agent prove to each other that they know the job's token. Pure: bytes in, bytes out.

Three lines of ASCII words::

    agent → runner   bireme-dial VERSION NONCE_A {who, as base64 of JSON}
    runner → agent   NONCE_R HMAC(token, "runner" NONCE_A NONCE_R)
    agent → runner   HMAC(token, "agent" NONCE_R NONCE_A who)

after which the channel begins, as if over a pipe.
"""

from __future__ import annotations

import base64
import hmac
import json
import os

from bireme.control.frames import VERSION

MOST_BYTES = 16384
"""Of what is read before the agent has proved itself."""


def _mac(token: str, *words: str) -> str:
    return hmac.new(token.encode(), " ".join(words).encode(), "sha256").hexdigest()


def _words(line: bytes) -> list[str]:
    """The words of a line; none of one that is not ASCII, which no peer of ours sends."""
    return line.decode().split() if line.isascii() else []


def _who(word: str) -> dict[str, str] | None:
    """What an agent says about itself, if it is a table of words."""
    try:
        who = json.loads(base64.b64decode(word))
    except (ValueError, RecursionError):
        return None
    if not isinstance(who, dict) or not all(isinstance(value, str) for value in who.values()):
        return None
    return who


class Runner:
    """The runner's side of one connection."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._buffer = b""
        self._nonce = os.urandom(16).hex()
        self._first: list[str] | None = None
        self.agent: dict[str, str] | None = None
        """Who has proved itself: what the agent says about itself."""

    def feed(self, data: bytes) -> bytes | None:
        """What to answer (maybe nothing yet); ``None``: this is no agent of ours, hang up."""
        self._buffer += data
        if len(self._buffer) > MOST_BYTES:
            return None
        if b"\n" not in self._buffer:
            return b""
        line, _, self._buffer = self._buffer.partition(b"\n")
        words = _words(line)
        if self._first is None:
            if len(words) != 4 or words[:2] != ["bireme-dial", str(VERSION)]:
                return None
            self._first = words
            return f"{self._nonce} {_mac(self._token, 'runner', words[2], self._nonce)}\n".encode()
        expected = _mac(self._token, "agent", self._nonce, self._first[2], self._first[3])
        if len(words) != 1 or not hmac.compare_digest(words[0], expected) or self._buffer:
            return None  # nothing may follow: the agent waits for us now
        self.agent = _who(self._first[3])
        return None if self.agent is None else b"welcome\n"


class Agent:
    """The agent's side."""

    def __init__(self, token: str, who: dict[str, str]) -> None:
        self._token = token
        self._nonce = os.urandom(16).hex()
        self._who = base64.b64encode(json.dumps(who).encode()).decode()

    def first(self) -> bytes:
        """What to send first."""
        return f"bireme-dial {VERSION} {self._nonce} {self._who}\n".encode()

    def answer(self, line: bytes) -> bytes | None:
        """What to answer to the runner's line; ``None``: that is not our runner."""
        words = _words(line)
        if len(words) != 2 or not hmac.compare_digest(words[1], _mac(self._token, "runner", self._nonce, words[0])):
            return None
        return f"{_mac(self._token, 'agent', words[0], self._nonce, self._who)}\n".encode()
