"""TLS 1.3 as a transport. Pure: bytes in, bytes out.

The runner is the server, with a certificate made for this job. The agent knows its fingerprint from a message that only
a holder of the job's token can have made; no certificate authority is involved.

Import this only where it is needed: ``ssl`` is slow to import, and some interpreters lack it.
"""

from __future__ import annotations

import hashlib
import os
import ssl
import sys
from contextlib import contextmanager

from bireme.control.transport import ALTERED, Transport
from bireme.errors import ProtocolError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

if not ssl.HAS_TLSv1_3:
    raise ImportError("this Python's ssl module has no TLS 1.3")


class TlsTransport(Transport):
    """One side of a TLS connection."""

    def __init__(self, context: ssl.SSLContext, *, server: bool) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server)
        self.established = False
        """Whether the TLS handshake is complete; before that, nothing can be encoded."""
        self._advance()

    def encode(self, data: bytes | memoryview) -> bytes:
        """Encrypt the bytes."""
        left = memoryview(data)
        while left:
            left = left[self._tls.write(left) :]  # a record at a time
        return self._outgoing.read()

    def decode(self, data: bytes) -> bytes:
        """Decrypt the complete records, and continue the handshake."""
        self._incoming.write(data)
        if not self.established:
            self._advance()
        pieces = []
        try:
            while self.established and (piece := self._tls.read(65536)):
                pieces.append(piece)
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            pass
        except ssl.SSLError:
            raise ProtocolError(ALTERED) from None
        return b"".join(pieces)

    def _advance(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLError:
            raise ProtocolError(ALTERED) from None
        self.established = True

    def owed(self) -> bytes:
        """Messages of the TLS handshake to send."""
        return self._outgoing.read()

    def fingerprint(self) -> str:
        """The fingerprint of the other side's certificate."""
        return fingerprint(self._tls.getpeercert(binary_form=True) or b"")


def fingerprint(certificate: bytes) -> str:
    """The fingerprint (SHA-256, hexadecimal) of a certificate in DER."""
    return hashlib.sha256(certificate).hexdigest()


def server_context() -> ssl.SSLContext:
    """The context of the runner, without a certificate yet."""
    context = _tls13(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0
    return context


def client_context() -> ssl.SSLContext:
    """The context of an agent, which compares the fingerprint itself."""
    context = _tls13(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _tls13(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def loaded(context: ssl.SSLContext, pem: bytes) -> str:
    """Load a key and its certificate into a context, through pipes, so that no file ever holds the key.

    Returns:
        The certificate's fingerprint; "" if the two are invalid.
    """
    secret, begin, public = pem.decode("ascii", "replace").partition("-----BEGIN CERTIFICATE-----")
    try:
        der = ssl.PEM_cert_to_DER_cert(begin + public)
        with _pipe(begin + public) as certificate, _pipe(secret) as key:
            context.load_cert_chain(certificate, key, password="")
    except (OSError, ValueError):
        return ""
    return fingerprint(der)


@contextmanager
def _pipe(text: str) -> Iterator[str]:
    """A path from which this text can be read once."""
    read_fd, write_fd = os.pipe()
    try:
        with open(write_fd, "w", encoding="ascii") as file:
            file.write(text)  # far less than a pipe holds
        yield f"{'/proc/self/fd' if sys.platform == 'linux' else '/dev/fd'}/{read_fd}"
    finally:
        os.close(read_fd)
