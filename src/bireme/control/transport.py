"""What every transport offers: it protects the bytes of a channel on the network. Pure: bytes in, bytes out.

:class:`Transport` itself leaves them as they are, for a connection that is protected already. TLS is in
:mod:`bireme.control.tls`, and :mod:`bireme.control.mac` only authenticates them, where TLS is not available.
"""

from __future__ import annotations

ALTERED = "its data was altered in transit"


class Transport:
    """Passes bytes on unchanged; for ssh, which encrypts and authenticates them itself."""

    readable = ""
    """Why others on the network can read what is sent; "": they cannot."""

    def encode(self, data: bytes | memoryview) -> bytes | memoryview:
        """Protect bytes; return what to send."""
        return data

    def decode(self, data: bytes) -> bytes:
        """Take received data; return the other side's bytes that it completes.

        Raises:
            ProtocolError: the data was altered on the network.
        """
        return data

    def owed(self) -> bytes:
        """What the transport itself has to send, for its handshake."""
        return b""
