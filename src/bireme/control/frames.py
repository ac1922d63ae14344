"""Frames: encodes and decodes the messages between runner and agent as bytes. Pure.

A channel begins with the agent's greeting (:mod:`bireme.control.greeting`); whatever comes before it is noise. Then
frames follow: a kind (one byte), the length of the rest (four bytes, big-endian), and the rest. Messages are JSON,
output, trees and the agent's code are raw bytes.
"""

from __future__ import annotations

import struct

from bireme.control.greeting import CODE, END, HEAD, LONGEST_TAG, STEM
from bireme.control.messages import Output, Piece, from_json, to_json
from bireme.errors import ProtocolError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from bireme.control.messages import Frame, Message

MAX_FRAME = 64 * 1024 * 1024
"""Bytes of the longest frame; a longer one can only be noise."""

MAX_FROM_AGENT = 16 * 1024 * 1024
"""The same from an agent. What is the longest that it has to say, a rank's error file, is a quarter less as JSON."""

_OUTPUT = struct.Struct("!IB")


def encode_message(message: Message) -> bytes:
    """Encode a message as a frame."""
    text = to_json(message)
    return HEAD.pack(b"J", len(text)) + text


def encode_output(rank: int, number: int, data: bytes) -> bytes:
    """Encode a chunk of a rank's output as a frame."""
    return b"".join((HEAD.pack(b"O", _OUTPUT.size + len(data)), _OUTPUT.pack(rank, number), data))


def encode_code(code: bytes) -> bytes:
    """Encode the agent's code as a frame."""
    return HEAD.pack(CODE, len(code)) + code


PIECE_HEAD = HEAD.size
"""Bytes before a piece of a tree in its frame."""


def put_piece_head(frame: bytearray, size: int) -> None:
    """Write the head of a piece of this size into its frame."""
    HEAD.pack_into(frame, 0, b"T", size)


class Decoder:
    """Decodes received bytes into frames."""

    def __init__(
        self, vocabulary: Mapping[str, type[Message]], *, greeted: bool = False, longest: int = MAX_FRAME
    ) -> None:
        self._buffer = bytearray()
        self._vocabulary, self._greeted, self._longest = vocabulary, greeted, longest
        self._inside = 0  # bytes of a piece that are still to come
        self.noise = b""
        """What came before the greeting, at most its last 4 KiB: it may explain why there is no greeting."""
        self.tag = ""
        """The Python that runs the agent; "" before its greeting."""

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that ``data`` completes. The piece of a tree is not gathered, but yielded as it comes.

        Raises:
            ProtocolError: the data is not a valid frame.
        """
        if self._inside:
            part, data = data[: self._inside], data[self._inside :]
            self._inside -= len(part)
            yield Piece(part)
        self._buffer += data
        if not self._greeted and not self._find_greeting():
            return
        start, buffer = 0, self._buffer
        try:
            while len(buffer) - start >= HEAD.size:
                kind, length = HEAD.unpack_from(buffer, start)
                if length > self._longest or kind not in (b"J", b"O", b"T"):
                    raise ProtocolError("it sent bytes that are not a frame")
                begin, end = start + HEAD.size, start + HEAD.size + length
                if kind == b"T" and len(buffer) < end:
                    self._inside, end = end - len(buffer), len(buffer)
                elif len(buffer) < end:
                    break
                start = end
                yield self._decode(kind, bytes(memoryview(buffer)[begin:end]))
        finally:
            del buffer[:start]

    def _find_greeting(self) -> bool:
        place = self._buffer.find(STEM)
        if place < 0:
            self.noise = bytes(self._buffer[-4096:])
            del self._buffer[:-65536]  # what is kept may be the beginning of the greeting
            return False
        begin = place + len(STEM)
        end = self._buffer.find(END, begin, begin + LONGEST_TAG + len(END))
        if end < 0 and len(self._buffer) < begin + LONGEST_TAG + len(END):
            return False
        tag = bytes(self._buffer[begin:end])
        if end < 0 or not tag.isascii():
            raise ProtocolError("its greeting has no end")
        self.noise = bytes(self._buffer[:place])[-4096:]
        self.tag = tag.decode()
        del self._buffer[: end + len(END)]
        self._greeted = True
        return True

    def _decode(self, kind: bytes, rest: bytes) -> Frame:
        if kind == b"J":
            return from_json(rest, self._vocabulary)
        if kind == b"T":
            return Piece(rest)
        if len(rest) < _OUTPUT.size:
            raise ProtocolError("it sent output without a rank")
        rank, number = _OUTPUT.unpack_from(rest)
        return Output(rank, number, rest[_OUTPUT.size :])
