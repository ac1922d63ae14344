"""The first words on a channel: the agent greets, and the runner answers with the agent's code. Pure.

The greeting is a line that no shell start-up file prints; it names the Python that runs the agent. The code is one
frame of kind :data:`CODE`; the messages follow it. Also sent ahead to nodes, so it imports little.
"""

from __future__ import annotations

import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

STEM = b"\n\x01bireme-agent "
END = b"\x01\n"
LONGEST_TAG = 64
"""Characters of a tag."""

HEAD = struct.Struct("!cI")
"""The head of a frame: its kind, and the length of the rest."""
CODE = b"C"


def python_tag() -> str:
    """Names this interpreter, by its implementation and the version of its bytecode (as ``cpython-311-a70d0d0a``)."""
    magic: bytes = sys.modules["_frozen_importlib_external"].MAGIC_NUMBER
    return f"{sys.implementation.cache_tag}-{magic.hex()}"


def greeting(tag: str) -> bytes:
    """The agent's first line."""
    return STEM + tag.encode() + END


def receive_code(receive: Callable[[], bytes]) -> tuple[bytes, bytes]:
    """Receive the agent's code.

    Args:
        receive: waits for bytes of the channel and returns them; nothing at its end.

    Returns:
        The code, and the bytes of the channel that came after it.

    Raises:
        EOFError: the channel has ended, or carries something else.
    """
    buffer = bytearray()
    length = HEAD.size
    while len(buffer) < length:
        data = receive()
        buffer += data
        if not data or buffer[:1] != CODE:
            raise EOFError
        if len(buffer) >= HEAD.size:
            length = HEAD.size + int(HEAD.unpack_from(buffer)[1])
    return bytes(buffer[HEAD.size : length]), bytes(buffer[length:])
