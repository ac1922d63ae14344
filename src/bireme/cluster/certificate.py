"""Makes the self-signed TLS certificate of one job, with which the runner serves the agents that connect to it.

Agents learn its fingerprint from a message that only the job's runner can have made. The system's ``openssl`` command
makes it in about 10 ms, while the launcher starts; without that command, the package ``cryptography`` does. The key
exists only in memory and pipes.
"""

from __future__ import annotations

import os
from subprocess import DEVNULL, PIPE, Popen, SubprocessError

from bireme.control.runner_handshake import Security

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_ARGUMENTS = (
    *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", "-"),
    *("-subj", "/CN=bireme", "-days", "3650", "-config", "/dev/stdin"),
)
_CONFIG = b"[req]\ndistinguished_name=name\n[name]\n"
"""Replaces the system's configuration, which may be missing or ask for anything."""
_PATIENCE = 5.0
"""Seconds that ``openssl`` may take."""
NO_TLS_HERE = "the runner's Python has no ssl module with TLS 1.3"
NO_CERTIFICATE = "the runner has neither the openssl command nor the Python package cryptography"


class CertificateMaker:
    """Makes a certificate in the background; :meth:`finish` waits for it."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        # First the system's openssl, without configuration and libraries from the user's environment.
        self._left: list[Mapping[str, str]] = [{"PATH": os.defpath}, environ]
        self._process = self._start()

    def _start(self) -> Popen[bytes] | None:
        while self._left:
            environ = self._left.pop(0)
            try:
                process = Popen(("openssl", *_ARGUMENTS), env=environ, stdin=PIPE, stdout=PIPE, stderr=DEVNULL)
            except OSError:
                continue
            assert process.stdin is not None
            try:
                with process.stdin as file:
                    file.write(_CONFIG)
            except OSError:  # it has ended already; its empty output shows the failure
                pass
            process.stdin = None
            return process
        return None

    def finish(self) -> Security:
        """Wait for the certificate; return what the runner can offer to agents."""
        try:
            from bireme.control import tls
        except ImportError:
            self.close()
            return Security(why_not=NO_TLS_HERE)
        context = tls.server_context()
        while self._process is not None:
            process, self._process = self._process, None
            made = tls.loaded(context, _output(process))
            if made:
                return Security(context, made)
            self._process = self._start()
        made = tls.loaded(context, _by_cryptography())
        return Security(context, made) if made else Security(why_not=NO_CERTIFICATE)

    def close(self) -> None:
        """End openssl if it is still running."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _output(process: Popen[bytes]) -> bytes:
    try:
        return process.communicate(timeout=_PATIENCE)[0]
    except (SubprocessError, OSError):
        process.kill()
        process.communicate()
        return b""


def _by_cryptography() -> bytes:
    """Key and certificate (PEM) from the package ``cryptography``; empty if it is missing or broken."""
    try:
        from datetime import datetime, timedelta, timezone

        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except Exception:  # its binary modules may raise anything
        return b""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "bireme")])
    now = datetime.now(timezone.utc)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    dated = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=3650))
    secret: bytes = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public: bytes = dated.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    return secret + public
