"""A transport that authenticates each record with a MAC, where TLS is not available. Pure: bytes in, bytes out."""

from __future__ import annotations

import hmac
import struct

from bireme.control.transport import ALTERED, Transport
from bireme.errors import ProtocolError

_HEAD = struct.Struct("!I32s")
_NUMBERED = struct.Struct("!QI")
_LONGEST = 256 * 1024
"""Bytes of the longest record: with a forged length, no more than this is buffered before the MAC is checked."""


class MacTransport(Transport):
    """Sends records of up to 256 KiB, each with a MAC over its number, length and bytes. Nothing is encrypted.

    A record that was altered, dropped, repeated or reordered has the wrong MAC for its place, and is refused before its
    content is used.

    Args:
        receive_key: the key for those of the other side; different, so that a record cannot be sent back to its sender.
        readable: why TLS is not used.
    """

    def __init__(self, send_key: bytes, receive_key: bytes, readable: str) -> None:
        self._send_key, self._receive_key, self.readable = send_key, receive_key, readable
        self._sent = self._received = 0
        self._buffer = bytearray()

    def encode(self, data: bytes | memoryview) -> bytes:
        """Wrap the bytes in records."""
        records: list[bytes | memoryview] = []
        for start in range(0, len(data), _LONGEST):
            piece = data[start : start + _LONGEST]
            records += (_HEAD.pack(len(piece), _tag(self._send_key, self._sent, piece)), piece)
            self._sent += 1
        return b"".join(records)

    def decode(self, data: bytes) -> bytes:
        """Check the complete records; return their bytes."""
        self._buffer += data
        pieces: list[bytes] = []
        start, buffer = 0, self._buffer
        while len(buffer) - start >= _HEAD.size:
            length, tag = _HEAD.unpack_from(buffer, start)
            if length > _LONGEST:
                raise ProtocolError(ALTERED)
            end = start + _HEAD.size + length
            if len(buffer) < end:
                break
            piece = bytes(memoryview(buffer)[start + _HEAD.size : end])
            if not hmac.compare_digest(tag, _tag(self._receive_key, self._received, piece)):
                raise ProtocolError(ALTERED)
            pieces.append(piece)
            self._received += 1
            start = end
        del buffer[:start]
        return b"".join(pieces)


def _tag(key: bytes, number: int, piece: bytes | memoryview) -> bytes:
    return hmac.digest(key, _NUMBERED.pack(number, len(piece)) + piece, "sha256")
