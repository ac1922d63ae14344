"""What runner and agent say to each other, as bytes. Pure: no socket, no process.

A channel begins with a line that no shell start-up file prints (:data:`GREETING`); what comes before it is noise.
Then frames: a kind (one byte), the length of the rest (four bytes, big-endian), and the rest. Messages are JSON
objects with a ``"type"``; output is raw bytes.
"""

from __future__ import annotations

import json
import struct

from bireme.errors import BiremeError
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VERSION = 1
"""Of this protocol. Both sides must speak the same: it changes whenever a message does."""

GREETING = b"\n\x01bireme-channel %d\x01\n" % VERSION
_GREETING_STEM = GREETING[: GREETING.index(b" ") + 1]

MAX_FRAME = 64 * 1024 * 1024
"""Bytes of the longest frame: longer ones can only be noise."""

_HEAD = struct.Struct("!cI")
_OUTPUT = struct.Struct("!IB")


class ProtocolError(BiremeError):
    """The other side does not speak our protocol."""


class Message(Value):
    """One JSON message: ``type`` and the other fields."""

    type: str
    body: dict[str, Any]


class Output(Value):
    """What a rank has written to its stdout (``number`` 1) or stderr (2)."""

    rank: int
    number: int
    data: bytes


def encode_message(type_: str, **body: object) -> bytes:
    """One message as a frame."""
    text = json.dumps({"type": type_, **body}, separators=(",", ":"), ensure_ascii=True).encode()
    return _HEAD.pack(b"J", len(text)) + text


def encode_output(rank: int, number: int, data: bytes) -> bytes:
    """What a rank has written as a frame."""
    return b"".join((_HEAD.pack(b"O", _OUTPUT.size + len(data)), _OUTPUT.pack(rank, number), data))


class Decoder:
    """Bytes as they come in, frames out.

    Args:
        greeted: the greeting was seen already, or is not expected.
    """

    def __init__(self, *, greeted: bool = False) -> None:
        self._buffer = bytearray()
        self._greeted = greeted
        self.noise = b""
        """What came before the greeting, at most 4 KiB of it: it may say why there is none."""

    def feed(self, data: bytes) -> list[Message | Output]:
        """The frames that ``data`` completes.

        Raises:
            ProtocolError: this is no channel of ours, or of another version.
        """
        self._buffer += data
        if not self._greeted and not self._find_greeting():
            return []
        frames: list[Message | Output] = []
        start, buffer = 0, self._buffer
        while len(buffer) - start >= _HEAD.size:
            kind, length = _HEAD.unpack_from(buffer, start)
            if length > MAX_FRAME or kind not in (b"J", b"O"):
                raise ProtocolError("the channel carries something that is not ours")
            end = start + _HEAD.size + length
            if len(buffer) < end:
                break
            frames.append(_decode(kind, bytes(memoryview(buffer)[start + _HEAD.size : end])))
            start = end
        del buffer[:start]
        return frames

    def _find_greeting(self) -> bool:
        place = self._buffer.find(_GREETING_STEM)
        if place < 0:
            self.noise = bytes(self._buffer[-4096:])
            del self._buffer[:-65536]  # what is kept may be the beginning of the greeting
            return False
        end = self._buffer.find(b"\x01\n", place + len(_GREETING_STEM))
        if end < 0:
            return False
        self.noise = bytes(self._buffer[:place])[-4096:]
        version = bytes(self._buffer[place + len(_GREETING_STEM) : end])
        if version != b"%d" % VERSION:
            other = version.decode(errors="replace")
            raise ProtocolError(f"the other side speaks version {other} of the channel, we {VERSION}")
        del self._buffer[: end + 2]
        self._greeted = True
        return True


def _decode(kind: bytes, rest: bytes) -> Message | Output:
    try:
        if kind == b"O":
            rank, number = _OUTPUT.unpack_from(rest)
            return Output(rank, number, rest[_OUTPUT.size :])
        body = json.loads(rest)
        type_ = body.pop("type")
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError, struct.error):
        raise ProtocolError("the channel carries a message that is not ours") from None
    if not isinstance(type_, str):
        raise ProtocolError("the channel carries a message that is not ours")
    return Message(type_, body)
