"""The certificate of one job: what makes it, and that its key is in no file and no arguments."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bireme.cluster.agent_listener import _ARGUMENTS, NO_CERTIFICATE, CertificateMaker, _by_cryptography
from bireme.control.runner_handshake import Security
from bireme.control.tls import TlsTransport, client_context, loaded, server_context
from tests.kit import needs


def works(security: Security) -> bool:
    """Whether a client sees that certificate."""
    assert security.context is not None
    server, client = TlsTransport(security.context, server=True), TlsTransport(client_context(), server=False)
    for _ in range(3):
        server.decode(client.owed())
        client.decode(server.owed())
    return client.established and client.fingerprint() == security.fingerprint


def test_by_openssl() -> None:
    first, second = (CertificateMaker(os.environ).finish() for _ in range(2))
    assert works(first) and works(second)
    assert first.fingerprint != second.fingerprint


def test_by_the_users_openssl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system has none."""
    monkeypatch.setattr("os.defpath", str(tmp_path))
    assert works(CertificateMaker(os.environ).finish())


def test_without_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.defpath", str(tmp_path))
    for place in ("missing", "broken", "empty"):
        directory = tmp_path / place
        directory.mkdir()
        if place != "missing":
            (directory / "openssl").write_text("#!/bin/sh\nexit 1\n" if place == "broken" else "#!/bin/sh\n")
            (directory / "openssl").chmod(0o755)
        made = CertificateMaker({"PATH": str(directory)}).finish()
        assert works(made) if _by_cryptography() else made == Security(why_not=NO_CERTIFICATE)


@needs.modules("cryptography")
def test_by_cryptography() -> None:
    context = server_context()
    made = loaded(context, _by_cryptography())
    assert works(Security(context, made))


def test_whatever_is_no_certificate() -> None:
    for pem in (b"", b"x", b"\xff", b"-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n", b"\0" * 1000):
        assert loaded(server_context(), pem) == ""


def test_the_key_is_in_no_file_and_no_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "-keyout -" in " ".join(_ARGUMENTS) and "-out" not in _ARGUMENTS
    monkeypatch.chdir(tmp_path)
    CertificateMaker({**os.environ, "TMPDIR": str(tmp_path)}).finish()
    assert not list(tmp_path.iterdir())


def test_one_that_nobody_waits_for() -> None:
    """As when the job is refused before it listens."""
    maker = CertificateMaker(os.environ)
    process = maker._process
    assert process is not None
    maker.close()
    assert process.returncode is not None
