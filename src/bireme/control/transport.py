"""How the bytes of a channel are protected on their way. Pure: bytes in, bytes out.

:class:`Transport` leaves them as they are, for a way that is protected already; :class:`MacTransport` is what remains
where TLS cannot be had; TLS itself is :mod:`bireme.control.tls`.
"""

from __future__ import annotations

import hmac
import struct

from bireme.control.messages import ProtocolError

_HEAD = struct.Struct("!I32s")
_NUMBERED = struct.Struct("!QI")
_LONGEST = 256 * 1024
"""Bytes of the longest record: what a forged length can have us keep before its MAC is checked."""

ALTERED = "its data was altered in transit"


class Transport:
    """Passes bytes on as they are: over ssh, which encrypts and authenticates them itself."""

    readable = ""
    """Why others on the way can read what is sent; empty where they cannot."""

    def encode(self, data: bytes) -> bytes:
        """What to send for these bytes."""
        return data

    def decode(self, data: bytes) -> bytes:
        """The other side's bytes, as far as what has come holds them.

        Raises:
            ProtocolError: somebody on the way has altered what was sent.
        """
        return data

    def owed(self) -> bytes:
        """What is to be sent although nobody has given any bytes: the transport's own handshake."""
        return b""


class MacTransport(Transport):
    """Records of up to 256 KiB, each with a MAC over its number, its length and its bytes. Nothing is encrypted.

    A record that was altered, left out, repeated or moved does not have the MAC of the number that is expected, and is
    refused before anything in it is looked at.

    Args:
        send_key, receive_key: different ones, so that nothing can be sent back to its author.
        readable: why there is no TLS.
    """

    def __init__(self, send_key: bytes, receive_key: bytes, readable: str) -> None:
        self._send_key, self._receive_key, self.readable = send_key, receive_key, readable
        self._sent = self._received = 0
        self._buffer = bytearray()

    def encode(self, data: bytes) -> bytes:
        """Seal the bytes in records."""
        records: list[bytes] = []
        for start in range(0, len(data), _LONGEST):
            piece = data[start : start + _LONGEST]
            records += (_HEAD.pack(len(piece), _tag(self._send_key, self._sent, piece)), piece)
            self._sent += 1
        return b"".join(records)

    def decode(self, data: bytes) -> bytes:
        """Check the records that are complete."""
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


def _tag(key: bytes, number: int, piece: bytes) -> bytes:
    return hmac.digest(key, _NUMBERED.pack(number, len(piece)) + piece, "sha256")
